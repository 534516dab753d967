"""Samples of shards as data sets: what they give is what the loose files would give."""

from collections.abc import Mapping, Sequence
from typing import Any, overload

import torch
from jaxtyping import UInt8
from torch import Tensor

from visattn.data.captions.files import CaptionEntry
from visattn.data.captions.images import CaptionedImages
from visattn.data.classification.datasets import LabeledBatch, LabeledImages
from visattn.data.images.augment import Augmentation
from visattn.data.images.reader import ImageError, LoadedImage
from visattn.data.images.resize import ResizeSpec, framed_geometry
from visattn.data.shards.reader import ShardSamples
from visattn.geometry.affine import Geometry


class ShardEntries(Sequence[CaptionEntry]):
    """What is said of each photo, read when it is asked for.

    Args:
        samples: Of shards with captions.
    """

    def __init__(self, samples: ShardSamples) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    @overload
    def __getitem__(self, index: int) -> CaptionEntry: ...

    @overload
    def __getitem__(self, index: slice) -> list[CaptionEntry]: ...

    def __getitem__(self, index: int | slice) -> CaptionEntry | list[CaptionEntry]:
        """Return one entry, or several.

        Raises:
            IndexError: If there is no such entry.
            ValueError: If it is no photo with captions; the message names tar and key.
        """
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        told = self.samples.record(index)
        return caption_entry(told, self.samples.place(index), self.samples.split)


def caption_entry(told: Mapping[str, Any], place: str, split: str) -> CaptionEntry:
    """Return what a sample's record says of a photo.

    Args:
        told: The record.
        place: Where it lies, for the message.
        split: Of the photo.

    Raises:
        ValueError: If it is no photo with captions; the message names the place.

    Example:
        >>> caption_entry({"id": "a", "file": "a.jpg", "captions": ["A dog ."]}, "here", "test").id
        'a'
    """
    name, file, captions = told.get("id"), told.get("file"), told.get("captions")
    if (
        not isinstance(name, str)
        or not isinstance(file, str)
        or not isinstance(captions, list)
        or not captions
        or not all(isinstance(caption, str) for caption in captions)
    ):
        raise ValueError(
            f"{place}: expected id, file and a list of captions, got {', '.join(told) or 'nothing'}"
        )
    return CaptionEntry(name, file, tuple(captions), split)


class ShardedPhotos(CaptionedImages):
    """Photos in shards, each with all of its captions.

    Args:
        samples: Of shards with captions.
        framing: How a photo comes into the network's input.

    Raises:
        ValueError: If the shards hold no captions.
    """

    def __init__(self, samples: ShardSamples, framing: ResizeSpec) -> None:
        if samples.info.kind != "captions":
            raise ValueError(f"{samples.folder} holds images with classes, and not with captions")
        super().__init__(ShardEntries(samples), framing)
        self.samples = samples

    def image(self, index: int) -> LoadedImage:
        """Return a photo.

        Raises:
            ImageError: If it cannot be read; the message names tar and key.
        """
        return self.samples.image(index)

    def geometry(self, index: int) -> Geometry:
        """Return the way back to a photo, of which only the head is looked at.

        Raises:
            ImageError: If it cannot be read; the message names tar and key.
        """
        size, orientation = self.samples.size(index)
        return framed_geometry(size, self.framing, orientation)


class ShardImages(Sequence[LoadedImage]):
    """The images of shards, read when they are asked for.

    Args:
        samples: Of shards.
    """

    def __init__(self, samples: ShardSamples) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    @overload
    def __getitem__(self, index: int) -> LoadedImage: ...

    @overload
    def __getitem__(self, index: slice) -> list[LoadedImage]: ...

    def __getitem__(self, index: int | slice) -> LoadedImage | list[LoadedImage]:
        """Return one image, or several.

        Raises:
            IndexError: If there is no such image.
            ImageError: If one cannot be read; the message names tar and key.
        """
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        return self.samples.image(index)


class ShardedRasters(LabeledImages):
    """Small images of one size in shards, shown as they are.

    Args:
        samples: Of shards with classes.
        augmentations: Applied one after the other, to a whole batch.
        seed: Another seed, other changes.
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

    def __getitem__(self, numbers: list[int]) -> LabeledBatch:
        """Return the images with these numbers, changed where that is wanted.

        Raises:
            ImageError: If one cannot be read; the message names tar and key.
        """
        rows = self.rows(numbers)
        images = torch.stack([self._raster(row) for row in rows.tolist()])
        return LabeledBatch(self.changed(images, numbers), self.labels[rows])

    def _raster(self, number: int) -> UInt8[Tensor, "c y x"]:
        image, info = self.samples.image(number), self.samples.info
        if image.size != info.size:
            raise ImageError(f"{image.name}: must be of {info.size} pixels, got {image.size}")
        return torch.from_numpy(image.pixels.transpose(2, 0, 1)[: info.channels].copy())
