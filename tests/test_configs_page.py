"""The page of the configs names every config, and only classes and files that exist."""

import re
from itertools import chain
from pathlib import Path
from typing import Any

import torchvision.datasets
import torchvision.transforms.v2
from classification_data import write_photo_folders

from visattn.training.data_module import InputSpec

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


def test_the_data_module_of_the_page_reads_photos(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(code, names)
    write_photo_folders(tmp_path, train=3, val=1)
    for split in ("train", "val"):
        photos = sorted((tmp_path / split).rglob("*.jpg"))
        rows = [f"{photo},{photo.parent.name}\n" for photo in photos]
        (tmp_path / f"{split}.csv").write_text("".join(rows))
    files = (str(tmp_path / "train.csv"), str(tmp_path / "val.csv"))
    data = names["CsvDataModule"](*files, batch_size=4, train_transforms=["RandomHorizontalFlip"])
    data.input_spec = InputSpec((24, 28), (0.5,) * 3, (0.5,) * 3)
    data.setup("fit")
    assert data.data_info == {"class_names": ["daisy", "rose", "tulip"]}
    assert [len(batch.labels) for batch in data.train_dataloader()] == [4, 4]
    (batch,) = data.val_dataloader()
    assert batch.labels.tolist() == [0, 1, 2]
    assert batch.images.shape == (3, 3, 24, 28)
    assert data.count_targets("train")[1].total() == 9


def test_named_config_files_exist() -> None:
    named = re.findall(r"configs/\w+\.yaml", PAGE)
    assert len(set(named)) >= 3
    assert all((ROOT / name).is_file() for name in named)
