"""Boxes with labels, and sampling points, drawn on an image."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.viz.layout.text import UnicodeFont, load_font, truncate_text
from visattn.viz.maps.legend import BACKGROUND, TEXT

Color = tuple[int, int, int]

_SUPERSAMPLING = 3
# The qualitative colors of Okabe and Ito, which color-blind people can tell apart.
_PALETTE: tuple[Color, ...] = (
    (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0),
    (204, 121, 167),
)  # fmt: skip
_OUTLINE = (20, 20, 20)


@dataclass(frozen=True, eq=False)
class LabeledBox:
    """A box with its text and color.

    Args:
        box: Left, top, right, bottom in pixels of the image.
        text: Label; "" for none.
        color: Color of the line and of the label.
    """

    box: Float[np.ndarray, " 4"]
    text: str
    color: Color


def box_color(index: int) -> Color:
    """Return the color of a class.

    Example:
        >>> box_color(0), box_color(7) == box_color(0)
        ((230, 159, 0), True)
    """
    return _PALETTE[index % len(_PALETTE)]


def draw_boxes(
    image: UInt8[np.ndarray, "y x 3"], boxes: Sequence[LabeledBox]
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with boxes; the first lies on top.

    Args:
        image: RGB.
        boxes: In pixels of the image.

    Example:
        >>> box = LabeledBox(np.array([2.0, 2.0, 18.0, 18.0]), "", (230, 159, 0))
        >>> draw_boxes(np.zeros((20, 20, 3), np.uint8), [box])[2, 10].tolist()
        [230, 159, 0]
    """
    drawn = Image.fromarray(image).copy()
    pen = ImageDraw.Draw(drawn)
    line = max(1, round(min(image.shape[:2]) / 150))
    font = load_font(max(10, min(18, round(min(image.shape[:2]) / 22))))
    for each in reversed(boxes):
        left, top, right, bottom = (round(float(side)) for side in each.box)
        right, bottom = max(left, right - 1), max(top, bottom - 1)
        if line > 1:
            pen.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=_OUTLINE, width=1)
        pen.rectangle((left, top, right, bottom), outline=each.color, width=line)
    for each in reversed(boxes):
        if each.text:
            _draw_label(pen, each, font, (image.shape[0], image.shape[1]))
    return np.array(drawn)


def draw_points(
    image: UInt8[np.ndarray, "y x 3"], points: Float[np.ndarray, "p 3"], color: Color
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with points whose area grows with their weight.

    Args:
        image: RGB.
        points: x and y in pixels of the image, and weight, of each; weights sum to 1. Points
            outside of the image are not seen.
        color: Color of the points.

    Example:
        >>> point = np.array([[10.0, 10.0, 1.0]])
        >>> draw_points(np.zeros((20, 20, 3), np.uint8), point, (230, 159, 0))[10, 10].tolist()
        [230, 159, 0]
    """
    size = (image.shape[1] * _SUPERSAMPLING, image.shape[0] * _SUPERSAMPLING)
    large = Image.fromarray(image).resize(size, Image.Resampling.NEAREST)
    pen = ImageDraw.Draw(large)
    largest = max(2.0, min(image.shape[:2]) / 22)
    for x, y, weight in sorted(points.tolist(), key=lambda point: -point[2]):
        radius = max(1.0, largest * min(1.0, float(np.sqrt(weight * len(points) / 8))))
        for reach, fill in ((radius + 0.7, _OUTLINE), (radius, color)):
            corners = (x - reach, y - reach, x + reach, y + reach)
            pen.ellipse(tuple(side * _SUPERSAMPLING for side in corners), fill)
    return np.array(large.reduce(_SUPERSAMPLING))


def _draw_label(
    pen: ImageDraw.ImageDraw, box: LabeledBox, font: UnicodeFont, size: tuple[int, int]
) -> None:
    """Write the label above the box, or inside of it where there is no space."""
    text = truncate_text(box.text, font, size[1] - 8)
    left, top = (round(float(side)) for side in box.box[:2])
    height, width = round(font.size * 1.35), round(font.getlength(text)) + 8
    left = max(0, min(left, size[1] - width))
    top = top - height if top >= height else top
    pen.rectangle((left, top, left + width - 1, top + height - 1), box.color)
    luminance = 0.3 * box.color[0] + 0.59 * box.color[1] + 0.11 * box.color[2]
    pen.text(
        (left + 4, top + height / 2), text, TEXT if luminance > 120 else BACKGROUND, font, "lm"
    )
