"""Labeled images in memory and in folders: augmentation, resizing, classes."""

from pathlib import Path

import pytest
import torch
from classification_data import write_photo_folders
from torch import Tensor

from visattn.data.augment.images import RandomHorizontalFlip, build_augmentation
from visattn.data.classification.datasets import (
    ImageFiles,
    InMemoryImages,
    LabeledBatch,
    list_labeled_files,
)
from visattn.images.reader import ImageError, read_image
from visattn.images.resize import ResizeSpec, resize_to_input

CLASSES = ("daisy", "rose", "tulip")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_photo_folders(tmp_path)
    return tmp_path


def noise(*shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8)


def test_in_memory_images_are_augmented_without_modification() -> None:
    images = noise(7, 1, 3, 5)
    kept = images.clone()
    stored = InMemoryImages(
        images, torch.arange(7), (RandomHorizontalFlip(1.0), build_augmentation("RandomInvert"))
    )
    batch = stored[[5, 2]]
    assert batch.labels.tolist() == [5, 2]
    flipped = kept[[5, 2]].flip(-1)
    for result, plain in zip(batch.images, flipped, strict=True):
        assert torch.equal(result, plain) or torch.equal(result, 255 - plain)
    assert torch.equal(images, kept)
    assert len(stored) == 7


def test_index_beyond_the_end_is_another_augmentation() -> None:
    stored = InMemoryImages(
        noise(7, 3, 9, 11), torch.arange(7), (build_augmentation("RandomTranslate"),), seed=3
    )
    first, later = stored[[5, 2]], stored[[5 + 7, 2 + 14]]
    assert first.labels.tolist() == later.labels.tolist() == [5, 2]
    assert not torch.equal(first.images, later.images)
    assert torch.equal(stored[[2, 6, 5]].images[[2, 0]], first.images)  # in whatever batch
    other = InMemoryImages(stored.images, stored.labels, stored.augmentations, seed=4)
    assert not torch.equal(other[[5, 2]].images, first.images)


def test_augmentation_of_photos_depends_on_the_index(folder: Path) -> None:
    files, labels = list_labeled_files(folder / "train", CLASSES)
    crop = (build_augmentation({"RandomResizedCrop": {"size": [31, 29]}}),)
    photos = ImageFiles(files, labels, ResizeSpec((31, 29)), crop)
    first, later = photos[[4, 1]], photos[[4 + 9, 1]]
    assert later.labels.tolist() == [1, 0]
    assert torch.equal(later.images[1], first.images[1])
    assert not torch.equal(later.images[0], first.images[0])


def test_files_are_listed_class_by_class(folder: Path) -> None:
    files, labels = list_labeled_files(folder / "val", CLASSES)
    assert [f"{file.parent.name}/{file.name}" for file in files] == [
        f"{name}/{index}.jpg" for name in CLASSES for index in range(2)
    ]
    assert labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_photos_are_resized(folder: Path) -> None:
    files, labels = list_labeled_files(folder / "val", CLASSES)
    framing = ResizeSpec((31, 29))
    batch = ImageFiles(files, labels, framing)[[4, 1]]
    for number, result in zip((4, 1), batch.images, strict=True):
        assert torch.equal(result, resize_to_input(read_image(files[number]), framing)[0])
    assert batch.labels.tolist() == [2, 0]


def test_augmented_photos_have_the_input_size(folder: Path) -> None:
    files, labels = list_labeled_files(folder / "train", CLASSES)
    for spec, plain in (
        ("RandomHorizontalFlip", None),
        ({"RandomCrop": {"size": [31, 29]}}, None),
        ({"CenterCrop": {"size": [31, 29]}}, (8, 15)),
    ):
        photos = ImageFiles(files, labels, ResizeSpec((31, 29)), (build_augmentation(spec),))
        result = photos[[0]].images
        assert result.shape == (1, 3, 31, 29)
        if plain:  # images of the right size are not resized again
            top, left = plain
            pixels = torch.from_numpy(read_image(files[0]).pixels.copy()).permute(2, 0, 1)
            cuts = [
                pixels[:, y : y + 31, x : x + 29] for y in (top, top + 1) for x in (left, left + 1)
            ]
            assert any(torch.equal(result[0], cut) for cut in cuts)


def test_unreadable_photo_is_named(folder: Path) -> None:
    files, labels = list_labeled_files(folder / "val", CLASSES)
    files[0].write_bytes(b"no photo")
    with pytest.raises(ImageError, match=r"val/daisy/0\.jpg"):
        _ = ImageFiles(files, labels, ResizeSpec((8, 8)))[[0]]


def test_evaluation_folders_must_have_the_training_classes(folder: Path) -> None:
    with pytest.raises(ValueError, match="val has classes that the training split lacks: tulip"):
        list_labeled_files(folder / "val", CLASSES[:2])
    with pytest.raises(FileNotFoundError, match="val has no photos of yak; photos are .*yak/PHOTO"):
        list_labeled_files(folder / "val", (*CLASSES, "yak"))
    with pytest.raises(FileNotFoundError, match=r"has no class folders; photos are expected as"):
        list_labeled_files(folder / "nowhere", CLASSES)


def test_batch_moves_to_a_device_completely() -> None:
    moved = LabeledBatch(noise(2, 1, 3, 5), torch.arange(2)).to("meta")
    assert moved.images.is_meta
    assert moved.labels.is_meta


def test_evaluation_folders_may_lack_classes_if_that_is_allowed(folder: Path) -> None:
    files, labels = list_labeled_files(
        folder / "val", ("aardvark", *CLASSES, "empty"), allow_missing=True
    )
    expected, plain = list_labeled_files(folder / "val", CLASSES)
    assert (list(files), labels.tolist()) == (list(expected), (plain + 1).tolist())
    (folder / "val" / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="has no photos of empty"):
        list_labeled_files(folder / "val", (*CLASSES, "empty"))
