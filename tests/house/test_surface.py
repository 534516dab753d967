"""Public names: exported lazily, and what pages import."""

import ast
import importlib
import json
import re
from collections.abc import Iterator
from inspect import isfunction
from pathlib import Path

import pytest

import visattn

PACKAGE = Path(visattn.__file__).parent
STUBS = sorted(PACKAGE.rglob("__init__.pyi"))
PACKAGES = [".".join(stub.parent.relative_to(PACKAGE.parent).parts) for stub in STUBS]
ALLOWED = {
    "add_a_block.md: visattn.blocks.base.Block",
    "add_a_block.md: visattn.blocks.base.BlockInfo",
    "add_a_block.md: visattn.blocks.tap.Tap",
    "captions.md: visattn.models.captioning.captioner.AttentionStep",
    "captions.md: visattn.models.captioning.captioner.RecurrentDecoder",
    "captions.md: visattn.models.captioning.captioner.RecurrentState",
}
"""What pages import by a module path: what a file of this package imports."""


def test_every_package_exports_the_names_of_its_stub() -> None:
    for name in PACKAGES:
        package = importlib.import_module(name)
        assert [n for n in package.__all__ if not hasattr(package, n)] == [], name
        assert package.__all__, name


def documented_code() -> Iterator[tuple[str, str]]:
    """Where README, pages and notebooks show Python, and what."""
    root = PACKAGE.parent
    fence = re.compile(r"```(?:python|pycon|\{testcode\})[^\n]*\n(.*?)```", re.DOTALL)
    pages = [*(root / "docs").glob("*.md"), *(root / "docs" / "guides").glob("*.md")]
    for path in [root / "README.md", *sorted(pages)]:
        for match in fence.finditer(path.read_text(encoding="utf-8")):
            lines = re.findall(r"^(?:>>> |\.\.\. )(.*)$", match[1], re.MULTILINE)
            yield path.name, "\n".join(lines) if lines else match[1]
    for path in sorted((root / "notebooks").glob("*.ipynb")):
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
            if cell["cell_type"] == "code":
                yield path.name, "".join(cell["source"])


def test_pages_and_notebooks_import_public_names_only() -> None:
    public = {package: set(importlib.import_module(package).__all__) for package in PACKAGES}
    hidden: set[str] = set()
    for place, code in documented_code():
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("visattn"):
                names = {alias.name for alias in node.names} - public.get(node.module or "", set())
                hidden |= {f"{place}: {node.module}.{name}" for name in names}
    assert hidden <= ALLOWED


def test_blocks_and_public_functions_have_an_executed_example() -> None:
    without: set[str] = set()
    for name in PACKAGES:
        package = importlib.import_module(name)
        for public in (getattr(package, each) for each in package.__all__):
            if isfunction(public) or name == "visattn.blocks":
                without |= {public.__name__} if ">>>" not in (public.__doc__ or "") else set()
    # load_blocks is in the example of save_blocks; pandas and axes are in the pages.
    assert without <= {"load_blocks", "word_table", *importlib.import_module("visattn.viz").__all__}


def test_no_module_hides_a_public_name() -> None:
    """An imported module is an attribute of its package, and would stand in place of the name."""
    for stub in STUBS:
        if stub.parent != PACKAGE:
            package = importlib.import_module(f"visattn.{stub.parent.name}")
            assert not {path.stem for path in stub.parent.iterdir()} & set(package.__all__), package


def test_a_name_has_one_short_import_path() -> None:
    assert {path.parent.parent for path in STUBS} <= {PACKAGE, PACKAGE.parent}
    names = [name for package in PACKAGES for name in importlib.import_module(package).__all__]
    assert sorted(set(names)) == sorted(names)


def test_dir_lists_names_before_loading_and_a_lookup_keeps_them() -> None:
    assert {*visattn.__all__, "__version__"} <= set(dir(visattn))
    assert visattn.Geometry is vars(visattn)["Geometry"]


def test_unknown_names_get_suggestions() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'overlai'; did you mean overlay\?"):
        _ = visattn.overlai  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(AttributeError, match=r"no attribute 'zzz'; dir\(visattn\) lists all"):
        _ = visattn.zzz  # pyright: ignore[reportAttributeAccessIssue]
