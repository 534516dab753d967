"""Versions, and the bounds that packages set on each other."""

import pytest
from packaging.requirements import Requirement as TheirRequirement
from packaging.specifiers import SpecifierSet

from visattn.commands.doctor.requirements import installed, requirement, requirements_of, within

VERSIONS = ("2", "2.6", "2.6.6", "2.7.0", "2.15.0+cpu", "8.3.1", "10.0.1")
BOUNDS = (">=2.6.6,<2.7", "==2.15.0", "!=8.3.*,>=5.3.0", ">2.6", "<=2.6.6", "", "==2.6.*", "<10")


@pytest.mark.parametrize("bounds", BOUNDS)
def test_bounds_hold_as_packaging_understands_them(bounds: str) -> None:
    theirs = SpecifierSet(bounds)
    assert {version for version in VERSIONS if within(version, bounds)} == {
        version for version in VERSIONS if version in theirs
    }


@pytest.mark.parametrize(
    "text",
    [
        "torch (>=2.14.0)",
        "pillow (!=8.3.*,>=5.3.0)",
        "jsonargparse[signatures]<5,>=4.52",
        "gdown (>=4.7.3) ; extra == 'gdown'",
        'onnx>=1.17; extra == "onnx"',
        "numpy",
    ],
)
def test_requirements_are_read_as_packaging_reads_them(text: str) -> None:
    ours, theirs = requirement(text), TheirRequirement(text)
    assert ours.name == theirs.name
    assert set(filter(None, ours.bounds.split(","))) == {str(one) for one in theirs.specifier}
    assert (ours.extra in str(theirs.marker)) if theirs.marker else ours.extra == ""


def test_our_own_needs_are_met() -> None:
    needed = [one for one in requirements_of("visattn") if not one.extra]
    assert {"torch", "torchvision", "lightning"} <= {one.name for one in needed}
    assert [one.name for one in needed if not within(installed(one.name), one.bounds)] == []
