"""Data modules of detection: splits, classes, transforms, refused arguments."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from visattn.images.reader import ImageError
from visattn.training.data_module import InputSpec
from visattn.training.detection.data import (
    CocoDetectionDataModule,
    DetectionDataModule,
    ScenesDetectionDataModule,
)

SPEC = InputSpec((31, 47), (0.5,) * 3, (0.5,) * 3)


def samples(data: DetectionDataModule, stage: str) -> list[Any]:
    data.setup(stage)
    loaders = [data.train_dataloader()] if stage == "fit" else data.test_dataloader()
    return [sample for loader in loaders for batch in loader for sample in batch.samples]


def write_coco(folder: Path) -> str:
    """Write three photos: a cat, a cat and a crowd of dogs, and nothing."""
    (folder / "photos").mkdir()
    cat = {"category_id": 7, "bbox": [2, 3, 10, 8], "area": 80.0, "iscrowd": 0}
    cat["segmentation"] = [[2, 3, 12, 3, 12, 11, 2, 11]]
    dogs = {"category_id": 9, "bbox": [20, 5, 10, 10], "area": 100.0, "iscrowd": 1}
    dogs["segmentation"] = {"size": [20, 40], "counts": [405, 5, 390]}
    annotations = [{**cat, "image_id": 1}, {**cat, "image_id": 2}, {**dogs, "image_id": 2}]
    for number in (1, 2, 3):
        pixels = np.full((20, 40, 3), 50 * number, np.uint8)
        Image.fromarray(pixels).save(folder / "photos" / f"{number}.png")
    content = {
        "images": [
            {"id": number, "file_name": f"{number}.png", "height": 20, "width": 40}
            for number in (1, 2, 3)
        ],
        "annotations": [{**each, "id": number} for number, each in enumerate(annotations)],
        "categories": [{"id": 9, "name": "dog"}, {"id": 7, "name": "cat"}],
    }
    (folder / "instances.json").write_text(json.dumps(content))
    return str(folder / "instances.json")


def test_scenes_have_three_splits_and_boxes_of_their_pixels() -> None:
    data = ScenesDetectionDataModule(train=8, val=3, test=5, image_size=32, batch_size=4)
    assert data.data_info["class_names"][0] == "circle"
    assert len(samples(data, "fit")) == 8
    tested = samples(data, "test")
    assert len(tested) == len({sample.id for sample in tested}) == 5
    region = tested[0].region
    for mask, (left, top, right, bottom) in zip(
        region.object_masks, region.boxes.tolist(), strict=True
    ):
        rows, columns = torch.where(mask)
        edges = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1)
        assert (left, top, right, bottom) == tuple(map(int, edges))
    assert [image.shape for image in data.examples(2)] == [(32, 32, 3)] * 2


def test_only_training_images_are_transformed() -> None:
    flip: Any = [{"RandomHorizontalFlip": {"p": 1.0}}]
    options: dict[str, Any] = {"train": 3, "val": 3, "test": 3, "image_size": 32}
    plain = ScenesDetectionDataModule(**options)
    flipped = ScenesDetectionDataModule(**options, train_transforms=flip)
    splits: Any = (("train", False), ("validation", True), ("test", True))
    for split, same in splits:
        normal, mirrored = (data.open_dataset(split)[0].region for data in (plain, flipped))
        assert torch.equal(normal.image, mirrored.image) == same, split
        expected_image = normal.image if same else normal.image.flip(2)
        assert torch.equal(expected_image, mirrored.image), split
        left, right = normal.boxes[:, 0], normal.boxes[:, 2]
        expected = left if same else 32 - right
        assert torch.equal(mirrored.boxes[:, 0], expected), split


def test_coco_photos_keep_crowds_and_photos_without_objects(tmp_path: Path) -> None:
    file = write_coco(tmp_path)
    photos = str(tmp_path / "photos")
    data = CocoDetectionDataModule(
        train=file, val=file, train_images=photos, val_images=photos, batch_size=3
    )
    assert data.class_names == ("cat", "dog")
    with pytest.raises(TypeError, match="needs a task that trains a dense model"):
        data.setup("fit")
    data.input_spec = SPEC
    assert len(samples(data, "fit")) == 3
    first, second, empty = samples(data, "test")
    assert first.true_boxes.tolist() == [[2.0, 3.0, 12.0, 11.0]]
    assert (second.labels.tolist(), second.crowd.tolist()) == ([0, 1], [False, True])
    assert tuple(empty.region.image.shape) == (3, 31, 47)
    assert len(empty.labels) == 0
    scale = 47 / 40  # padded above and below
    left, top, right, _ = first.region.boxes[0].tolist()
    assert (left, right) == pytest.approx((2 * scale, 12 * scale), abs=1e-3)
    assert top == pytest.approx(3 * scale + (31 - 20 * scale) / 2, abs=1)


def test_unreadable_training_photos_are_replaced_with_a_warning(tmp_path: Path) -> None:
    file = write_coco(tmp_path)
    photos = str(tmp_path / "photos")
    (tmp_path / "photos" / "2.png").write_bytes(b"no photo")
    for on_error in ("raise", "substitute"):
        data = CocoDetectionDataModule(
            train=file,
            val=file,
            train_images=photos,
            val_images=photos,
            on_error=on_error,
            batch_size=3,
        )
        data.input_spec = SPEC
        data.setup("fit")
        if on_error == "raise":
            with pytest.raises(ImageError, match=r"2\.png: not an image"):
                list(data.train_dataloader())
    assert data.count_targets("train")[1].total() == 2
    first, replaced, last = (data.datasets["train"][index] for index in range(3))
    assert replaced.id in (first.id, last.id)
    with pytest.warns(UserWarning, match=r"1 training images could .*2\.png"):
        data.teardown("fit")
    with pytest.raises(ImageError, match=r"2\.png: not an image"):  # scores would change
        list(data.val_dataloader())


def test_batches_of_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        ScenesDetectionDataModule(batch_size=0)
