"""Contracts of the source: directions of imports, names and sizes."""

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import grimp
import numpy as np
from lightning.pytorch.cli import LightningCLI
from scipy.sparse.csgraph import connected_components

ROOT = Path(__file__).resolve().parents[2]
OURS = sorted(chain((ROOT / "visattn").rglob("*.py"), (ROOT / "tools").rglob("*.py")))
FOLDERS = ("visattn", "tests", "tools", "configs", "notebooks", ".ci")
TEXT = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".ipynb", ".cfg", ".json", ""}


class Function(NamedTuple):
    """A function of the package or of a tool."""

    file: str
    line: int
    name: str
    length: int
    parameters: int


@cache
def functions() -> list[Function]:
    """All functions; the trees that they are read from are too large to keep."""
    return [
        Function(file, node.lineno, node.name, body_lines(node), parameters(node))
        for path in OURS
        for file in [path.relative_to(ROOT).as_posix()]
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines from the first statement to the last."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Number of named parameters without the instance or the class of a method."""
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


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
    start = re.compile(r"^class (\w+)", re.MULTILINE)
    names = [name for path in OURS for name in start.findall(path.read_text())]
    assert len(names) > 500
    assert [name for name, count in Counter(names).items() if count > 1] == []


def test_no_module_is_named_utils() -> None:
    drawers = {"utils", "util", "helpers", "helper", "common", "misc", "core"}
    assert [path for path in OURS if drawers & {path.stem, path.parent.name}] == []


def test_files_stay_within_700_lines() -> None:
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in OURS}
    assert {path: length for path, length in lengths.items() if length > 700} == {}


def test_functions_stay_under_60_lines() -> None:
    assert [function for function in functions() if function.length >= 60] == []


def test_forward_stays_under_25_lines() -> None:
    forwards = [function for function in functions() if function.name == "forward"]
    assert [forward for forward in forwards if forward.length >= 25] == []


# Each with its number of parameters: the table may only shrink.
OPTIONS_ARE_THE_PAGE = {  # public: their keyword-only options are what users look up and complete
    ("visattn/insertion/insertion.py", "insert"): 9,
    ("visattn/models/saving/load.py", "load_model"): 9,
    ("visattn/pipelines/audit/audit.py", "audit"): 12,
    ("visattn/pipelines/captioning.py", "caption"): 13,
    ("visattn/pipelines/explainer.py", "explain"): 13,
    ("visattn/pipelines/video.py", "overlay_video"): 13,
    ("visattn/pipelines/words/captions.py", "caption_with_transformers"): 15,
}
OPTIONS_OF_METHODS = {  # the options of a method (--method-arg) are read from its signature
    ("visattn/attribution/perturbation.py", "drise"): 9,
    ("visattn/attribution/perturbation.py", "rise"): 10,
}


def test_functions_have_at_most_8_parameters() -> None:
    """Constructors apart: models and configs are written by their names."""
    more = {
        (function.file, function.name): function.parameters
        for function in functions()
        if function.parameters > 8 and function.name != "__init__"
    }
    assert more == OPTIONS_ARE_THE_PAGE | OPTIONS_OF_METHODS


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports inside functions and for type checkers count, since readers follow them too."""
    graph = grimp.build_graph("visattn", cache_dir=None)
    modules = sorted(graph.modules)
    imports = np.zeros((len(modules), len(modules)), bool)
    for row, module in enumerate(modules):
        imported = graph.find_modules_directly_imported_by(module)
        imports[row, [modules.index(name) for name in imported]] = True
    _, circle = connected_components(imports, connection="strong")
    members = [[modules[i] for i in np.flatnonzero(circle == n)] for n in np.unique(circle)]
    assert {" ".join(names) for names in members if len(names) > 1} == set()


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


def test_tests_have_no_examples() -> None:
    """None would run: to search every test for examples takes each process of pytest seconds."""
    written = [path for path in (ROOT / "tests").rglob("*.py") if path.name != Path(__file__).name]
    example = re.compile(r"^\s*>>> ", re.MULTILINE)
    assert [path.name for path in written if example.search(path.read_text("utf-8"))] == []
