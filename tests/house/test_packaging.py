"""Packaging metadata is consistent."""

import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIRED = [*PROJECT["dependencies"], *chain(*PROJECT["optional-dependencies"].values())]


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


@pytest.mark.parametrize("text", REQUIRED, ids=lambda text: Requirement(text).name)
def test_every_requirement_is_bounded_and_pinned_within_its_bounds(text: str) -> None:
    requirement = Requirement(text)
    assert requirement.specifier
    assert requirement.specifier.contains(pins()[canonicalize_name(requirement.name)])


def test_torch_and_torchvision_are_pinned_as_the_tested_pair() -> None:
    assert (pins()["torch"], pins()["torchvision"]) == ("2.15.0", "0.29.2")


def test_changelog_has_the_current_version() -> None:
    headings = re.findall(r"^## \[([^]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    released = [heading for heading in headings if heading != "Unreleased"]
    assert released[0] == PROJECT["version"]


def test_package_has_a_py_typed_marker() -> None:
    assert (ROOT / "visattn" / "py.typed").exists()
