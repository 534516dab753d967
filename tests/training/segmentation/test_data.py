"""Data modules of segmentation: splits, classes, refused arguments."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from segmentation_data import write_instances, write_mask_folder

from visattn.models.base import SmallEncoder
from visattn.training.data_module import InputSpec
from visattn.training.segmentation.data import (
    CocoSegmentationDataModule,
    MaskFolderDataModule,
    SceneSegmentationDataModule,
    SegmentationDataModule,
)


def spec(*size: int) -> InputSpec:
    return InputSpec((size[0], size[1]), (0.5,) * 3, (0.5,) * 3)


def batches(data: SegmentationDataModule, stage: str) -> list[torch.Tensor]:
    data.setup(stage)
    loaders = [data.train_dataloader()] if stage == "fit" else data.test_dataloader()
    return [batch.labels for loader in loaders for batch in loader]


def test_scenes_have_two_test_sets_of_their_own() -> None:
    data = SceneSegmentationDataModule(train=8, val=3, test=5, image_size=32, batch_size=4)
    data.input_spec = spec(32, 32)
    assert data.data_info["class_names"][:2] == ["background", "circle"]
    assert sum(map(len, batches(data, "fit"))) == 8
    assert sum(map(len, batches(data, "test"))) == 10
    assert len(data.example_batch(9).images) == 3


def test_folder_is_split_by_a_fraction(tmp_path: Path) -> None:
    write_mask_folder(tmp_path, 5)
    folders = (str(tmp_path / "images"), str(tmp_path / "masks"))
    data = MaskFolderDataModule(
        *folders,
        ["background", "pet"],
        class_map={1: 1, 2: 0, 3: 255},
        val_fraction=0.4,
        batch_size=3,
    )
    data.input_spec = spec(31, 47)
    files = {split: data._files(split) for split in ("train", "validation", "test")}
    assert (len(files["train"]), len(files["validation"])) == (3, 2)
    assert not set(files["train"]) & set(files["validation"])
    assert files["test"] == files["validation"]
    (labels,) = batches(data, "fit")
    assert labels.unique().tolist() == [0, 1, 255]


def test_folders_per_split(tmp_path: Path) -> None:
    for split, count in (("train", 3), ("val", 2), ("held_out", 1)):
        write_mask_folder(tmp_path / split, count)
    paths = (f"{tmp_path}/{{split}}/images", f"{tmp_path}/{{split}}/masks")
    data = MaskFolderDataModule(*paths, ["a", "b", "c", "d"], test="held_out")
    data.input_spec = spec(31, 47)
    counts = [len(data.open_dataset(split)) for split in ("train", "validation", "test")]
    assert counts == [3, 2, 1]


def test_coco_classes_are_the_categories_after_the_background(tmp_path: Path) -> None:
    for split, count in (("train2017", 4), ("val2017", 2)):
        file = write_instances(tmp_path, split, count)
    pattern = str(file).replace("val2017", "{split}2017")
    data = CocoSegmentationDataModule(pattern, batch_size=2)
    data.input_spec = spec(40, 52)
    assert data.class_names == ("background", "cat", "dog")
    assert sum(map(len, batches(data, "fit"))) == 4
    assert sum(map(len, batches(data, "test"))) == 2
    assert CocoSegmentationDataModule(pattern, categories=["dog"]).class_names[1:] == ("dog",)
    with pytest.raises(ValueError, match="has no category 'bird'"):
        CocoSegmentationDataModule(pattern, categories=["bird"])


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        SceneSegmentationDataModule(batch_size=0)
    with pytest.raises(ValueError, match="both images and masks have {split} or neither"):
        MaskFolderDataModule("a/{split}", "b", ["background", "cat"])
    data = SceneSegmentationDataModule(image_size=32)
    data.input_spec = replace(spec(32, 32), encoder=SmallEncoder((32, 32), channels=8))
    with pytest.raises(TypeError, match="needs a task that trains a dense model"):
        data.setup("fit")
    data.input_spec = spec(64, 64)
    with pytest.raises(ValueError, match=r"the model reads images of \(64, 64\) pixels"):
        data.setup("fit")
