"""The page of architecture names files and packages that exist, in the order of the imports."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
PACKAGES = re.findall(r"^```text\n(cli\.py.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[0]
NAMED = sorted({*re.findall(r"([\w/]+\.py)\b", PAGE)} - {"net.py"})


@pytest.mark.parametrize("path", NAMED)
def test_files_that_the_page_names_exist(path: str) -> None:
    base = ROOT if path.startswith("tests/") else ROOT / "visattn"
    assert (base / path).is_file(), f"docs/architecture.md names {path}"


@pytest.mark.parametrize("path", sorted({*re.findall(r"\b([a-z]+/[a-z_]+)(?=[ :,\n])", PAGE)}))
def test_modules_in_the_drawing_exist(path: str) -> None:
    module = ROOT / "visattn" / path
    assert module.is_dir() or module.with_suffix(".py").is_file(), path


def test_rooms_stand_in_the_order_in_which_they_may_import() -> None:
    with (ROOT / "pyproject.toml").open("rb") as file:
        contracts = tomllib.load(file)["tool"]["importlinter"]["contracts"]
    layers = next(each["layers"] for each in contracts if each["type"] == "layers")
    rank = {name.strip(): level for level, names in enumerate(layers) for name in names.split("|")}
    packages = re.findall(r"(?:^|(?<=  ))([a-z]+)/(?=  )", PACKAGES, re.MULTILINE)
    assert {*packages} == {*rank} - {"__main__", "cli"}
    assert [rank[package] for package in packages] == sorted(rank[package] for package in packages)
