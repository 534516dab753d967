"""Small pictures with classes, from the files of torchvision, which are looked at first."""

from pathlib import Path
from typing import Any

import torch
import torchvision.datasets
from jaxtyping import Int, UInt8
from torch import Tensor

from visattn.data.idx_files import check_digits


def read_torchvision(
    source: str, root: str, *, train: bool, download: bool = False
) -> tuple[UInt8[Tensor, "n c y x"], Int[Tensor, " n"], tuple[str, ...]]:
    """Return pictures, the class of each, and the names of the classes.

    Args:
        source: A class of `torchvision.datasets` that holds all its pictures in memory.
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
    pictures, labels = torch.as_tensor(found.data), torch.as_tensor(found.targets)
    # torchvision calls a digit "7 - seven".
    names = tuple(name.split(" - ")[0] for name in found.classes)
    if pictures.dtype != torch.uint8 or pictures.ndim not in (3, 4) or labels.ndim != 1:
        raise ValueError(
            f"{place} must be pictures with a class each, got {tuple(pictures.shape)} "
            f"{pictures.dtype} and {tuple(labels.shape)}"
        )
    if not 0 < len(pictures) == len(labels) or not 0 <= int(labels.min()) <= int(
        labels.max()
    ) < len(names):
        raise ValueError(
            f"{place} holds {len(pictures):,} pictures and {len(labels):,} classes; each picture "
            f"needs one, from 0 to {len(names) - 1}"
        )
    pictures = pictures[:, None] if pictures.ndim == 3 else pictures.permute(0, 3, 1, 2)
    return pictures.contiguous(), labels, names
