"""Colors of figures, and the legend that explains a color scale."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw

from visattn.viz.layout.text import load_font

BACKGROUND, TEXT, MUTED = (250, 250, 247), (34, 36, 40), (120, 122, 126)
TRACK, ACCENT = (226, 226, 221), (64, 128, 142)
SMALL = 12  # font size of annotations
LEGEND_HEIGHT = 64

_BAR_WIDTH, _SWATCH_WIDTH, _BAR_HEIGHT, _SPACING = 220, 34, 12, 40
_GRAY = 150  # stands for the image below the colors


@dataclass(frozen=True, eq=False)
class Legend:
    """A color bar, and swatches for the other elements of a figure.

    Args:
        draw_overlay: Draws values on an image in the way of the figure.
        value_range: Values at the ends of the color bar.
        label: Quantity that the colors show.
        clipped: Whether the figure has values above the range.
        has_nan: Whether the figure has pixels outside the model's input.
        gate_symbol: Symbol of the gates that the figure shows; None without gates.
        end_labels: Labels at the ends of the bar; by default its values.
        height: Height in a figure, in pixels.

    Example:
        >>> page = Image.new("RGB", (400, LEGEND_HEIGHT), BACKGROUND)
        >>> Legend(lambda gray, values: gray, (0.0, 1.0)).draw(page, (10, 10))
        >>> page.getpixel((20, 15))
        (150, 150, 150)
    """

    draw_overlay: Callable[[np.ndarray, np.ndarray], np.ndarray]
    value_range: tuple[float, float]
    label: str = "attention"
    clipped: bool = False
    has_nan: bool = False
    gate_symbol: str | None = None
    end_labels: tuple[str, str] | None = None
    height: int = LEGEND_HEIGHT

    def draw(self, page: Image.Image, position: tuple[int, int]) -> None:
        """Draw the legend.

        Args:
            page: Is drawn on.
            position: Left and top of the legend.
        """
        (x, y), (vmin, vmax) = position, self.value_range
        pen, font, symbol = ImageDraw.Draw(page), load_font(SMALL), self.gate_symbol
        ramp = np.tile(np.linspace(vmin, vmax, _BAR_WIDTH), (_BAR_HEIGHT, 1))
        page.paste(Image.fromarray(self.draw_overlay(_gray_image(_BAR_WIDTH), ramp)), position)
        for share, text in _tick_labels(vmin, vmax, self.end_labels, clipped=self.clipped):
            anchor = {0.0: "la", 0.5: "ma", 1.0: "ra"}[share]
            pen.text((x + share * _BAR_WIDTH, y + 18), text, MUTED, font, anchor=anchor)
        x = _write_label(pen, self.label, x + _BAR_WIDTH, y)
        if self.has_nan:
            nan = np.full((_BAR_HEIGHT, _SWATCH_WIDTH), np.nan)
            hatched = self.draw_overlay(_gray_image(_SWATCH_WIDTH), nan)
            page.paste(Image.fromarray(hatched), (x, y))
            x = _write_label(pen, "not seen by the model", x + _SWATCH_WIDTH, y)
        if symbol is not None:
            pen.rounded_rectangle((x, y + 4, x + _SWATCH_WIDTH, y + 8), 2, ACCENT)
            label = f"share {symbol}" if " " in symbol else f"gate {symbol}"
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
