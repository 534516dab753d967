"""Torchvision datasets in memory, with validation of MNIST's IDX files."""

from math import prod
from pathlib import Path
from typing import Any

import torch
import torchvision.datasets
from jaxtyping import Int, UInt8
from torch import Tensor

from visattn.io.safe_text import open_regular_file
from visattn.results.kinds import Split

_UINT8 = 8  # dtype code
_MAX_BYTES = 2**30


def read_idx_shape(path: Path, axes: int) -> tuple[int, ...]:
    """Return the shape of the array in a decompressed IDX file, after checking the file's length.

    Labels have 1 axis, images 3.

    Raises:
        ValueError: If it is not such a file, truncated, or longer than its header says.
        FileNotFoundError: If there is no such file.

    Example:
        >>> file = getfixture("tmp_path") / "labels-idx1-ubyte"
        >>> _ = file.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
        >>> read_idx_shape(file, 1)
        (3,)

    Source:
        LeCun, Cortes, Burges: the MNIST database of handwritten digits, "file formats".
    """
    if not path.is_file():  # opening a pipe would block
        raise FileNotFoundError(f"{path} is not a file")
    length = path.stat().st_size
    with open_regular_file(path) as file:
        header = file.read(4 + 4 * axes)
    if header[:4] != bytes([0, 0, _UINT8, axes]):
        raise ValueError(
            f"{path} is not an IDX file of uint8 with {axes} axes: it starts with "
            f"{header[:4].hex(' ')}, not 00 00 08 {axes:02}; is it compressed, or an "
            "HTML page? Download it again"
        )
    header_bytes = 4 + 4 * axes
    starts = range(4, header_bytes, 4)
    shape = tuple(int.from_bytes(header[start : start + 4], "big") for start in starts)
    expected = header_bytes + prod(shape)
    if len(header) < header_bytes or length != expected or length > _MAX_BYTES:
        raise ValueError(
            f"{path} has {length:,} bytes, but {' x '.join(map(str, shape))} values need "
            f"{expected:,}: it is truncated or damaged, download it again"
        )
    if not all(shape):
        raise ValueError(f"{path} is empty: {' x '.join(map(str, shape))}")
    return shape


def check_mnist_files(folder: Path, *, train: bool, classes: int) -> None:
    """Raise if MNIST files are damaged or do not match; missing files are accepted.

    torchvision stores them in the folder `ROOT/MNIST/raw`.

    Raises:
        ValueError: If a file is damaged, or labels do not match the images or classes.

    Example:
        >>> check_mnist_files(getfixture("tmp_path"), train=True, classes=10)
    """
    part = "train" if train else "t10k"
    images = folder / f"{part}-images-idx3-ubyte"
    labels = folder / f"{part}-labels-idx1-ubyte"
    if not (images.is_file() and labels.is_file()):
        return
    num_images, *_ = read_idx_shape(images, 3)
    (num_labels,) = read_idx_shape(labels, 1)
    if num_images != num_labels:
        raise ValueError(
            f"{images} holds {num_images:,} images, but {labels.name} holds {num_labels:,} labels; "
            "download both again"
        )
    highest = max(labels.read_bytes()[8:])
    if highest >= classes:
        raise ValueError(f"{labels} contains label {highest}; labels must be 0 to {classes - 1}")


class TorchvisionSplits:
    """A small dataset of torchvision in memory; validation images are some of the training images.

    Args:
        source: A class of `torchvision.datasets` that holds all its images in memory.
        root: Folder in which torchvision looks for the files.
        val: Number of training images that are for validation.
        split_seed: Seed of their choice.
        download: Download missing files.

    Raises:
        FileNotFoundError: If the files are missing.
        ValueError: If they are damaged, or there are too few images.
    """

    class_names: tuple[str, ...]
    """Names of the classes, in the order of their numbers."""

    def __init__(
        self,
        source: str,
        root: str,
        *,
        val: int = 5000,
        split_seed: int = 0,
        download: bool = False,
    ) -> None:
        self.source = source
        self.root = root
        self.download = download
        images, labels, self.class_names = load_torchvision(
            source, root, train=True, download=download
        )
        if not 1 <= val < len(images):
            raise ValueError(
                f"val must be at least 1 and below the number of training images, {len(images)}; "
                f"got {val}"
            )
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(split_seed))
        self._train_files = {
            "validation": (images[order[:val]], labels[order[:val]]),
            "train": (images[order[val:]], labels[order[val:]]),
        }

    def images(self, split: Split) -> tuple[UInt8[Tensor, "n c y x"], Int[Tensor, " n"]]:
        """Return the images of a split and their classes; the test files are read on access."""
        if split == "test":
            return load_torchvision(self.source, self.root, train=False, download=self.download)[:2]
        return self._train_files[split]


def load_torchvision(
    source: str, root: str, *, train: bool, download: bool = False
) -> tuple[UInt8[Tensor, "n c y x"], Int[Tensor, " n"], tuple[str, ...]]:
    """Return images, labels and class names; arguments as for `TorchvisionSplits`.

    Raises:
        FileNotFoundError: If the files are missing.
        ValueError: If they are damaged, or do not match.

    Example:
        >>> load_torchvision("MNIST", "no_such_folder", train=True)
        Traceback (most recent call last):
        FileNotFoundError: no_such_folder does not hold MNIST as torchvision stores it: ...
    """
    reader = getattr(torchvision.datasets, source)
    digits = issubclass(reader, torchvision.datasets.MNIST)
    if digits:
        check_mnist_files(Path(root, source, "raw"), train=train, classes=len(reader.classes))
    try:
        dataset = reader(root, train=train, download=download)
    except (RuntimeError, FileNotFoundError) as error:
        raise FileNotFoundError(
            f"{root} does not hold {source} as torchvision stores it: {error}; set "
            "another --data.root, or --data.download true"
        ) from error
    except Exception as error:  # of unchecked files; the advice of torch about pickles is unsafe
        raise ValueError(
            f"{source} in {root} is damaged ({type(error).__name__}); download it again"
        ) from error
    return _check_arrays(dataset, f"{source} in {root}")


def _check_arrays(
    dataset: Any, location: str
) -> tuple[UInt8[Tensor, "n c y x"], Int[Tensor, " n"], tuple[str, ...]]:
    images = torch.as_tensor(dataset.data)
    labels = torch.as_tensor(dataset.targets)
    # torchvision calls a digit "7 - seven".
    names = tuple(name.split(" - ")[0] for name in dataset.classes)
    if images.dtype != torch.uint8 or images.ndim not in (3, 4) or labels.ndim != 1:
        raise ValueError(
            f"{location} must be images with one label each, got {tuple(images.shape)} "
            f"{images.dtype} and {tuple(labels.shape)}"
        )
    if not 0 < len(images) == len(labels) or not 0 <= int(labels.min()) <= int(labels.max()) < len(
        names
    ):
        raise ValueError(
            f"{location} holds {len(images):,} images and {len(labels):,} labels; each image "
            f"needs one label from 0 to {len(names) - 1}"
        )
    images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
    return images.contiguous(), labels, names
