"""Data sources: functions that return the samples of a split."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from visattn.images.reader import ImageLike, LoadedImage, read_image
from visattn.results.kinds import Split


class Source(ABC):
    """Base class of data sources with options: called with a split, a source returns its samples.

    A source without options can be a plain function. A sample is a photo (path, array or PIL image)
    with its class, captions, questions or objects. For a split that the data lack, return an empty
    list.

    Example:
        >>> def birds(split):
        ...     return [(f"photos/{split}/{n}.jpg", ("wren", "robin")[n % 2]) for n in range(4)]
        >>> birds("train")[1]
        ('photos/train/1.jpg', 'robin')
    """

    class_names: tuple[str, ...] = ()
    """Class names in the order of their indices; empty to collect them from the samples."""
    test_splits: tuple[Split, ...] = ("test",)
    """Splits that `test` evaluates."""
    num_workers: int | None = None
    """Default number of worker processes; None for all cores but one, at most 16."""
    seed: int | None = 0
    """Seed of generated samples; None for the seed of the data module, or 0 without one."""
    words: tuple[str, ...] = ()
    """Vocabulary of captions from a grammar; empty to build it from the training captions."""
    notes: tuple[str, ...] = ()
    """Sentences for the user on how the splits were made."""

    @abstractmethod
    def __call__(self, split: Split) -> Sequence[Any]:
        """Return the samples of a split: a list, or a dataset that generates them on access."""


Batch = TypeVar("Batch", bound=tuple[Any, ...])
AnySource = Source | Callable[[Split], Sequence[Any]]


def held_out(labels: Int[Tensor, " n"], fraction: float, seed: int) -> Bool[Tensor, " n"]:
    """Return a mask of randomly chosen validation samples: a fraction of each class.

    Example:
        >>> held_out(torch.tensor([0, 0, 0, 1, 1, 1]), 0.4, seed=0).sum()
        tensor(2)
    """
    if not 0 < fraction < 1:
        raise ValueError(f"val_fraction must be between 0 and 1, got {fraction}")
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        (indices,) = (labels == label).nonzero(as_tuple=True)
        count = max(1, round(fraction * len(indices)))
        mask[indices[torch.randperm(len(indices), generator=generator)[:count]]] = True
    return mask


def read_photo(photo: ImageLike, value_range: tuple[float, float] | None) -> LoadedImage:
    """Read a photo for training; equal values become the same gray in all photos.

    Args:
        photo: As `read_image` accepts it.
        value_range: Values of float and 32-bit images that map to black and white; None for 0 and
            1, with an error for floats outside.
    """
    return read_image(photo, value_range=value_range or (0.0, 1.0))


def to_device(batch: Batch, device: torch.device | str) -> Batch:
    """Move the tensors of a batch, a named tuple, to a device.

    Example:
        >>> from visattn.data.classification.datasets import LabeledBatch
        >>> batch = LabeledBatch(torch.zeros(1, 3, 2, 2).byte(), torch.tensor([3]))
        >>> to_device(batch, "meta").labels.device
        device(type='meta')
    """

    def moved(part: Any) -> Any:
        if isinstance(part, Tensor):
            return part.to(device, non_blocking=True)
        if hasattr(part, "to"):  # a named tuple inside
            return part.to(device)
        tensors = isinstance(part, tuple) and any(isinstance(each, Tensor) for each in part)
        return tuple(map(moved, part)) if tensors else part

    return type(batch)(*map(moved, batch))


def photo_of(sample: Any) -> Any:
    """Return the photo of a sample of any task.

    Example:
        >>> photo_of(("photos/1.jpg", "robin"))
        'photos/1.jpg'
    """
    for name in ("path", "image"):
        if hasattr(sample, name):
            return getattr(sample, name)
    return sample[0]
