"""Datasets backed by shards, with the same samples as datasets of loose files."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, overload

import torch
from jaxtyping import UInt8
from torch import Tensor

from visattn.data.captions.files import CaptionEntry
from visattn.data.captions.images import CaptionedImages
from visattn.data.classification.datasets import LabeledBatch, LabeledImages
from visattn.data.images.augment import Augmentation
from visattn.data.shards.reader import ShardSamples
from visattn.geometry.affine import Geometry
from visattn.images.reader import ImageError, LoadedImage
from visattn.images.resize import ResizeSpec, resize_geometry

T = TypeVar("T")


class _ReadOnAccess(Sequence[T], ABC):
    """A part of each sample of shards, read on access; a slice is a list.

    Args:
        samples: The samples.
    """

    def __init__(self, samples: ShardSamples) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    @abstractmethod
    def _read(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: int) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> list[T]: ...
    def __getitem__(self, index: int | slice) -> T | list[T]:
        """Return one, or several.

        Raises:
            IndexError: If there is no such sample.
            ValueError: If it cannot be read; the message names tar and key.
        """
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return self._read(index)


class ShardEntries(_ReadOnAccess[CaptionEntry]):
    """Caption entries of a split, read on access.

    Args:
        samples: Samples of shards with captions.
    """

    def _read(self, index: int) -> CaptionEntry:
        record = self.samples.record(index)
        return caption_entry(record, self.samples.location(index), self.samples.split)


def caption_entry(record: Mapping[str, Any], location: str, split: str) -> CaptionEntry:
    """Return the caption entry of a sample's record.

    Args:
        record: The record.
        location: Location of the sample, for messages.
        split: Split of the photo.

    Raises:
        ValueError: If it has no captions; the message names the location.

    Example:
        >>> caption_entry({"id": "a", "file": "a.jpg", "captions": ["A dog ."]}, "here", "test").id
        'a'
    """
    name, file, captions = record.get("id"), record.get("file"), record.get("captions")
    if (
        not isinstance(name, str)
        or not isinstance(file, str)
        or not isinstance(captions, list)
        or not captions
        or not all(isinstance(caption, str) for caption in captions)
    ):
        raise ValueError(
            f"{location}: expected id, file and a list of captions, "
            f"got {', '.join(record) or 'nothing'}"
        )
    return CaptionEntry(name, file, tuple(captions), split)


class ShardedPhotos(CaptionedImages):
    """Photos in shards, each with all of its captions.

    Args:
        samples: Samples of shards with captions.
        resize: Resizing to the network's input.

    Raises:
        ValueError: If the shards hold no captions.
    """

    def __init__(self, samples: ShardSamples, resize: ResizeSpec) -> None:
        if samples.info.kind != "captions":
            raise ValueError(f"{samples.folder} holds images with classes, not with captions")
        super().__init__(ShardEntries(samples), resize)
        self.samples = samples

    def load_image(self, index: int) -> LoadedImage:
        """Return a photo at its own size.

        Raises:
            ImageError: If it cannot be read; the message names tar and key.
        """
        return self.samples.image(index)

    def geometry(self, index: int) -> Geometry:
        """Return the geometry of a photo; only its header is decoded.

        Raises:
            ImageError: If it cannot be read; the message names tar and key.
        """
        size, orientation = self.samples.size(index)
        return resize_geometry(size, self.resize, orientation)


class ShardImages(_ReadOnAccess[LoadedImage]):
    """The images of shards, read on access.

    Args:
        samples: Samples of any shards.
    """

    def _read(self, index: int) -> LoadedImage:
        return self.samples.image(index)


class ShardedTensors(LabeledImages):
    """Small images of one size in shards, used without resizing.

    Args:
        samples: Samples of shards with classes.
        augmentations: Applied in order to each batch.
        seed: Seed of the augmentations.
    """

    def __init__(
        self,
        samples: ShardSamples,
        augmentations: Sequence[Augmentation] = (),
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(samples.labels, augmentations, seed=seed)
        self.samples = samples

    def __getitem__(self, indices: list[int]) -> LabeledBatch:
        """Return the batch of images with these indices, augmented.

        Raises:
            ImageError: If one cannot be read; the message names tar and key.
        """
        rows = self.image_indices(indices)
        images = torch.stack([self._load_tensor(row) for row in rows.tolist()])
        return LabeledBatch(self.augment(images, indices), self.labels[rows])

    def _load_tensor(self, row: int) -> UInt8[Tensor, "c y x"]:
        image, info = self.samples.image(row), self.samples.info
        if image.size != info.size:
            raise ImageError(f"{image.name}: must have {info.size} pixels, got {image.size}")
        return torch.from_numpy(image.pixels.transpose(2, 0, 1)[: info.channels].copy())
