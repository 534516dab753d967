"""Colors of figures, and the legend that explains a color scale."""

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

from visattn.viz.layout.text import load_font

BACKGROUND, TEXT, MUTED = (250, 250, 247), (34, 36, 40), (120, 122, 126)
TRACK, ACCENT = (226, 226, 221), (64, 128, 142)
SMALL = 12  # font size of annotations
LEGEND_HEIGHT = 64

_BAR_WIDTH, _SWATCH_WIDTH, _BAR_HEIGHT, _SPACING = 220, 34, 12, 40
_GRAY = 150  # stands for the image below the colors


def draw_legend(
    page: Image.Image,
    position: tuple[int, int],
    draw_overlay: Callable[[np.ndarray, np.ndarray], np.ndarray],
    value_range: tuple[float, float],
    *,
    clipped: bool = False,
    has_nan: bool = False,
    gate_symbol: str | None = None,
    end_labels: tuple[str, str] | None = None,
    label: str = "attention",
) -> None:
    """Draw a color bar, and swatches for the other elements of a figure.

    Args:
        page: Is drawn on.
        position: Left and top of the legend.
        draw_overlay: Draws values on an image in the way of the figure.
        value_range: Values at the ends of the color bar.
        clipped: Whether the figure has values above the range.
        has_nan: Whether the figure has pixels outside the model's input.
        gate_symbol: Symbol of the gates that the figure shows; None without gates.
        end_labels: Labels at the ends of the bar; by default its values.
        label: Quantity that the colors show.

    Example:
        >>> page = Image.new("RGB", (400, LEGEND_HEIGHT), BACKGROUND)
        >>> draw_legend(page, (10, 10), lambda gray, values: gray, (0.0, 1.0))
        >>> page.getpixel((20, 15))
        (150, 150, 150)
    """
    (x, y), (vmin, vmax) = position, value_range
    pen, font = ImageDraw.Draw(page), load_font(SMALL)
    ramp = np.tile(np.linspace(vmin, vmax, _BAR_WIDTH), (_BAR_HEIGHT, 1))
    page.paste(Image.fromarray(draw_overlay(_gray_image(_BAR_WIDTH), ramp)), position)
    for fraction, text in _tick_labels(vmin, vmax, end_labels, clipped=clipped):
        anchor = {0.0: "la", 0.5: "ma", 1.0: "ra"}[fraction]
        pen.text((x + fraction * _BAR_WIDTH, y + 18), text, MUTED, font, anchor=anchor)
    x = _write_label(pen, label, x + _BAR_WIDTH, y)
    if has_nan:
        nan = np.full((_BAR_HEIGHT, _SWATCH_WIDTH), np.nan)
        page.paste(Image.fromarray(draw_overlay(_gray_image(_SWATCH_WIDTH), nan)), (x, y))
        x = _write_label(pen, "not seen by the model", x + _SWATCH_WIDTH, y)
    if gate_symbol is not None:
        pen.rounded_rectangle((x, y + 4, x + _SWATCH_WIDTH, y + 8), 2, ACCENT)
        label = f"share {gate_symbol}" if " " in gate_symbol else f"gate {gate_symbol}"
        _write_label(pen, label, x + _SWATCH_WIDTH, y)


def _tick_labels(
    vmin: float, vmax: float, end_labels: tuple[str, str] | None, *, clipped: bool
) -> list[tuple[float, str]]:
    """Return the labels below the bar, each with its position as a fraction of the bar."""
    if end_labels is not None:
        return [(0.0, end_labels[0]), (1.0, end_labels[1])]
    prefix = "\N{GREATER-THAN OR EQUAL TO} " if clipped else ""
    return [(0.0, f"{vmin:.2g}"), (0.5, f"{(vmin + vmax) / 2:.2g}"), (1.0, f"{prefix}{vmax:.2g}")]


def _gray_image(width: int) -> np.ndarray:
    return np.full((_BAR_HEIGHT, width, 3), _GRAY, dtype=np.uint8)


def _write_label(pen: ImageDraw.ImageDraw, text: str, x: int, y: int) -> int:
    """Write a label to the right of x; return the x at which the next swatch may begin."""
    pen.text((x + 12, y + 6), text, MUTED, load_font(SMALL), anchor="lm")
    return x + 12 + round(load_font(SMALL).getlength(text)) + _SPACING
