"""Tiles that show the whole photo, or only the part of it that the model saw."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from jaxtyping import Float, UInt8

from visattn.geometry.affine import Box, Geometry
from visattn.viz.marks import draw_frame

_SMALLEST = 1 / 16  # of a side of the photo; the whole is drawn so large that the part fills a tile


@dataclass(frozen=True)
class PhotoPart:
    """The part of a photo that tiles show.

    What lies on a photo is drawn on all of it, at `whole_size`, and then cut to the `window`.

    Args:
        image_size: Height and width of the photo.
        box: Left, top, right, bottom of the part in pixels of the photo.

    Example:
        >>> panorama = Geometry.identity((50, 200)).cropped(0, 80, (50, 40))
        >>> part = PhotoPart.of(panorama, crop=True)
        >>> part.size, part.whole_size((100, 80)), part.window((100, 80))
        ((50, 40), (101, 405), (slice(0, 100, None), slice(162, 242, None)))
    """

    image_size: tuple[int, int]
    box: Box

    @classmethod
    def of(cls, geometry: Geometry, *, crop: bool) -> Self:
        """Return the part that the network saw, or the whole photo.

        Args:
            geometry: Geometry of the maps on the photo.
            crop: Whether to show only what the network saw, if it is at least a sixteenth of the
                photo along both sides.
        """
        height, width = geometry.image_size
        left, top, right, bottom = geometry.region
        share = min((right - left) / width, (bottom - top) / height)
        if not crop or share < _SMALLEST:
            return cls((height, width), (0.0, 0.0, float(width), float(height)))
        return cls((height, width), geometry.region)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the part in pixels of the photo."""
        left, top, right, bottom = self.box
        return max(1, round(bottom - top)), max(1, round(right - left))

    def whole_size(self, tile: tuple[int, int]) -> tuple[int, int]:
        """Return height and width of the photo when its part has the size of a tile.

        Args:
            tile: Height and width of the tile.
        """
        if self.size == self.image_size:
            return tile
        left, top, right, bottom = self.box
        # A pixel more than fills the tile: the window then lies inside of the part after rounding.
        height = self.image_size[0] * (tile[0] + 1) / (bottom - top)
        width = self.image_size[1] * (tile[1] + 1) / (right - left)
        return math.ceil(height), math.ceil(width)

    def window(self, tile: tuple[int, int]) -> tuple[slice, slice]:
        """Return the rows and columns of the part on the photo at `whole_size`.

        Args:
            tile: Height and width of the tile.
        """
        if self.size == self.image_size:
            return slice(0, tile[0]), slice(0, tile[1])
        height, width = self.whole_size(tile)
        left, top, *_ = self.box
        y = max(0, math.ceil(top * height / self.image_size[0] - 0.5))
        x = max(0, math.ceil(left * width / self.image_size[1] - 0.5))
        return slice(y, y + tile[0]), slice(x, x + tile[1])

    def boxes_on_tile(
        self, boxes: Float[np.ndarray, "n 4"], tile: tuple[int, int]
    ) -> Float[np.ndarray, "n 4"]:
        """Return boxes of the photo in pixels of a tile.

        Args:
            boxes: Left, top, right, bottom of each, in pixels of the photo.
            tile: Height and width of the tile.
        """
        (height, width), (rows, columns) = self.whole_size(tile), self.window(tile)
        scale = np.array([width / self.image_size[1], height / self.image_size[0]])
        return boxes * np.tile(scale, 2) - np.tile([columns.start, rows.start], 2)

    def outline(
        self, tile: UInt8[np.ndarray, "y x 3"], boxes: Sequence[Box]
    ) -> UInt8[np.ndarray, "y x 3"]:
        """Return a tile with the frames of boxes.

        Args:
            tile: RGB.
            boxes: In pixels of the photo.
        """
        placed = np.array(boxes, np.float64).reshape(-1, 4)
        for each in self.boxes_on_tile(placed, (tile.shape[0], tile.shape[1])):
            tile = draw_frame(tile, each.tolist())
        return tile
