"""Contours of maps and marks of their targets, drawn on arrays with antialiasing."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, UInt8

Color = tuple[int, int, int]

_WHITE = (255, 255, 255)
_HALO = 1.5, 0.6  # dark halo on each side of a line: pixels, opacity
_SMOOTHING = 80  # shorter side of the image / sigma; unsmoothed lines have corners


def draw_contour(
    image: UInt8[np.ndarray, "y x 3"],
    values: Float[np.ndarray, "rows columns"],
    level: float,
    color: Color = _WHITE,
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with the line on which a map, slightly smoothed, has a value.

    The line has a dark halo, so that it is visible on any background.

    Args:
        image: RGB.
        values: One per pixel of the image; no line is drawn next to NaN.
        level: Value of the contour.
        color: RGB.

    Example:
        >>> ramp = np.linspace(0.0, 1.0, 9)[None].repeat(9, axis=0)
        >>> drawn = draw_contour(np.zeros((9, 9, 3), np.uint8), ramp, 0.5)
        >>> int(drawn[4, 4, 0]), int(drawn[4, 0, 0])
        (255, 0)
    """
    # First-order distance to the line: |value - level| / |gradient|.
    import cv2  # slow to import

    side = min(values.shape)
    kept = np.nan_to_num(values, nan=level).astype(np.float32)
    smooth = cv2.GaussianBlur(kept, (0, 0), side / _SMOOTHING + 0.1, borderType=cv2.BORDER_REFLECT)
    slope = np.hypot(cv2.Sobel(smooth, cv2.CV_32F, 1, 0, scale=1 / 8),
                     cv2.Sobel(smooth, cv2.CV_32F, 0, 1, scale=1 / 8))  # fmt: skip
    slope[np.isnan(values)] = 0
    distance = np.full_like(smooth, np.inf)
    np.divide(np.abs(smooth - level), slope, out=distance, where=slope > 0)
    if not (smooth.min() <= level <= smooth.max()):
        return image
    half = max(1.6, side / 220) / 2
    halo = _HALO[1] * np.clip(half + _HALO[0] + 0.5 - distance, 0, 1)[..., None]
    line = np.clip(half + 0.5 - distance, 0, 1)[..., None]
    drawn = image * (1 - halo)
    return np.rint(drawn + line * (np.array(color) - drawn)).astype(np.uint8)


def draw_cross(image: UInt8[np.ndarray, "y x 3"], x: float, y: float) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with a cross around a pixel, which remains visible.

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
    center = np.array([x, y])
    arms = [
        center + width * np.outer((1.5, 5), each) for each in ((1, 0), (-1, 0), (0, 1), (0, -1))
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
    # Lines run through pixel centers; the right edge of a box is exclusive.
    left, top, right, bottom = box[0], box[1], box[2] - 1, box[3] - 1
    outline = [(left, top), (right, top), (right, bottom), (left, bottom), (left, top)]
    return _draw_lines(image, [np.array(outline, float)], _line_width(image))


def draw_region(
    image: UInt8[np.ndarray, "y x 3"], mask: Bool[np.ndarray, "y x"]
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with the outline of a region.

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
    import cv2  # slow to import

    found, _ = cv2.findContours(mask.astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
    closed = [np.concatenate([each[:, 0], each[:1, 0]]).astype(float) for each in found]
    return _draw_lines(image, closed, _line_width(image))


def _line_width(image: np.ndarray) -> int:
    return max(2, round(min(image.shape[:2]) / 160))


def _draw_lines(
    image: np.ndarray, lines: Sequence[Float[np.ndarray, "n 2"]], width: int
) -> UInt8[np.ndarray, "y x 3"]:
    """Draw white lines with a dark halo."""
    import cv2  # slow to import

    drawn = image.copy()
    points = [np.rint(line).astype(np.int32) for line in lines]
    for color, extra in (((0, 0, 0), 2), (_WHITE, 0)):
        cv2.polylines(drawn, points, isClosed=False, color=color, thickness=width + extra)
    return drawn
