"""The page of the configs names every config, and only classes and files that exist."""

import re
from itertools import chain
from pathlib import Path

import torchvision.datasets
import torchvision.transforms.v2

ROOT = Path(__file__).resolve().parent.parent
PAGE = (ROOT / "configs" / "README.md").read_text()
TORCHVISION = dir(torchvision.datasets) + dir(torchvision.transforms.v2)


def expanded(name: str) -> list[str]:
    """Return the names that a name with alternatives in braces abbreviates."""
    match = re.fullmatch(r"(\w*)\{([\w,]+)\}", name)
    return [match[1] + end for end in match[2].split(",")] if match else [name]


def test_each_config_has_a_row_and_each_row_a_config() -> None:
    rows = re.findall(r"^\| (`[a-z].*?) \|", PAGE, re.MULTILINE)
    named = [expanded(name) for row in rows for name in re.findall(r"`([^`]+)`", row)]
    assert sorted(chain(*named)) == sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))


def test_named_classes_exist() -> None:
    source = "\n".join(path.read_text() for path in (ROOT / "visattn").rglob("*.py"))
    classes = re.findall(r"^class (\w+)", source, re.MULTILINE)
    named = set(re.findall(r"`([A-Z]\w+)`", PAGE[PAGE.index("## Parts") :]))
    assert len(named) > 15
    assert named - {*classes, *TORCHVISION} == set()


def test_named_config_files_exist() -> None:
    named = re.findall(r"configs/\w+\.yaml", PAGE)
    assert len(set(named)) >= 4
    assert all((ROOT / name).is_file() for name in named)
