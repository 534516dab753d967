"""Small labeled images: digits, CIFAR batches, folders of photos."""

import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torchvision.datasets
from caption_data import draw_photo


def write_digits(root: Path, train: int = 23, test: int = 11) -> None:
    """Write IDX files in the official layout; a digit is a bright row at its own height."""
    folder = root / "MNIST" / "raw"
    folder.mkdir(parents=True)
    for name, count in (("train", train), ("t10k", test)):
        labels = (np.arange(count) * 7 % 10).astype(np.uint8)
        pixels = np.zeros((count, 28, 28), np.uint8)
        for image, label in zip(pixels, labels, strict=True):
            image[4 + 2 * label, 4:24] = 250
        head = struct.pack(">IIII", 2051, count, 28, 28)
        (folder / f"{name}-images-idx3-ubyte").write_bytes(head + pixels.tobytes())
        head = struct.pack(">II", 2049, count)
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(head + labels.tobytes())


def write_cifar(root: Path) -> None:
    """Write CIFAR-10 batches, each class with its brightness; red increases to the right."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    names = [*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"]
    for name in names:
        labels = [(index * 3) % 10 for index in range(7)]
        pixels = np.zeros((7, 3, 32, 32), np.uint8)
        pixels[:, 0] = np.arange(32)
        pixels[:, 1] = 20 * np.array(labels)[:, None, None]
        batch = {"data": pixels.reshape(7, -1), "labels": labels}
        (folder / name).write_bytes(pickle.dumps(batch))
    kinds = {"label_names": [f"kind{number}" for number in range(10)]}
    (folder / "batches.meta").write_bytes(pickle.dumps(kinds))


def accept_test_cifar_files(patch: pytest.MonkeyPatch) -> None:
    """Make torchvision accept CIFAR files with other checksums."""
    kind = torchvision.datasets.CIFAR10
    patch.setattr(kind, "_check_integrity", lambda self: True)
    patch.setattr(kind, "meta", {**kind.meta, "md5": None})


def write_photo_folders(root: Path, train: int = 3, val: int = 2) -> None:
    """Write landscape photos as SPLIT/CLASS/NUMBER.jpg."""
    for split, count in (("train", train), ("val", val)):
        for number, name in enumerate(("daisy", "rose", "tulip")):
            (root / split / name).mkdir(parents=True)
            for index in range(count):
                photo = draw_photo(number + 3 * index, 48)
                photo.save(root / split / name / f"{index}.jpg", quality=95)
