"""Contracts of the source: directions of imports, names and sizes."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from lightning.pytorch.cli import LightningCLI

ROOT = Path(__file__).resolve().parents[2]
OURS = sorted(chain((ROOT / "visattn").rglob("*.py"), (ROOT / "tools").rglob("*.py")))
FOLDERS = ("visattn", "tests", "tools", "configs", "notebooks", ".ci")
TEXT = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".ipynb", ".cfg", ".json", ""}


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement to the last."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def texts() -> Iterator[Path]:
    inside = chain.from_iterable((ROOT / folder).rglob("*") for folder in FOLDERS)
    for path in chain(inside, ROOT.iterdir()):
        if path.is_file() and path.suffix in TEXT and not {"__pycache__", ".git"} & {*path.parts}:
            yield path


def test_imports_run_downwards() -> None:
    command = [str(Path(sys.executable).with_name("lint-imports")), "--no-cache"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 kept, 0 broken" in done.stdout


def test_class_names_are_unique() -> None:
    """Training files name classes by their short names."""
    trees = [ast.parse(path.read_text()) for path in OURS]
    names = [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_no_module_is_named_utils() -> None:
    drawers = {"utils", "util", "helpers", "helper", "common", "misc", "core"}
    assert [path for path in OURS if drawers & {path.stem, path.parent.name}] == []


def test_files_stay_within_700_lines() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in OURS}
    assert {path: length for path, length in lengths.items() if length > 700} == {}


def test_functions_stay_under_60_lines() -> None:
    lengths = {
        f"{path.relative_to(ROOT)}:{function.lineno} {function.name}": body_lines(function)
        for path in OURS
        for function in functions(path)
    }
    assert {name: length for name, length in lengths.items() if length >= 60} == {}


def test_forward_stays_under_25_lines() -> None:
    lengths = {
        f"{path.relative_to(ROOT)}:{function.lineno}": body_lines(function)
        for path in OURS
        for function in functions(path)
        if function.name == "forward"
    }
    assert {name: length for name, length in lengths.items() if length >= 25} == {}


def test_no_future_annotations() -> None:
    """Shapes in signatures are read at run time; as postponed strings they would not be."""
    statement = "from __future__ import " + "annotations"
    assert [path for path in OURS if statement in path.read_text()] == []


def test_no_file_names_a_machine_path_or_a_package_index() -> None:
    # Put together here, so that this file does not name them either.
    folders = ("work", "tmp", "root", "home", "opt", "Users", "mnt")
    paths = [f"/{folder}/" for folder in folders] + ["../" + "shared/"]
    hosts = ["pypi" + ".org", "python" + "hosted", "download.py" + "torch", "index" + "-url"]
    hosts += ["find" + "-links", "trusted" + "-host"]
    # A path starts where a word does: docs/work/plan would be fine.
    forbidden = re.compile(r"(?<![\w.])(?:" + "|".join(map(re.escape, paths + hosts)) + ")")
    violations = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts()
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if forbidden.search(line)
    ]
    assert violations == []


def test_overridden_private_hook_of_lightning_exists() -> None:
    """Emptied, it keeps a checkpoint's settings from beating the command line (tasks/)."""
    assert callable(LightningCLI._parse_ckpt_path)
