"""Digits and their classes in IDX files, looked at before anything is made of them."""

from math import prod
from pathlib import Path
from typing import Any

import torch
import torchvision.datasets
from jaxtyping import Int, UInt8
from torch import Tensor

from visattn.io.regular_files import open_regular

_BYTES, _LARGEST = 8, 2**30  # the kind of number; the longest file


def idx_shape(path: Path, axes: int) -> tuple[int, ...]:
    """Return the shape of what an IDX file holds, once its length agrees with it.

    Args:
        path: Of the file, unpacked.
        axes: How many it must have: 1 for classes, 3 for images.

    Raises:
        ValueError: If it is of another kind, cut off, or longer than it says.
        FileNotFoundError: If there is no such file.

    Example:
        >>> file = getfixture("tmp_path") / "labels-idx1-ubyte"
        >>> _ = file.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 2, 1]))
        >>> idx_shape(file, 1)
        (3,)

    Source:
        LeCun, Cortes, Burges: the MNIST database of handwritten digits, "file formats".
    """
    if not path.is_file():  # opening a pipe would wait for ever
        raise FileNotFoundError(f"{path} is no file")
    length = path.stat().st_size
    with open_regular(path) as file:
        head = file.read(4 + 4 * axes)
    if head[:4] != bytes([0, 0, _BYTES, axes]):
        raise ValueError(
            f"{path} is no IDX file of bytes with {axes} axes: it begins with {head[:4].hex(' ')}, "
            f"not 00 00 08 {axes:02}; is it packed, or a page of a web server? Fetch it anew"
        )
    shape = tuple(int.from_bytes(head[at : at + 4], "big") for at in range(4, 4 + 4 * axes, 4))
    expected = 4 + 4 * axes + prod(shape)
    if len(head) < 4 + 4 * axes or length != expected or length > _LARGEST:
        raise ValueError(
            f"{path} has {length:,} bytes; of {' x '.join(map(str, shape))} it must have "
            f"{expected:,}: it is cut off or damaged, fetch it anew"
        )
    if not all(shape):
        raise ValueError(f"{path} holds nothing: {' x '.join(map(str, shape))}")
    return shape


def check_digits(folder: Path, *, train: bool, classes: int) -> None:
    """Refuse files of digits that are damaged or do not belong together; missing ones pass.

    Args:
        folder: In which torchvision keeps them: `ROOT/MNIST/raw`.
        train: Whether those for training are looked at, or those for the test.
        classes: How many there are.

    Raises:
        ValueError: If a file is damaged, there are other classes, or not one for each image.

    Example:
        >>> check_digits(getfixture("tmp_path"), train=True, classes=10)
    """
    part = "train" if train else "t10k"
    images, labels = folder / f"{part}-images-idx3-ubyte", folder / f"{part}-labels-idx1-ubyte"
    if not (images.is_file() and labels.is_file()):
        return
    (count, *_), (told,) = idx_shape(images, 3), idx_shape(labels, 1)
    if count != told:
        raise ValueError(
            f"{images} holds {count:,} images and {labels.name} {told:,} classes; "
            "each image needs one: fetch both anew"
        )
    highest = max(labels.read_bytes()[8:])
    if highest >= classes:
        raise ValueError(f"{labels} names class {highest}; there are {classes}, from 0 on")


def read_torchvision(
    source: str, root: str, *, train: bool, download: bool = False
) -> tuple[UInt8[Tensor, "n c y x"], Int[Tensor, " n"], tuple[str, ...]]:
    """Return images, the class of each, and the names of the classes.

    Args:
        source: A class of `torchvision.datasets` that holds all its images in memory.
        root: The folder in which torchvision looks for the files.
        train: Those for training, or those for the test.
        download: Fetch the files if they are not there.

    Raises:
        FileNotFoundError: If the files are not there.
        ValueError: If they are damaged, or do not belong together.

    Example:
        >>> read_torchvision("MNIST", "no_such_folder", train=True)
        Traceback (most recent call last):
        FileNotFoundError: no_such_folder does not hold MNIST as torchvision keeps it: ...
    """
    reader = getattr(torchvision.datasets, source)
    digits = issubclass(reader, torchvision.datasets.MNIST)
    if digits:
        check_digits(Path(root, source, "raw"), train=train, classes=len(reader.classes))
    try:
        found = reader(root, train=train, download=download)
    except (RuntimeError, FileNotFoundError) as error:
        raise FileNotFoundError(
            f"{root} does not hold {source} as torchvision keeps it: {error}; choose "
            "another --data.root, or say --data.download true"
        ) from error
    except Exception as error:  # of files not looked at; what torch says of pickles is bad advice
        raise ValueError(
            f"{source} in {root} is damaged ({type(error).__name__}); fetch it anew"
        ) from error
    return _checked(found, f"{source} in {root}")


def _checked(
    found: Any, place: str
) -> tuple[UInt8[Tensor, "n c y x"], Int[Tensor, " n"], tuple[str, ...]]:
    images, labels = torch.as_tensor(found.data), torch.as_tensor(found.targets)
    # torchvision calls a digit "7 - seven".
    names = tuple(name.split(" - ")[0] for name in found.classes)
    if images.dtype != torch.uint8 or images.ndim not in (3, 4) or labels.ndim != 1:
        raise ValueError(
            f"{place} must be images with a class each, got {tuple(images.shape)} "
            f"{images.dtype} and {tuple(labels.shape)}"
        )
    if not 0 < len(images) == len(labels) or not 0 <= int(labels.min()) <= int(labels.max()) < len(
        names
    ):
        raise ValueError(
            f"{place} holds {len(images):,} images and {len(labels):,} classes; each image "
            f"needs one, from 0 to {len(names) - 1}"
        )
    images = images[:, None] if images.ndim == 3 else images.permute(0, 3, 1, 2)
    return images.contiguous(), labels, names
