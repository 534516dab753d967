"""Tiles that show the whole photo, or only the part of it that the model saw."""

from dataclasses import dataclass
from typing import Self

from visattn.geometry.affine import Box, Geometry

_MAX_SIDE = 8192  # of the whole photo, drawn so large that a small part of it fills a tile


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
        ((50, 40), (100, 400), (slice(0, 100, None), slice(160, 240, None)))
    """

    image_size: tuple[int, int]
    box: Box

    @classmethod
    def of(cls, geometry: Geometry, *, crop: bool) -> Self:
        """Return the part that the network saw, or the whole photo.

        Args:
            geometry: Geometry of the maps on the photo.
            crop: Whether to show only what the network saw. A part that is too small beside the
                photo to be enlarged to a tile is not cropped.
        """
        height, width = geometry.image_size
        left, top, right, bottom = geometry.region
        share = max((right - left) / width, (bottom - top) / height)
        visible = right - left >= 1 and bottom - top >= 1
        if not crop or not visible or share * _MAX_SIDE < max(height, width) / 4:
            return cls((height, width), (0.0, 0.0, float(width), float(height)))
        return cls((height, width), geometry.region)

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the part in pixels of the photo."""
        left, top, right, bottom = self.box
        return max(1, round(bottom - top)), max(1, round(right - left))

    def whole_size(self, tile: tuple[int, int]) -> tuple[int, int]:
        """Return height and width of the photo when its part has the size of a tile."""
        left, top, right, bottom = self.box
        (height, width), (y, x) = self.image_size, tile
        whole = height * y / (bottom - top), width * x / (right - left)
        return max(y, round(whole[0])), max(x, round(whole[1]))

    def window(self, tile: tuple[int, int]) -> tuple[slice, slice]:
        """Return the rows and columns of the part on the photo at `whole_size`.

        Args:
            tile: Height and width of the tile.
        """
        whole = self.whole_size(tile)
        left, top, *_ = self.box
        y = min(round(top * whole[0] / self.image_size[0]), whole[0] - tile[0])
        x = min(round(left * whole[1] / self.image_size[1]), whole[1] - tile[1])
        return slice(y, y + tile[0]), slice(x, x + tile[1])
