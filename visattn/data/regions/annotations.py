"""Images with annotated objects: their masks and boxes."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from visattn.data.regions.masks import boxes_mask, mask_boxes, segmentation_mask
from visattn.data.source import read_photo
from visattn.geometry.affine import Box
from visattn.images.reader import ImageLike, LoadedImage, read_image, read_size


@dataclass(frozen=True)
class AnnotatedObject:
    """One annotated object.

    Args:
        category: Category name; "" if unknown.
        segmentation: COCO polygons or RLE, a boolean mask, or the path of a mask image, whose
            foreground is brighter than half of its maximum; None if there is only a box.
        box: Left, top, right, bottom in pixels; None for the bounding box of the mask.
        crowd: Whether it is a group of objects (`iscrowd` in COCO).
        area: Annotated area in pixels; None for the area of the mask.
    """

    category: str
    segmentation: Any
    box: Box | None = None
    crowd: bool = False
    area: float | None = None


@dataclass(frozen=True)
class AnnotatedImage:
    """An image with annotated objects.

    Args:
        name: Unique name: the path relative to the folder of images, with `/`.
        path: The photo: a file, a row of a table or an array.
        size: Height and width of the upright image, to which the annotations refer.
        objects: Annotated objects.
    """

    name: str
    path: ImageLike
    size: tuple[int, int]
    objects: tuple[AnnotatedObject, ...]

    @property
    def categories(self) -> tuple[str, ...]:
        """Unique category names in alphabetical order."""
        return tuple(sorted({annotation.category for annotation in self.objects}))

    def region_masks(
        self, category: str | None = None
    ) -> tuple[Bool[np.ndarray, "y x"], Bool[np.ndarray, "y x"]]:
        """Return the union of the masks, and of the boxes, of the objects of a category.

        Args:
            category: Category of the objects; None for all objects.

        Raises:
            ValueError: If there are none, or a segmentation is invalid; the message names the file.
        """
        selected = [obj for obj in self.objects if category in (None, obj.category)]
        if not selected:
            raise ValueError(f"{self.path} has no {category or 'object'}")
        mask = np.zeros(self.size, dtype=bool)
        boxes = np.zeros(self.size, dtype=bool)
        for obj in selected:
            object_mask = self._mask(obj)
            box = _bounding_box(object_mask) if obj.box is None else obj.box
            mask |= object_mask
            boxes |= boxes_mask([box] if box is not None else [], self.size)
        return mask, boxes

    def read(self, value_range: tuple[float, float] | None = None) -> LoadedImage:
        """Return the image.

        Raises:
            ImageError: If it cannot be read.
            ValueError: If its size differs from that in the annotations.
        """
        image = read_photo(self.path, value_range)
        if image.size != self.size:
            raise ValueError(
                f"{self.path} is {image.size[1]} x {image.size[0]} pixels (width x height), but "
                f"its annotations say {self.size[1]} x {self.size[0]}; they must refer to the "
                "upright image, after its EXIF orientation"
            )
        return image

    @classmethod
    def of(cls, sample: Any) -> Self:
        """Convert a photo with (class, box) per object; an `AnnotatedImage` is returned as is.

        Example:
            >>> photo = np.zeros((4, 6, 3), np.uint8)
            >>> AnnotatedImage.of((photo, [("cat", (0, 0, 3, 2))])).objects[0].box
            (0, 0, 3, 2)
        """
        if isinstance(sample, cls):
            return sample
        photo, objects = sample
        size = photo.shape[:2] if isinstance(photo, np.ndarray) else read_size(photo)
        named = tuple(AnnotatedObject(name, None, tuple(box)) for name, box in objects)
        return cls("array" if isinstance(photo, np.ndarray) else str(photo), photo, size, named)

    def masks(self) -> Iterator[Bool[Tensor, "y x"]]:
        """Yield the mask of each object at the size of the image, one at a time."""
        return (torch.from_numpy(self._mask(obj)) for obj in self.objects)

    def boxes(self) -> Float[Tensor, "n 4"]:
        """Return left, top, right, bottom of each object in pixels; zeros for an empty mask."""
        boxes = [
            _bounding_box(self._mask(obj)) if obj.box is None else obj.box for obj in self.objects
        ]
        corners = [box or (0.0, 0.0, 0.0, 0.0) for box in boxes]
        return torch.tensor(corners, dtype=torch.float32).view(-1, 4)

    def areas(self) -> list[float]:
        """Return the area of each object in pixels, annotated or computed from its mask."""
        return [
            float(self._mask(obj).sum()) if obj.area is None else obj.area for obj in self.objects
        ]

    def _mask(self, obj: AnnotatedObject) -> Bool[np.ndarray, "y x"]:
        if obj.segmentation is None and obj.box is not None:
            return boxes_mask([obj.box], self.size)
        try:
            return _load_mask(obj.segmentation, self.size)
        except ValueError as error:
            raise ValueError(f"{self.path}, {obj.category or 'mask'}: {error}") from error


def _load_mask(segmentation: Any, size: tuple[int, int]) -> Bool[np.ndarray, "y x"]:
    if isinstance(segmentation, np.ndarray):
        return segmentation
    if not isinstance(segmentation, Path):
        return segmentation_mask(segmentation, size)
    brightness = read_image(segmentation).pixels.max(2)
    if brightness.shape != tuple(size):
        raise ValueError(
            f"the mask {segmentation} must be {tuple(size)}, like its photo, got {brightness.shape}"
        )
    return brightness > brightness.max() / 2


def _bounding_box(mask: Bool[np.ndarray, "y x"]) -> Box | None:
    """Return the bounding box of a mask, or None if it is empty."""
    left, top, right, bottom = mask_boxes(mask[None])[0].tolist()
    return (left, top, right, bottom) if right > left else None
