"""Marks on a photo for what a map explains: a cross, a frame, a contour."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, UInt8
from PIL import Image, ImageDraw

from visattn.viz.maps.contours import draw_contours

_LINE, _HALO = (255, 255, 255), (0, 0, 0)


def draw_cross(image: UInt8[np.ndarray, "y x 3"], x: float, y: float) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with a cross around a pixel, which itself stays visible.

    Args:
        image: RGB.
        x: Column of the pixel, from 0.
        y: Row of the pixel.

    Example:
        >>> drawn = draw_cross(np.zeros((40, 40, 3), np.uint8), 20, 10)
        >>> int(drawn[10, 26, 0]), int(drawn[10, 20, 0])
        (255, 0)
    """
    width = _line_width(image)
    gap, arm = 1.5 * width, 5 * width
    arms = [
        (x + dx * gap, y + dy * gap, x + dx * arm, y + dy * arm)
        for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1))
    ]
    return _draw_lines(image, arms, width)


def draw_frame(
    image: UInt8[np.ndarray, "y x 3"], box: Sequence[float]
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with the frame of a box.

    Args:
        image: RGB.
        box: Left, top, right, bottom in pixels.

    Example:
        >>> drawn = draw_frame(np.zeros((40, 40, 3), np.uint8), (10, 10, 30, 30))
        >>> bool(drawn[10, 20, 0] > 0), int(drawn[20, 20, 0])
        (True, 0)
    """
    left, top, right, bottom = box[0], box[1], box[2] - 1, box[3] - 1
    sides = [
        (left, top, right, top),
        (right, top, right, bottom),
        (left, bottom, right, bottom),
        (left, top, left, bottom),
    ]
    return _draw_lines(image, sides, _line_width(image))


def draw_region(
    image: UInt8[np.ndarray, "y x 3"], mask: Bool[np.ndarray, "y x"]
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with the contour of a region.

    Args:
        image: RGB.
        mask: True in the region.

    Example:
        >>> mask = np.zeros((40, 40), bool)
        >>> mask[10:30, 10:30] = True
        >>> drawn = draw_region(np.zeros((40, 40, 3), np.uint8), mask)
        >>> bool(drawn[10, 20, 0] > 0), int(drawn[20, 20, 0])
        (True, 0)
    """
    return draw_contours(
        image, mask.astype(np.float32), [0.5], [_LINE], line_width=_line_width(image)
    )


def _line_width(image: np.ndarray) -> int:
    return max(2, round(min(image.shape[:2]) / 160))


def _draw_lines(
    image: np.ndarray, lines: Sequence[tuple[float, float, float, float]], width: int
) -> UInt8[np.ndarray, "y x 3"]:
    """Draw white lines with a dark halo."""
    canvas = Image.fromarray(image)
    draw = ImageDraw.Draw(canvas)
    for color, extra in ((_HALO, 2), (_LINE, 0)):
        for line in lines:
            draw.line([round(value) for value in line], fill=color, width=width + extra)
    return np.array(canvas)
