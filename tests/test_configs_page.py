"""Story: what the page beside the configs says is so."""

import re
from itertools import chain
from pathlib import Path

import torchvision.datasets
import torchvision.transforms.v2

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "configs" / "README.md").read_text()
OTHERS = dir(torchvision.datasets) + dir(torchvision.transforms.v2)


def expanded(name: str) -> list[str]:
    """Return the names that one with alternatives in braces stands for."""
    found = re.fullmatch(r"(\w*)\{([\w,]+)\}", name)
    return [found[1] + end for end in found[2].split(",")] if found else [name]


def test_each_config_has_a_row_and_each_row_a_config() -> None:
    rows = re.findall(r"^\| (`[a-z].*?) \|", PAGE, re.MULTILINE)
    named = [expanded(name) for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert sorted(chain(*named)) == sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))


def test_each_part_that_is_named_exists() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "visattn").rglob("*.py"))
    ours = re.findall(r"^class (\w+)", source, re.MULTILINE)
    named = set(re.findall(r"`([A-Z]\w+)`", PAGE[PAGE.index("## Parts") :]))
    assert len(named) > 15
    assert named - {*ours, *OTHERS} == set()


def test_commands_name_files_that_are_there() -> None:
    named = re.findall(r"configs/\w+\.yaml", PAGE)
    assert len(set(named)) >= 4
    assert all((ROOT / name).is_file() for name in named)
