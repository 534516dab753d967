"""Sources of data: a function that returns the samples of a split."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from visattn.images.reader import ImageLike, LoadedImage, read_image
from visattn.results.kinds import Split


class Source(ABC):
    """A source with options: a callable that returns the samples of a split.

    A source without options is a function. What a sample is depends on the task: a photo (a path,
    an array, an image of PIL) with a class, with captions, with questions, with objects. For a
    split that the data do not have, it returns an empty list.

    Example:
        >>> def birds(split):
        ...     return [(f"photos/{split}/{n}.jpg", ("wren", "robin")[n % 2]) for n in range(4)]
        >>> birds("train")[1]
        ('photos/train/1.jpg', 'robin')
    """

    class_names: tuple[str, ...] = ()
    """The names of the classes, in the order of their numbers; empty for those of the samples."""
    test_splits: tuple[Split, ...] = ("test",)
    """The splits that a test reads."""
    num_workers: int | None = None
    """Processes that read samples by default; None for all cores but one, at most 16."""
    seed: int | None = 0
    """Seed of what is drawn; None for that of the data module, 0 without one."""
    words: tuple[str, ...] = ()
    """The vocabulary of captions with a grammar; empty for the words of the training samples."""
    notes: tuple[str, ...] = ()
    """What a user should know about how the splits were made, in sentences."""

    @abstractmethod
    def __call__(self, split: Split) -> Sequence[Any]:
        """Return the samples of a split: a list, or a data set that draws them on access."""


Batch = TypeVar("Batch", bound=tuple[Any, ...])
AnySource = Source | Callable[[Split], Sequence[Any]]


def held_out(labels: Int[Tensor, " n"], fraction: float, seed: int) -> Bool[Tensor, " n"]:
    """Return which samples are for validation: a fraction of each class, at random.

    Example:
        >>> held_out(torch.tensor([0, 0, 0, 1, 1, 1]), 0.4, seed=0).sum()
        tensor(2)
    """
    if not 0 < fraction < 1:
        raise ValueError(f"val_fraction must lie between 0 and 1, got {fraction}")
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        (indices,) = (labels == label).nonzero(as_tuple=True)
        count = max(1, round(fraction * len(indices)))
        mask[indices[torch.randperm(len(indices), generator=generator)[:count]]] = True
    return mask


def read_photo(photo: ImageLike, value_range: tuple[float, float] | None) -> LoadedImage:
    """Return a photo for training, where the same value is the same gray in all photos.

    Args:
        photo: As `read_image` accepts it.
        value_range: The values of float and 32-bit images that become black and white; None for
            floats from 0 to 1, which refuses others.
    """
    return read_image(photo, value_range=value_range or (0.0, 1.0))


def to_device(batch: Batch, device: torch.device | str) -> Batch:
    """Return a batch, a named tuple, with its tensors on another device.

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
