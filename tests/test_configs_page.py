"""The page of the configs names every config, and only classes and files that exist."""

import re
from inspect import isabstract
from itertools import chain
from pathlib import Path

import pytest
import torchvision.datasets
import torchvision.transforms.v2
from classification_data import write_photo_folders
from lightning.pytorch.callbacks import Callback
from task_runs import as_yaml, of

from visattn.cli import main
from visattn.data import Source
from visattn.models.configurable import Configurable
from visattn.training import Task
from visattn.training.data_module import DataModule
from visattn.training.parser import known_classes

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
    assert named - {*classes, *TORCHVISION} == set()


def test_each_class_that_configs_take_is_a_part() -> None:
    kinds = (Task, DataModule, Configurable, Source, Callback)
    taken = {
        name
        for name, each in known_classes().items()
        if issubclass(each, kinds) and each.__module__.startswith("visattn")
        if not isabstract(each)
    }
    assert len(taken) > 40
    assert taken - {*re.findall(r"`([A-Z]\w+)`", PAGE[PAGE.index("## Parts") :])} == set()


def test_the_function_of_the_page_is_a_source_of_photos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "birds_of_the_page.py").write_text(code)
    write_photo_folders(tmp_path, train=3, val=1)
    for split in ("train", "val"):
        photos = sorted((tmp_path / split).rglob("*.jpg"))
        rows = [f"{photo},{photo.parent.name}\n" for photo in photos]
        (tmp_path / f"{split}.csv").write_text("".join(rows))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("VISATTN_TRUST_MODULES", "birds_of_the_page")
    monkeypatch.setattr("sys.argv", ["visattn"])
    task = of("ClassificationTask", classifier=of("AttentionResNet", depth=8, img_size=[24, 28]))
    source = {"source": "birds_of_the_page.birds", "batch_size": 4}
    birds = of("ClassificationData", **source, train_transforms=["RandomInvert"])
    (tmp_path / "birds.yaml").write_text(as_yaml(task, birds, fast_dev_run=1))
    assert main(["fit", "--config", "birds.yaml"]) == 0


def test_named_config_files_exist() -> None:
    named = re.findall(r"configs/\w+\.yaml", PAGE)
    assert len(set(named)) >= 3
    assert all((ROOT / name).is_file() for name in named)
