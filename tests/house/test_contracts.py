"""Contracts of the source: directions of imports, names, packaging metadata."""

import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import grimp
import numpy as np
import pytest
from importlinter.cli import lint_imports
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from scipy.sparse.csgraph import connected_components

ROOT = Path(__file__).resolve().parents[2]
OURS = sorted(chain((ROOT / "visattn").rglob("*.py"), (ROOT / "tools").rglob("*.py")))
FOLDERS = ("visattn", "tests", "tools", "configs", "notebooks", ".ci")
TEXT = {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".ipynb", ".cfg", ".json", ""}


def texts() -> Iterator[Path]:
    inside = chain.from_iterable((ROOT / folder).rglob("*") for folder in FOLDERS)
    for path in chain(inside, ROOT.iterdir()):
        if path.is_file() and path.suffix in TEXT and not {"__pycache__", ".git"} & {*path.parts}:
            yield path


def test_imports_run_downwards(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert lint_imports(no_cache=True) == 0
    assert "4 kept, 0 broken" in capsys.readouterr().out


def test_class_names_are_unique() -> None:
    """Training files name classes by their short names."""
    start = re.compile(r"^class (\w+)", re.MULTILINE)
    names = [name for path in OURS for name in start.findall(path.read_text())]
    assert [name for name, count in Counter(names).items() if count > 1] == []


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


PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIRED = [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]


@pytest.mark.parametrize("text", REQUIRED, ids=lambda text: Requirement(text).name)
def test_every_requirement_is_bounded_and_pinned_within_its_bounds(text: str) -> None:
    requirement = Requirement(text)
    assert requirement.specifier
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    pins = {canonicalize_name(name): version for name, version in pairs}
    assert requirement.specifier.contains(pins[canonicalize_name(requirement.name)])


def test_changelog_has_the_current_version() -> None:
    headings = re.findall(r"^## \[([^]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert released[0] == PROJECT["version"]


def test_package_has_a_py_typed_marker() -> None:
    assert (ROOT / "visattn" / "py.typed").exists()
