"""Contours of maps and marks of what they explain, drawn with antialiasing."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, UInt8
from PIL import Image, ImageDraw

Color = tuple[int, int, int]

CONTOUR_FRACTIONS = (0.25, 0.5, 0.75)  # of the range from vmin to vmax
_HALO_WIDTH, _HALO_OPACITY = 1.5, 0.6  # of the dark halo on each side of a line; pixels, opacity


def draw_contours(
    image: UInt8[np.ndarray, "y x 3"],
    values: Float[np.ndarray, "rows columns"],
    levels: Sequence[float],
    colors: Sequence[Color],
    *,
    line_width: float = 2.0,
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with a contour line at each level.

    Each line has a dark halo, so that it is visible on any background.

    Args:
        image: RGB.
        values: One per pixel of the image; there is no line beside NaN.
        levels: Value on each line.
        colors: Color of each line, RGB.
        line_width: Width of the lines in pixels.

    Raises:
        ValueError: If the sizes or the numbers of levels and colors differ, or the line width is
            not positive.

    Example:
        >>> ramp = np.linspace(0.0, 1.0, 9)[None].repeat(9, axis=0)
        >>> drawn = draw_contours(np.zeros((9, 9, 3), np.uint8), ramp, [0.5], [(255, 255, 255)])
        >>> int(drawn[4, 4, 0]), int(drawn[4, 0, 0])
        (255, 0)
    """
    if image.shape[:2] != values.shape:
        raise ValueError(
            f"values must be one per pixel of the image, {image.shape[:2]}, got {values.shape}"
        )
    if not line_width > 0:
        raise ValueError(f"line_width must be above 0 pixels, got {line_width}")
    output = image.astype(np.float32)
    for level, color in zip(levels, colors, strict=True):
        distance = _contour_distance(values, level)
        halo = _HALO_OPACITY * _line_coverage(distance, line_width / 2 + _HALO_WIDTH)
        line = _line_coverage(distance, line_width / 2)
        output *= (1 - halo)[..., None]
        output += line[..., None] * (np.array(color, np.uint8) - output)
    return np.rint(output).astype(np.uint8)


def draw_range_contours(
    image: UInt8[np.ndarray, "y x 3"],
    values: Float[np.ndarray, "y x"],
    vmin: float,
    vmax: float,
    palettes: Sequence[bytes],
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with contour lines at 25, 50 and 75 % of the value range.

    Args:
        image: RGB.
        values: One per pixel of the image; there is no line beside NaN.
        vmin: Lower end of the value range.
        vmax: Upper end of the value range.
        palettes: Interleaved RGB of 256 levels: one palette for lines of positive values, and
            optionally a second one for lines of negative values.

    Example:
        >>> ramp = np.linspace(0.0, 1.0, 9)[None].repeat(9, axis=0)
        >>> white = bytes([255] * 768)
        >>> drawn = draw_range_contours(np.zeros((9, 9, 3), np.uint8), ramp, 0.0, 2.0, [white])
        >>> int(drawn[4, 4, 0]), int(drawn[4, 0, 0])
        (255, 0)
    """
    levels: list[float] = []
    colors: list[Color] = []
    for sign, palette in zip((1, -1), palettes, strict=False):
        lut = np.frombuffer(palette, np.uint8).reshape(256, 3)
        for fraction in CONTOUR_FRACTIONS:
            levels.append(sign * (vmin + fraction * (vmax - vmin)))
            red, green, blue = lut[round(255 * fraction)].tolist()
            colors.append((red, green, blue))
    return draw_contours(
        image, values, levels, colors, line_width=max(1.6, min(values.shape) / 220)
    )


def _contour_distance(values: Float[np.ndarray, "y x"], level: float) -> Float[np.ndarray, "y x"]:
    """Return the distance of each pixel to a contour, to first order: |value - level| / |gradient|.

    It is infinite where the gradient is 0 or NaN, and everywhere if no contour of the level exists.
    """
    # The level 1.5 is 1.5, 0.5, 0.5 and 1.5 pixels away from pixels of the values 0, 1, 2 and 3.
    difference = values.astype(np.float32) - np.float32(level)
    if not ((difference >= 0).any() and (difference <= 0).any()):
        return np.full_like(difference, np.inf)
    gradient = np.zeros_like(difference)
    for axis in (0, 1):
        if difference.shape[axis] > 1:
            gradient += _steepest_slope(difference, axis) ** 2
    np.sqrt(gradient, out=gradient)
    with np.errstate(invalid="ignore", divide="ignore"):
        distance = np.abs(difference) / gradient
    return np.where(gradient > 0, distance, np.inf)


def _steepest_slope(values: Float[np.ndarray, "y x"], axis: int) -> Float[np.ndarray, "y x"]:
    """Return the steeper of the two slopes beside each pixel; the edge between cells is a step."""
    slopes = np.abs(np.diff(values, axis=axis))
    after = [(0, 0), (0, 0)]
    before = [(0, 0), (0, 0)]
    after[axis], before[axis] = (0, 1), (1, 0)
    return np.maximum(np.pad(slopes, after, mode="edge"), np.pad(slopes, before, mode="edge"))


def _line_coverage(
    distance: Float[np.ndarray, "y x"], half_width: float
) -> Float[np.ndarray, "y x"]:
    """Return the fraction of each pixel that a line covers (antialiasing)."""
    return np.clip(np.float32(half_width + 0.5) - distance, 0, 1)


_LINE = (255, 255, 255)
_HALO = (0, 0, 0)


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
    gap = 1.5 * width
    arm = 5 * width
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
    # Lines run through pixels, and the right edge of a box ends the pixel before it.
    left = box[0]
    top = box[1]
    right = box[2] - 1
    bottom = box[3] - 1
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
