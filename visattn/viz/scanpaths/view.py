"""How an image and the boxes on it come onto a canvas of limited size."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

from visattn.viz.maps.legend import TRACK
from visattn.viz.maps.resize import resized_image

_SQUARES = 3  # from this scale on the image's pixels are drawn as equal squares


@dataclass(frozen=True)
class ScanView:
    """An image's place on a canvas.

    Args:
        size: Height and width of the canvas.
        drawn: Height and width of the image on it.
        corner: Left and top of the image on it.
        scale: Pixels of the canvas in a pixel of the image, along x and along y.
    """

    size: tuple[int, int]
    drawn: tuple[int, int]
    corner: tuple[int, int]
    scale: tuple[float, float]

    @property
    def area(self) -> tuple[int, int, int, int]:
        """Left, top, right and bottom of the image on the canvas."""
        left, top = self.corner
        return left, top, left + self.drawn[1], top + self.drawn[0]

    def boxes(self, boxes: Float[np.ndarray, "*n 4"]) -> Float[np.ndarray, "*n 4"]:
        """Return boxes of the image as boxes of the canvas."""
        return self.boxes_on_image(boxes) + np.array(self.corner * 2, dtype=float)

    def boxes_on_image(self, boxes: Float[np.ndarray, "*n 4"]) -> Float[np.ndarray, "*n 4"]:
        """Return boxes of the image as boxes of the image as it is drawn, without margins."""
        return boxes * np.array(self.scale * 2)

    def canvas(self, image: UInt8[np.ndarray, "y x 3"]) -> UInt8[np.ndarray, "y2 x2 3"]:
        """Return the image in its place, beside it the color of what is no image."""
        ground = np.empty((*self.size, 3), np.uint8)
        ground[:] = TRACK
        (left, top), (height, width) = self.corner, self.drawn
        ground[top : top + height, left : left + width] = resized_image(image, self.drawn)
        return ground


def scan_view(
    size: tuple[int, int],
    boxes: Float[np.ndarray, "t s 4"],
    room: tuple[int, int],
    *,
    reach: float = 0.15,
) -> ScanView:
    """Return how an image and its glimpses fill a room.

    Pixels that are drawn large are drawn equal.

    Args:
        size: Height and width of the image.
        boxes: Left, top, right and bottom of each window, finest first, in the image's pixels.
        room: Height and width that the canvas may have.
        reach: How far the canvas follows the finest windows out of the image, at most, as a share
            of its longer side.

    Example:
        >>> scan_view((28, 28), np.array([[[-4.0, 10.0, 4.0, 18.0]]]), (340, 340)).corner
        (40, 0)
    """
    far, fine = reach * max(size), boxes[:, 0]
    before = np.clip(-fine[:, :2].min(0, initial=0), 0, far)  # left, top
    after = np.clip(fine[:, 2:].max(0, initial=0) - np.array(size[::-1]), 0, far)
    across, down = before + after + np.array(size[::-1])
    scale = min(room[1] / across, room[0] / down)
    scale = float(int(scale)) if scale >= _SQUARES else scale
    drawn = max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
    (left, top), (right, bottom) = np.ceil(before * scale), np.ceil(after * scale)
    whole = (drawn[0] + int(top) + int(bottom), drawn[1] + int(left) + int(right))
    return ScanView(whole, drawn, (int(left), int(top)), (drawn[1] / size[1], drawn[0] / size[0]))
