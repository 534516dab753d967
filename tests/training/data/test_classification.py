"""Images with classes as data: which images come, in which part, changed how."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from class_miniatures import (
    believe_miniatures,
    write_cifar,
    write_digits,
    write_photo_folders,
)

from visattn.data.classification.datasets import FramedPhotos
from visattn.data.images.reader import ImageError
from visattn.models.resnet.attention_resnet import AttentionResNet
from visattn.training.data.folder import FolderDataModule
from visattn.training.data.torchvision import TorchvisionDataModule
from visattn.training.tasks.classification import ClassificationTask


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    write_digits(tmp_path)
    return tmp_path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_photo_folders(tmp_path, train=7)
    return tmp_path


def bright_row(image: torch.Tensor) -> int:
    return (int(image[0].float().mean(1).argmax()) - 4) // 2


def test_digits_keep_their_labels_through_every_part(digits: Path) -> None:
    data = TorchvisionDataModule("MNIST", root=str(digits), validation=5, batch=6)
    assert data.data_info == {"classes": list("0123456789")}
    data.setup("fit")
    data.setup("test")
    counts = {}
    for split, loader in (
        ("train", data.train_dataloader()),
        ("validation", data.val_dataloader()),
        ("test", data.test_dataloader()),
    ):
        seen = [pair for batch in loader for pair in zip(*batch, strict=True)]
        counts[split] = len(seen)
        assert all(bright_row(image) == int(label) for image, label in seen)
    assert counts == {"train": 18, "validation": 5, "test": 11}


def test_the_split_is_made_by_its_seed_alone(digits: Path) -> None:
    def split(**options: Any) -> tuple[list[int], list[int]]:
        data = TorchvisionDataModule("MNIST", root=str(digits), validation=5, **options)
        data.setup("fit")
        return tuple(data.parts[name].labels.tolist() for name in ("train", "validation"))  # type: ignore[return-value]

    train, validation = split()
    every = sorted(index * 7 % 10 for index in range(23))
    assert sorted(train + validation) == every
    assert split(seed=1) == (train, validation)
    assert split(split_seed=1) != (train, validation)


def test_the_test_part_is_opened_by_the_test_alone(
    digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("images-idx3", "labels-idx1"):
        (digits / "MNIST" / "raw" / f"t10k-{name}-ubyte").write_bytes(b"broken")
    data = TorchvisionDataModule("MNIST", root=str(digits), validation=5)
    data.setup("fit")
    data.setup("validate")
    with pytest.raises(ValueError, match=r"t10k-images-idx3-ubyte is no IDX file of bytes"):
        data.setup("test")


def test_distorted_images_are_the_same_each_time_but_for_training(digits: Path) -> None:
    distort = {"degrees": 45, "scale": [0.7, 1.2], "shift": 0.1, "canvas": [42, 40]}
    made = [
        TorchvisionDataModule("MNIST", root=str(digits), validation=5, batch=6, distort=distort)
        for _ in range(2)
    ]
    held = []
    for data in made:
        data.setup("fit")
        held.append(next(iter(data.val_dataloader())).images)
    assert held[0].shape == (5, 1, 42, 40)
    assert torch.equal(*held)
    train = made[0].parts["train"]
    assert torch.equal(train[[0]].images, train[[0]].images)
    assert not torch.equal(train[[0]].images, train[[18]].images)  # in the next epoch


def test_cifar_has_three_channels_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar(tmp_path)
    believe_miniatures(monkeypatch)
    data = TorchvisionDataModule("CIFAR10", root=str(tmp_path), validation=3, batch=4)
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert batch.images.shape == (4, 3, 32, 32)
    for image, label in zip(*batch, strict=True):
        assert torch.equal(image[0], torch.arange(32, dtype=torch.uint8).expand(32, 32))
        assert (image[1] == 20 * label).all()
    assert data.data_info["classes"][:2] == ["kind0", "kind1"]


def test_missing_files_are_missed_in_words(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"does not hold MNIST .* --data\.download true"):
        TorchvisionDataModule("MNIST", root=str(tmp_path))


def test_something_must_be_left_to_train_on(digits: Path) -> None:
    with pytest.raises(ValueError, match="at least 1 of 23 images and not all, got 23"):
        TorchvisionDataModule("MNIST", root=str(digits), validation=23)


def test_examples_are_color_arrays(digits: Path) -> None:
    data = TorchvisionDataModule("MNIST", root=str(digits), validation=5)
    shown = data.examples(99)
    assert [image.shape for image in shown] == [(28, 28, 3)] * 5


def folder_data(root: Path, **options: Any) -> FolderDataModule:
    """Data that belong to a task whose network takes 24 x 24 pixels."""
    data = FolderDataModule(str(root), batch=4, **options)
    task = ClassificationTask(
        lambda classes: AttentionResNet(classes, depth=8, width=4, size=(24, 24)), data.data_info
    )
    data.trainer = SimpleNamespace(  # pyright: ignore[reportAttributeAccessIssue]
        lightning_module=task, global_rank=0, world_size=1
    )
    return data


def test_photos_come_in_the_size_of_the_network(photos: Path) -> None:
    data = folder_data(photos, augment=["RandomHorizontalFlip"])
    assert data.data_info == {"classes": ["daisy", "rose", "tulip"]}
    data.setup("fit")
    assert next(iter(data.train_dataloader())).images.shape == (4, 3, 24, 24)
    assert len(data.parts["validation"]) == 6
    data.setup("test")  # where there are no test photos, those for validation
    assert len(data.parts["test"]) == 6
    assert data.examples(2)[0].shape == (24, 24, 3)


def test_photos_are_set_aside_where_there_are_none_for_validation(photos: Path) -> None:
    data = folder_data(photos, validation=None, held_out=0.3, test="val")
    data.setup("fit")
    data.setup("test")
    train, aside, test = (data.parts[name] for name in ("train", "validation", "test"))
    assert aside.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert train.labels.tolist() == [number for number in range(3) for _ in range(5)]
    files = [set(part.files) for part in (train, aside, test)]  # pyright: ignore[reportAttributeAccessIssue]
    assert len(set.union(*files)) == 21 + 6
    again = folder_data(photos, validation=None, held_out=0.3, seed=9)
    again.setup("fit")
    assert set(again.parts["train"].files) == files[0]  # pyright: ignore[reportAttributeAccessIssue]


def test_photos_want_a_classifier(photos: Path) -> None:
    with pytest.raises(TypeError, match="for a task that trains a classifier"):
        FolderDataModule(str(photos)).setup("fit")
    with pytest.raises(ValueError, match="held_out must lie between 0 and 1, got 1"):
        FolderDataModule(str(photos), held_out=1)
    with pytest.raises(ValueError, match="batch must be at least 1, got 0"):
        FolderDataModule(str(photos), batch=0)


def test_damaged_digits_are_named(digits: Path) -> None:
    folder = digits / "MNIST" / "raw"
    images, labels = folder / "train-images-idx3-ubyte", folder / "train-labels-idx1-ubyte"
    whole, told = images.read_bytes(), labels.read_bytes()
    for path, content, reason in (
        (images, whole[:-1], r"train-images-idx3-ubyte has .* bytes; of 23 x 28 x 28 it must"),
        (images, whole[:9], r"train-images-idx3-ubyte has 9 bytes"),
        (images, b"<html>404</html>", r"train-images-idx3-ubyte is no IDX file .* 3c 68 74 6d"),
        (labels, told[:7] + bytes([22]) + told[8:30], r"23 images and train-labels.* 22 classes"),
        (labels, told[:-1] + bytes([10]), r"train-labels-idx1-ubyte names class 10; there are 10"),
    ):
        images.write_bytes(whole)
        labels.write_bytes(told)
        path.write_bytes(content)
        with pytest.raises(ValueError, match=reason):
            TorchvisionDataModule("MNIST", root=str(digits), validation=5)


def test_what_torchvision_cannot_understand_is_said_in_words(digits: Path) -> None:
    processed = digits / "MNIST" / "processed"  # as old versions kept them
    processed.mkdir()
    for name in ("training.pt", "test.pt"):
        (processed / name).write_bytes(b"no pickle")
    with pytest.raises(ValueError, match=r"MNIST in .* is damaged \(.*\); fetch it anew"):
        TorchvisionDataModule("MNIST", root=str(digits), validation=5)


@pytest.mark.parametrize("workers", [0, 2])
def test_unreadable_training_photos_are_replaced_and_told_of(photos: Path, workers: int) -> None:
    broken = [photos / "train" / "rose" / f"{number}.jpg" for number in (1, 4)]
    for path in broken:
        path.write_bytes(path.read_bytes()[:-100])
    data = folder_data(photos, on_error="substitute", workers=workers)
    data.setup("fit")
    seen = list(data.train_dataloader())
    assert sum(len(batch.labels) for batch in seen) == 20
    with pytest.warns(UserWarning, match=r"2 training images could .*rose/1\.jpg, .*rose/4\.jpg"):
        assert data.on_after_batch_transfer(seen[0], 0) is seen[0]
    data.on_after_batch_transfer(seen[0], 0)  # which is said once
    data.teardown("fit")
    train = data.parts["train"]
    assert isinstance(train, FramedPhotos)
    assert train.substitutes is not None
    assert torch.equal(train[[8]].images, train[[8 + 21]].images)  # the same in each epoch
    shown = [
        next(n for n in train.substitutes.others(lost) if n not in (8, 11)) for lost in (8, 11)
    ]
    assert torch.equal(train[[8, 11]].images, train[shown].images)
    assert train[[8, 11]].labels.tolist() == train[shown].labels.tolist() != [1, 1]


def test_unreadable_photos_stop_training_unless_asked_and_always_evaluation(photos: Path) -> None:
    for part, number in (("train", 1), ("val", 0)):
        (photos / part / "rose" / f"{number}.jpg").write_bytes(b"no photo")
    data = folder_data(photos)
    data.setup("fit")
    with pytest.raises(ImageError, match=r"rose/1\.jpg: not an image"):
        list(data.train_dataloader())
    data = folder_data(photos, on_error="substitute")
    data.setup("fit")
    with pytest.raises(ImageError, match=r"val/rose/0\.jpg: not an image"):
        list(data.val_dataloader())
