"""Pictures with classes: from memory or from folders, changed for training, framed to fit."""

from pathlib import Path

import pytest
import torch
from class_miniatures import write_photo_folders
from torch import Tensor

from visattn.data.augmentations import Mirror, augmentation
from visattn.data.framings import Framing, frame
from visattn.data.labelled_pictures import (
    FramedPhotos,
    HeldPictures,
    LabelledBatch,
    labelled_files,
)
from visattn.data.pictures import PictureError, read_picture

CLASSES = ("daisy", "rose", "tulip")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_photo_folders(tmp_path)
    return tmp_path


def noise(*shape: int) -> Tensor:
    return torch.randint(256, shape, dtype=torch.uint8)


def test_held_pictures_are_changed_and_stay_as_they_are() -> None:
    pictures = noise(7, 1, 3, 5)
    kept = pictures.clone()
    held = HeldPictures(pictures, torch.arange(7), (Mirror(1.0), augmentation("RandomInvert")))
    batch = held[[5, 2]]
    assert batch.labels.tolist() == [5, 2]
    flipped = kept[[5, 2]].flip(-1)
    for found, plain in zip(batch.pictures, flipped, strict=True):
        assert torch.equal(found, plain) or torch.equal(found, 255 - plain)
    assert torch.equal(pictures, kept)
    assert len(held) == 7


def test_a_number_behind_the_last_is_a_picture_changed_in_another_way() -> None:
    held = HeldPictures(noise(7, 3, 9, 11), torch.arange(7), (augmentation("Shift"),), seed=3)
    first, later = held[[5, 2]], held[[5 + 7, 2 + 14]]
    assert first.labels.tolist() == later.labels.tolist() == [5, 2]
    assert not torch.equal(first.pictures, later.pictures)
    assert torch.equal(held[[2, 6, 5]].pictures[[2, 0]], first.pictures)  # in whatever batch
    other = HeldPictures(held.pictures, held.labels, held.augmentations, seed=4)
    assert not torch.equal(other[[5, 2]].pictures, first.pictures)


def test_photos_are_changed_by_their_number(folder: Path) -> None:
    files, labels = labelled_files(folder / "train", CLASSES)
    crop = (augmentation({"RandomResizedCrop": {"size": [31, 29]}}),)
    photos = FramedPhotos(files, labels, Framing((31, 29)), crop)
    first, later = photos[[4, 1]], photos[[4 + 9, 1]]
    assert later.labels.tolist() == [1, 0]
    assert torch.equal(later.pictures[1], first.pictures[1])
    assert not torch.equal(later.pictures[0], first.pictures[0])


def test_files_are_listed_class_by_class(folder: Path) -> None:
    files, labels = labelled_files(folder / "val", CLASSES)
    assert [f"{file.parent.name}/{file.name}" for file in files] == [
        f"{name}/{index}.jpg" for name in CLASSES for index in range(2)
    ]
    assert labels.tolist() == [0, 0, 1, 1, 2, 2]


def test_photos_are_framed(folder: Path) -> None:
    files, labels = labelled_files(folder / "val", CLASSES)
    framing = Framing((31, 29))
    batch = FramedPhotos(files, labels, framing)[[4, 1]]
    for number, found in zip((4, 1), batch.pictures, strict=True):
        assert torch.equal(found, frame(read_picture(files[number]), framing)[0])
    assert batch.labels.tolist() == [2, 0]


def test_augmented_photos_come_in_the_size_of_the_network(folder: Path) -> None:
    files, labels = labelled_files(folder / "train", CLASSES)
    for spec, plain in (
        ("Mirror", None),
        ({"RandomCrop": {"size": [31, 29]}}, None),
        ({"CenterCrop": {"size": [31, 29]}}, (8, 15)),
    ):
        photos = FramedPhotos(files, labels, Framing((31, 29)), (augmentation(spec),))
        found = photos[[0]].pictures
        assert found.shape == (1, 3, 31, 29)
        if plain:  # what fits already is not framed again
            top, left = plain
            pixels = torch.from_numpy(read_picture(files[0]).pixels.copy()).permute(2, 0, 1)
            cuts = [
                pixels[:, y : y + 31, x : x + 29] for y in (top, top + 1) for x in (left, left + 1)
            ]
            assert any(torch.equal(found[0], cut) for cut in cuts)


def test_a_broken_photo_is_named(folder: Path) -> None:
    files, labels = labelled_files(folder / "val", CLASSES)
    files[0].write_bytes(b"no photo")
    with pytest.raises(PictureError, match=r"val/daisy/0\.jpg"):
        _ = FramedPhotos(files, labels, Framing((8, 8)))[[0]]


def test_folders_hold_the_classes_that_training_has(folder: Path) -> None:
    with pytest.raises(ValueError, match="val has classes that training has not: tulip"):
        labelled_files(folder / "val", CLASSES[:2])
    with pytest.raises(FileNotFoundError, match="yak does not exist"):
        labelled_files(folder / "val", (*CLASSES, "yak"))
    with pytest.raises(FileNotFoundError, match=r"holds no folders; photos are expected as"):
        labelled_files(folder / "nowhere", CLASSES)


def test_a_batch_moves_as_a_whole() -> None:
    moved = LabelledBatch(noise(2, 1, 3, 5), torch.arange(2)).to("meta")
    assert moved.pictures.is_meta
    assert moved.labels.is_meta
