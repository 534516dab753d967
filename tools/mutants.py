"""Mutation testing: sample small faults in the package and count those that tests detect.

    python tools/mutants.py draw mutants.json --skip visattn/cli.py
    python tools/mutants.py run mutants.json      # resumes; adds "detected" to each

A fault changes an operator, a constant, a condition or a returned value. Of 300 faults, each
subpackage gets at least 15, the rest in proportion to its size. Each fault is tested with the
examples of its module, the tests named after it, those of its folder, then those of its subpackage,
for at most 25 s of CPU.
"""

import argparse
import ast
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import import_module
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

PAIRS = ["Add Sub", "Mult Div", "Lt LtE", "Gt GtE", "Eq NotEq", "And Or", "Is IsNot", "In NotIn"]
SWAPS: dict[type, Any] = {}
for one, two in map(str.split, PAIRS):
    SWAPS |= {getattr(ast, one): getattr(ast, two), getattr(ast, two): getattr(ast, one)}
SKIPPED = ast.JoinedStr | ast.Raise | ast.arg | ast.AnnAssign | ast.ImportFrom
QUIET = ["-xq", "-p", "no:cacheprovider", "-Wignore::pytest.PytestAssertRewriteWarning"]


def changed(node: ast.AST) -> str | None:
    """Return the source of a faulty node; None if the node is not mutated."""
    match node:
        case ast.BinOp(left, op, right) if type(op) in SWAPS:
            new: ast.AST = ast.BinOp(left, SWAPS[type(op)](), right)
        case ast.BoolOp(op, values):
            new = ast.BoolOp(SWAPS[type(op)](), values)
        case ast.Compare(left, [op, *ops], rest) if type(op) in SWAPS:
            new = ast.Compare(left, [SWAPS[type(op)](), *ops], rest)
        case ast.UnaryOp(ast.Not(), value):
            return f"({ast.unparse(value)})"
        case ast.Constant(bool(value)):
            return str(not value)
        case ast.Constant(int() | float() as value):
            return f"({value} + 1)"
        case ast.IfExp(test, body, other):
            new = ast.IfExp(test, other, body)
        case ast.If(ast.Name() | ast.Attribute() | ast.Call() as test):
            new = ast.UnaryOp(ast.Not(), test)
        case ast.Return(ast.expr()):
            return "return None"
        case _:
            return None
    return f"({ast.unparse(new)})"


def executed(node: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """Yield the nodes that a function executes: no annotations, decorators or error messages."""
    hints = (getattr(node, "returns", None), *getattr(node, "decorator_list", ()))
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, SKIPPED) and child not in hints:
            if isinstance(child, ast.expr | ast.stmt):
                yield child
            yield from executed(child)


def faults(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the faults of a module: position, original and replacement."""
    source = path.read_bytes()
    starts = [0, *accumulate(map(len, source.splitlines(keepends=True)))]
    functions = [n for n in ast.walk(ast.parse(source)) if isinstance(n, ast.FunctionDef)]
    for node in dict.fromkeys(node for function in functions for node in executed(function)):
        if after := changed(node):
            part = node.test if isinstance(node, ast.If) else node
            start = starts[part.lineno - 1] + part.col_offset
            end = starts[(part.end_lineno or 0) - 1] + (part.end_col_offset or 0)
            before = source[start:end].decode()
            yield {"path": str(path), "start": start, "before": before, "after": after}


def draw(skip: list[str], count: int = 300) -> list[dict[str, Any]]:
    """Sample faults, at least 15 per subpackage; the result is deterministic."""
    rooms: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(Path("visattn").rglob("*.py")):
        if not str(path).startswith(tuple(skip)):
            rooms.setdefault(path.parts[1], []).extend(faults(path))
    total, rest = sum(map(len, rooms.values())), max(0, count - 15 * len(rooms))
    shares = {room: 15 + round(rest * len(rooms[room]) / total) for room in rooms}
    return [
        each
        for room, listed in rooms.items()
        for each in random.Random(room).sample(listed, min(len(listed), shares[room]))
    ]


def passes(tests: list[Path], seconds: float) -> bool:
    """Run tests in a fork of this process, which has already imported the slow packages."""

    class Limit:
        def pytest_runtest_logstart(self) -> None:
            if time.process_time() > seconds:
                os._exit(0)

    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 60, int(seconds) + 60))  # timeout
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        code = pytest.main([*QUIET, *map(str, tests)], [Limit()])
        os._exit(int(code not in (0, 5)))  # 5: no tests
    return os.waitpid(child, 0)[1] == 0


def run(file: Path, seconds: float = 25.0) -> None:
    """Run the tests on each untested fault, in a copy of the working folder."""
    listed: list[dict[str, Any]] = json.loads(file.read_text())
    copy = Path(tempfile.mkdtemp()) / "copy"
    shutil.copytree(".", copy, ignore=shutil.ignore_patterns(".git", ".venv*", "runs"))
    os.chdir(copy)
    os.environ["PYTHONPATH"] = sys.path[0] = str(copy)
    for module in ("torchvision", "timm", "lightning.pytorch.cli", "transformers"):
        import_module(module)
    for each in [each for each in listed if "detected" not in each]:
        path = Path(each["path"])
        folder = Path("tests", *path.parts[1:-1])
        near = [path, *folder.rglob(f"test_{path.stem}.py")]
        tests = dict.fromkeys([*near, folder, Path("tests", path.parts[1])])
        source, end = path.read_bytes(), each["start"] + len(each["before"].encode())
        if source[each["start"] : end] != each["before"].encode():
            raise RuntimeError(f"{path} has changed since the faults were drawn: draw them again")
        path.write_bytes(source[: each["start"]] + each["after"].encode() + source[end:])
        each["detected"] = not passes([*tests], seconds)
        path.write_bytes(source)
        if each["detected"] and not passes(near, seconds):
            raise RuntimeError(f"the tests of {path} must pass without a fault, but fail")
        print(each["detected"], path, source[: each["start"]].count(b"\n") + 1, flush=True)
        file.write_text(json.dumps(listed, indent=1))
    for room in sorted({Path(each["path"]).parts[1] for each in listed}):
        detected = [each["detected"] for each in listed if f"/{room}/" in each["path"]]
        print(room, sum(detected), "of", len(detected))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("action", choices=["draw", "run"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--skip", nargs="*", default=[], metavar="PATH")
    args = parser.parse_args()
    if args.action == "draw":
        args.file.write_text(json.dumps(draw(args.skip), indent=1))
    else:
        run(args.file.resolve())
