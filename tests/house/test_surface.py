"""Public names: exported lazily, each with an executed example."""

import doctest
import importlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch import nn

import visattn

PACKAGE = Path(visattn.__file__).parent
CORE = ("functional", "blocks")

UNTRACEABLE = {"visattn.testing.export.compiles"}
"""What cannot run while shapes are checked, as all examples do."""


def has_example(thing: object) -> bool:
    return any(test.examples for test in doctest.DocTestFinder().find(thing, name="it"))


def is_worth_an_example(thing: object) -> bool:
    """Functions and modules; result records and protocols are shown where they are used."""
    return inspect.isfunction(thing) or (inspect.isclass(thing) and issubclass(thing, nn.Module))


def public_things(room: str) -> Iterator[tuple[str, object]]:
    """The public names of a package: those of `__all__` if there is one."""
    for path in sorted((PACKAGE / room).rglob("*.py")):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        module = importlib.import_module(".".join(parts).removesuffix(".__init__"))
        listed = importlib.import_module(f"visattn.{room}").__all__
        for name, thing in vars(module).items():
            ours = getattr(thing, "__module__", None) == module.__name__
            if ours and name in listed and is_worth_an_example(thing):
                yield f"{module.__name__}.{name}", thing


@pytest.mark.parametrize("name", visattn.__all__)
def test_every_public_name_has_an_example(name: str) -> None:
    assert has_example(getattr(visattn, name))


@pytest.mark.parametrize("room", CORE)
def test_every_function_and_block_of_the_core_has_an_example(room: str) -> None:
    without = {name for name, thing in public_things(room) if not has_example(thing)}
    assert without <= UNTRACEABLE


def test_no_example_is_skipped() -> None:
    skip = "doctest: +" + "SKIP"
    assert [path for path in PACKAGE.rglob("*.py") if skip in path.read_text()] == []


def stubs() -> list[Path]:
    return sorted(PACKAGE.rglob("__init__.pyi"))


def test_every_package_exports_the_names_of_its_stub() -> None:
    for stub in stubs():
        name = ".".join(stub.parent.relative_to(PACKAGE.parent).parts)
        room = importlib.import_module(name)
        assert [n for n in room.__all__ if not hasattr(room, n)] == [], name
        assert room.__all__, name


def test_a_name_has_one_short_import_path() -> None:
    assert {path.parent.parent for path in stubs()} <= {PACKAGE, PACKAGE.parent}


def test_dir_lists_names_before_loading() -> None:
    assert {*visattn.__all__, "__version__"} <= set(dir(visattn))


def test_names_are_cached_after_the_first_lookup() -> None:
    assert visattn.Geometry is vars(visattn)["Geometry"]


def test_misspelled_name_gets_suggestions() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'overlai'; did you mean overlay\?"):
        _ = visattn.overlai  # pyright: ignore[reportAttributeAccessIssue]


def test_unrelated_name_gets_no_suggestion() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'zzz'; dir\(visattn\) lists all"):
        _ = visattn.zzz  # pyright: ignore[reportAttributeAccessIssue]
