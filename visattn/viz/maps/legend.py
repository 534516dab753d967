"""What the colors of a page mean."""

from collections.abc import Callable

import numpy as np
from PIL import Image, ImageDraw

from visattn.viz.layout.text import typeface

PAPER, INK, SOFT = (250, 250, 247), (34, 36, 40), (120, 122, 126)
TRACK, GATE = (226, 226, 221), (64, 128, 142)
SMALL = 12  # height of the small print
HEIGHT = 64

_BAR, _SWATCH, _THICK, _APART = 220, 34, 12, 40
_GRAY = 150  # what stands for an image behind the colors


def draw_legend(
    page: Image.Image,
    place: tuple[int, int],
    shown: Callable[[np.ndarray, np.ndarray], np.ndarray],
    scale: tuple[float, float],
    *,
    clipped: bool = False,
    unseen: bool = False,
    gates: bool = False,
    ends: tuple[str, str] | None = None,
    name: str = "attention",
) -> None:
    """Draw the scale on a page, and what else stands on it.

    Args:
        page: Is drawn on.
        place: Left and top of the legend.
        shown: Draws values on an image, as the page does: the bar looks like what it explains.
        scale: The values at which attention begins to show, and shows in full.
        clipped: Whether there are larger values than the scale has.
        unseen: Whether the page shows what was not seen.
        gates: Whether the page shows gates.
        ends: Stand at the ends of the scale in place of its numbers.
        name: Of what the colors show.

    Example:
        >>> page = Image.new("RGB", (400, HEIGHT), PAPER)
        >>> draw_legend(page, (10, 10), lambda gray, values: gray, (0.0, 1.0))
        >>> page.getpixel((20, 15))
        (150, 150, 150)
    """
    (x, y), (low, high) = place, scale
    pen, font = ImageDraw.Draw(page), typeface(SMALL)
    ramp = np.tile(np.linspace(low, high, _BAR), (_THICK, 1))
    page.paste(Image.fromarray(shown(_gray(_BAR), ramp)), place)
    for share, text in _marks(low, high, ends, clipped=clipped):
        anchor = {0.0: "la", 0.5: "ma", 1.0: "ra"}[share]
        pen.text((x + share * _BAR, y + 18), text, SOFT, font, anchor=anchor)
    x = _named(pen, name, x + _BAR, y)
    if unseen:
        blank = np.full((_THICK, _SWATCH), np.nan)
        page.paste(Image.fromarray(shown(_gray(_SWATCH), blank)), (x, y))
        x = _named(pen, "not seen", x + _SWATCH, y)
    if gates:
        pen.rounded_rectangle((x, y + 4, x + _SWATCH, y + 8), 2, GATE)
        _named(pen, "gate \N{GREEK SMALL LETTER BETA}", x + _SWATCH, y)


def _marks(
    low: float, high: float, ends: tuple[str, str] | None, *, clipped: bool
) -> list[tuple[float, str]]:
    """Return what stands below the bar, and at which share of it."""
    if ends is not None:
        return [(0.0, ends[0]), (1.0, ends[1])]
    more = "\N{GREATER-THAN OR EQUAL TO} " if clipped else ""
    return [(0.0, f"{low:.2g}"), (0.5, f"{(low + high) / 2:.2g}"), (1.0, f"{more}{high:.2g}")]


def _gray(width: int) -> np.ndarray:
    return np.full((_THICK, width, 3), _GRAY, dtype=np.uint8)


def _named(pen: ImageDraw.ImageDraw, text: str, x: int, y: int) -> int:
    """Write a name beside a swatch that ends at x; return where the next swatch may begin."""
    pen.text((x + 12, y + 6), text, SOFT, typeface(SMALL), anchor="lm")
    return x + 12 + round(typeface(SMALL).getlength(text)) + _APART
