"""Samples and batches for semantic segmentation: a class for each pixel."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, UInt8
from torch import Tensor
from torchvision.transforms import v2

from visattn.data.augment import augment
from visattn.data.regions.annotations import AnnotatedImage
from visattn.data.regions.masks import sample_nearest
from visattn.data.source import read_photo, to_device
from visattn.images.reader import LoadedImage, read_label_image
from visattn.images.resize import ResizeSpec, resize_to_input
from visattn.results.kinds import IGNORE_CLASS


class SegmentationBatch(NamedTuple):
    """Images and their label maps."""

    images: UInt8[Tensor, "b 3 y x"]
    labels: UInt8[Tensor, "b y x"]
    """Class numbers; `IGNORE_CLASS` is left out of losses and metrics."""

    to = to_device


@dataclass
class SegmentationInput:
    """Prepares the input and its label map from a photo with a mask, or with annotated objects.

    For objects, a pixel has the category of the smallest one that covers it; crowds, and boxes of
    objects without a mask, are ignored.

    Args:
        numbers: The class index of each category.
        resize: Resizing to the input; padding is ignored.
        transforms: Random transforms, applied before resizing.
        class_map: Class of each mask value; None if the mask values are class indices.
        value_range: See `read_photo`.
    """

    numbers: Mapping[str, int]
    resize: ResizeSpec
    transforms: Sequence[v2.Transform] = ()
    class_map: Mapping[int, int] | None = None
    value_range: tuple[float, float] | None = None
    _table: UInt8[np.ndarray, "256"] = field(init=False)

    def __post_init__(self) -> None:
        classes = (*self.numbers.values(), IGNORE_CLASS)
        mapping = dict(zip(classes, classes, strict=True))
        mapping = mapping if self.class_map is None else self.class_map
        if unknown := [label for label in mapping.values() if label not in classes]:
            raise ValueError(
                f"class_map must map to classes below {len(self.numbers)}, or {IGNORE_CLASS}; got "
                f"{unknown[0]}"
            )
        # -1 marks values without a class, which would otherwise become class 0.
        self._table = np.full(256, -1, np.int16)
        self._table[list(mapping)] = list(mapping.values())

    def __call__(
        self, sample: Any, seed: int
    ) -> tuple[UInt8[Tensor, "3 y x"], UInt8[Tensor, "y x"]]:
        """Return the image and its label map."""
        pixels, labels = self.load(sample)
        image = torch.tensor(pixels).permute(2, 0, 1)
        image, moved, _ = augment(self.transforms, seed, image, masks=labels[None])
        labels = labels if moved is None else moved[0]
        if tuple(labels.shape) == self.resize.size:
            return image.contiguous(), labels.contiguous()
        pixels = image.permute(1, 2, 0).contiguous().numpy()
        image, geometry = resize_to_input(LoadedImage(pixels), self.resize)
        return image, sample_nearest(labels, geometry, fill=IGNORE_CLASS)

    def load(self, sample: Any) -> tuple[UInt8[np.ndarray, "y x 3"], UInt8[Tensor, "y x"]]:
        """Return a photo at its original size with its label map."""
        if isinstance(sample, AnnotatedImage):
            known = [
                (mask, IGNORE_CLASS if below else self.numbers[obj.category], below)
                for mask, obj in zip(sample.masks(), sample.objects, strict=True)
                for below in [obj.crowd or obj.segmentation is None]
                if obj.category in self.numbers
            ]
            return sample.read(self.value_range).pixels, label_map(known, sample.size)
        photo, mask = sample
        image = read_photo(photo, self.value_range)
        numbers = read_label_image(mask)
        if numbers.shape != image.size:
            raise ValueError(f"{mask} must be {image.size}, like its photo, got {numbers.shape}")
        labels = self._table[numbers]
        if labels.min() < 0:
            raise ValueError(
                f"mask values must be indices of the {len(self.numbers)} classes, but {mask} has "
                f"{np.unique(numbers[labels < 0])[:5].tolist()}: correct class_names, or set "
                "class_map, such as {0: 0, 255: 1}"
            )
        return image.pixels, torch.from_numpy(labels.astype(np.uint8))


def collate_segmentation(samples: Sequence[tuple[Tensor, Tensor]]) -> SegmentationBatch:
    """Stack samples of one size into a batch."""
    return SegmentationBatch(*map(torch.stack, zip(*samples, strict=True)))


def label_map(
    objects: Iterable[tuple[Bool[Tensor, "y x"], int, bool]], size: tuple[int, int]
) -> UInt8[Tensor, "y x"]:
    """Return the class number of each pixel; 0 where there is no object.

    Smaller objects cover larger ones, and of equal size the later one wins. Only one mask is held
    in memory at a time.

    Args:
        objects: The mask of each, its class index (1 to 255), and whether it is below all objects
            for which this is false.
        size: Height and width.

    Example:
        >>> small, large = torch.tensor([[[True, False, False]], [[True, True, False]]])
        >>> label_map([(small, 7, False), (large, 3, False)], (1, 3))
        tensor([[7, 3, 0]], dtype=torch.uint8)
    """
    labels = torch.zeros(size, dtype=torch.uint8)
    # Objects are ranked by area, so each pixel keeps the smallest one so far. Objects `below` rank
    # after the largest possible area, and the background after both.
    nothing = 2 * labels.numel() + 1
    rank = torch.full(size, nothing)  # of the object that covers a pixel; lower ones cover higher
    for mask, number, below in objects:
        own = int(mask.sum()) + (labels.numel() if below else 0)
        covered = mask & (rank >= own)
        labels[covered] = number
        rank[covered] = own
    return labels
