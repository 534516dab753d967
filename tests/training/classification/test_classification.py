"""Data modules of images with classes: splits, labels, augmentation and unreadable images."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from classification_data import (
    accept_test_cifar_files,
    write_cifar,
    write_digits,
    write_photo_folders,
)

from visattn.data.classification.datasets import ImageFiles
from visattn.images.reader import ImageError
from visattn.models.resnet import AttentionResNet
from visattn.training.classification.data import FolderDataModule, TorchvisionDataModule
from visattn.training.classification.task import ClassificationTask


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


def test_digits_keep_their_labels_in_every_split(digits: Path) -> None:
    data = TorchvisionDataModule("MNIST", root=str(digits), val=5, batch_size=6)
    assert data.data_info == {"class_names": list("0123456789")}
    data.setup("fit")
    data.setup("test")
    counts = {}
    for split, loader in (
        ("train", data.train_dataloader()),
        ("validation", data.val_dataloader()),
        ("test", *data.test_dataloader()),
    ):
        pairs = [pair for batch in loader for pair in zip(*batch, strict=True)]
        counts[split] = len(pairs)
        assert all(bright_row(image) == int(label) for image, label in pairs)
    assert counts == {"train": 18, "validation": 5, "test": 11}


def test_the_split_depends_on_its_seed_only(digits: Path) -> None:
    def split(**options: Any) -> tuple[list[int], list[int]]:
        data = TorchvisionDataModule("MNIST", root=str(digits), val=5, **options)
        data.setup("fit")
        return tuple(data.datasets[name].labels.tolist() for name in ("train", "validation"))  # type: ignore[return-value]

    train, validation = split()
    labels = sorted(index * 7 % 10 for index in range(23))
    assert sorted(train + validation) == labels
    assert split(seed=1) == (train, validation)
    assert split(split_seed=1) != (train, validation)


def test_only_the_test_opens_the_test_split(digits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("images-idx3", "labels-idx1"):
        (digits / "MNIST" / "raw" / f"t10k-{name}-ubyte").write_bytes(b"broken")
    data = TorchvisionDataModule("MNIST", root=str(digits), val=5)
    data.setup("fit")
    data.setup("validate")
    with pytest.raises(ValueError, match=r"t10k-images-idx3-ubyte is not an IDX file of uint8"):
        data.setup("test")


def test_affine_transforms_are_fixed_except_in_training(digits: Path) -> None:
    affine = {"degrees": 45, "scale": [0.7, 1.2], "translate": 0.1, "canvas_size": [42, 40]}
    modules = [
        TorchvisionDataModule("MNIST", root=str(digits), val=5, batch_size=6, affine=affine)
        for _ in range(2)
    ]
    batches = []
    for data in modules:
        data.setup("fit")
        batches.append(next(iter(data.val_dataloader())).images)
    assert batches[0].shape == (5, 1, 42, 40)
    assert torch.equal(*batches)
    train = modules[0].datasets["train"]
    assert torch.equal(train[[0]].images, train[[0]].images)
    assert not torch.equal(train[[0]].images, train[[18]].images)  # in the next epoch


def test_cifar_channels_are_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_cifar(tmp_path)
    accept_test_cifar_files(monkeypatch)
    data = TorchvisionDataModule("CIFAR10", root=str(tmp_path), val=3, batch_size=4)
    data.setup("fit")
    batch = next(iter(data.train_dataloader()))
    assert batch.images.shape == (4, 3, 32, 32)
    for image, label in zip(*batch, strict=True):
        assert torch.equal(image[0], torch.arange(32, dtype=torch.uint8).expand(32, 32))
        assert (image[1] == 20 * label).all()
    assert data.data_info["class_names"][:2] == ["kind0", "kind1"]


def test_missing_files_are_reported(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"does not hold MNIST .* --data\.download true"):
        TorchvisionDataModule("MNIST", root=str(tmp_path))


def test_val_must_leave_training_images(digits: Path) -> None:
    with pytest.raises(ValueError, match="below the number of training images, 23; got 23"):
        TorchvisionDataModule("MNIST", root=str(digits), val=23)


def test_examples_are_color_arrays(digits: Path) -> None:
    data = TorchvisionDataModule("MNIST", root=str(digits), val=5)
    examples = data.examples(99)
    assert [image.shape for image in examples] == [(28, 28, 3)] * 5


def folder_data(root: Path, **options: Any) -> FolderDataModule:
    """Data for a task whose network has inputs of 24 x 24 pixels."""
    data = FolderDataModule(str(root), batch_size=4, **options)
    task = ClassificationTask(
        lambda classes: AttentionResNet(classes, depth=8, stem_width=4, img_size=(24, 24)),
        data.data_info,
    )
    data.input_spec = task.input_spec
    data.trainer = SimpleNamespace(  # pyright: ignore[reportAttributeAccessIssue]
        global_rank=0, world_size=1
    )
    return data


def test_photos_have_the_input_size_of_the_network(photos: Path) -> None:
    data = folder_data(photos, train_transforms=["RandomHorizontalFlip"])
    assert data.data_info == {"class_names": ["daisy", "rose", "tulip"]}
    data.setup("fit")
    assert next(iter(data.train_dataloader())).images.shape == (4, 3, 24, 24)
    assert len(data.datasets["validation"]) == 6
    data.setup("test")  # without a test split, the validation photos
    assert len(data.datasets["test"]) == 6
    assert data.examples(2)[0].shape == (24, 24, 3)


def test_val_fraction_splits_the_training_photos(photos: Path) -> None:
    data = folder_data(photos, val=None, val_fraction=0.3, test="val")
    data.setup("fit")
    data.setup("test")
    train, validation, test = (data.datasets[name] for name in ("train", "validation", "test"))
    assert validation.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert train.labels.tolist() == [number for number in range(3) for _ in range(5)]
    files = [set(part.files) for part in (train, validation, test)]  # pyright: ignore[reportAttributeAccessIssue]
    assert len(set.union(*files)) == 21 + 6
    again = folder_data(photos, val=None, val_fraction=0.3, seed=9)
    again.setup("fit")
    assert set(again.datasets["train"].files) == files[0]  # pyright: ignore[reportAttributeAccessIssue]


def test_folders_need_a_classification_task_and_valid_options(photos: Path) -> None:
    with pytest.raises(TypeError, match="needs a task that trains a classifier"):
        FolderDataModule(str(photos)).setup("fit")
    with pytest.raises(ValueError, match="val_fraction must lie between 0 and 1, got 1"):
        FolderDataModule(str(photos), val_fraction=1)
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        FolderDataModule(str(photos), batch_size=0)


def test_damaged_mnist_files_are_refused(digits: Path) -> None:
    folder = digits / "MNIST" / "raw"
    images, labels = folder / "train-images-idx3-ubyte", folder / "train-labels-idx1-ubyte"
    image_bytes, label_bytes = images.read_bytes(), labels.read_bytes()
    for path, content, reason in (
        (
            images,
            image_bytes[:-1],
            r"train-images-idx3-ubyte has .* bytes, but 23 x 28 x 28 values need",
        ),
        (images, image_bytes[:9], r"train-images-idx3-ubyte has 9 bytes"),
        (images, b"<html>404</html>", r"train-images-idx3-ubyte is not an IDX file .* 3c 68 74 6d"),
        (
            labels,
            label_bytes[:7] + bytes([22]) + label_bytes[8:30],
            r"23 images, but train-labels.* 22 labels",
        ),
        (
            labels,
            label_bytes[:-1] + bytes([10]),
            r"train-labels-idx1-ubyte contains label 10; labels must be 0 to 9",
        ),
    ):
        images.write_bytes(image_bytes)
        labels.write_bytes(label_bytes)
        path.write_bytes(content)
        with pytest.raises(ValueError, match=reason):
            TorchvisionDataModule("MNIST", root=str(digits), val=5)


def test_files_that_torchvision_cannot_read_are_refused(digits: Path) -> None:
    processed = digits / "MNIST" / "processed"  # as old versions stored them
    processed.mkdir()
    for name in ("training.pt", "test.pt"):
        (processed / name).write_bytes(b"no pickle")
    with pytest.raises(ValueError, match=r"MNIST in .* is damaged \(.*\); download it again"):
        TorchvisionDataModule("MNIST", root=str(digits), val=5)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_unreadable_training_photos_are_replaced_with_a_warning(
    photos: Path, num_workers: int
) -> None:
    broken = [photos / "train" / "rose" / f"{number}.jpg" for number in (1, 4)]
    for path in broken:
        path.write_bytes(path.read_bytes()[:-100])
    data = folder_data(photos, on_error="substitute", num_workers=num_workers)
    data.setup("fit")
    batches = list(data.train_dataloader())
    assert sum(len(batch.labels) for batch in batches) == 20
    with pytest.warns(UserWarning, match=r"2 training images could .*rose/1\.jpg, .*rose/4\.jpg"):
        assert data.on_after_batch_transfer(batches[0], 0) is batches[0]
    data.on_after_batch_transfer(batches[0], 0)  # warns once
    data.teardown("fit")
    train = data.datasets["train"]
    assert isinstance(train, ImageFiles)
    assert train.fallback is not None
    assert torch.equal(train[[8]].images, train[[8 + 21]].images)  # the same in each epoch
    replacements = [
        next(n for n in train.fallback.candidates(index) if n not in (8, 11)) for index in (8, 11)
    ]
    assert torch.equal(train[[8, 11]].images, train[replacements].images)
    assert train[[8, 11]].labels.tolist() == train[replacements].labels.tolist() != [1, 1]


def test_unreadable_photos_raise_by_default_and_always_in_evaluation(photos: Path) -> None:
    for split, number in (("train", 1), ("val", 0)):
        (photos / split / "rose" / f"{number}.jpg").write_bytes(b"no photo")
    data = folder_data(photos)
    data.setup("fit")
    with pytest.raises(ImageError, match=r"rose/1\.jpg: not an image"):
        list(data.train_dataloader())
    data = folder_data(photos, on_error="substitute")
    data.setup("fit")
    with pytest.raises(ImageError, match=r"val/rose/0\.jpg: not an image"):
        list(data.val_dataloader())
