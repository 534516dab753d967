"""A caption on one page: the image, then where the model looked for each of its words."""

import math
from collections.abc import Sequence, Sized
from functools import partial

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.viz.layout.grid import MARGIN, tile_grid, titled_page
from visattn.viz.layout.text import shortened, typeface
from visattn.viz.maps.heatmap import Style, overlay
from visattn.viz.maps.legend import GATE, HEIGHT, INK, SMALL, SOFT, TRACK, draw_legend
from visattn.viz.maps.resize import resized_image, resized_map

_NARROWEST = 480  # the legend needs as much
_WORD = 17  # height in pixels
_BETA = "\N{GREEK SMALL LETTER BETA}"


def caption_panel(
    image: UInt8[np.ndarray, "y x 3"],
    words: Sequence[str],
    maps: Float[np.ndarray, "t y2 x2"],
    *,
    log_probabilities: Sequence[float] | None = None,
    gates: Sequence[float] | None = None,
    low: float = 0.0,
    high: float | None = None,
    colors: str = "magma",
    opacity: float = 0.7,
    style: Style = "heat",
    width: int = 1200,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a page that shows where the model looked when it said each word.

    All words share one scale, which is printed below.

    Args:
        image: RGB, of any size and proportions.
        words: At least one; what is too long for its tile ends in an ellipsis.
        maps: One for each word, over the whole image, at any size; NaN where it was not seen.
            `AttentionMap.on_image(tile_size(...))` makes them at the size that is drawn.
        log_probabilities: Natural logarithms, one for each word; shown as per cent.
        gates: How much of the image went into each word, 0 to 1; shown as a strip.
        low: The value at which attention begins to show.
        high: The value that shows in full. By default the peak of the middle word, when words are
            ordered by their peaks: so no single word leaves all others in the dark.
        colors: The table of `heat`, see `color_table`.
        opacity: How far attention in full covers the image, between 0 and 1.
        style: `heat` or `light`, see `overlay`.
        width: Of the page, in pixels, at least 480. The height follows.

    Raises:
        ValueError: If there is no word, something has not one entry for each word, or the page is
            too narrow.

    Example:
        >>> image = np.zeros((30, 40, 3), dtype=np.uint8)
        >>> caption_panel(image, ["a", "dog"], np.zeros((2, 30, 40)), width=600).shape[1]
        600
    """
    _check(words, {"maps": maps, "log_probabilities": log_probabilities, "gates": gates}, width)
    peaks = _peaks(maps, low)
    top = _middle(peaks, low) if high is None else high
    shown = partial(overlay, low=low, high=top, colors=colors, opacity=opacity, style=style)
    grid = tile_grid((image.shape[0], image.shape[1]), len(words) + 1, width)
    small = resized_image(image, grid.tile)
    tiles = [small, *(shown(small, resized_map(one, grid.tile)) for one in maps)]
    text = 38 if gates is None else 58
    page, places = titled_page(" ".join(words), grid, width, text, HEIGHT)
    pen = ImageDraw.Draw(page)
    for index, (tile, (x, y)) in enumerate(zip(tiles, places, strict=False)):
        page.paste(Image.fromarray(tile), (x, y))
        below, word = (x, y + grid.tile[0] + 8), index - 1
        if not index:
            _write_size(pen, below, image)
            continue
        chance = "" if log_probabilities is None else _per_cent(log_probabilities[word])
        _write_word(pen, below, grid.cell, words[word], chance)
        if gates is not None:
            _draw_gate(pen, below, grid.cell, gates[word])
    unseen = bool(np.isnan(maps).any())
    place = (MARGIN, page.height - HEIGHT)
    draw_legend(
        page,
        place,
        shown,
        (low, top),
        clipped=max(peaks) > top,
        unseen=unseen,
        gates=gates is not None,
    )
    return np.array(page)


def _check(words: Sequence[str], given: dict[str, Sized | None], width: int) -> None:
    if not words:
        raise ValueError("a panel needs at least one word")
    for name, values in given.items():
        if values is not None and len(values) != len(words):
            raise ValueError(
                f"{name} must be one for each of {len(words)} words, got {len(values)}"
            )
    if width < _NARROWEST:
        raise ValueError(f"a panel must be at least {_NARROWEST} pixels wide, got {width}")


def _peaks(maps: Float[np.ndarray, "t y x"], low: float) -> list[float]:
    """Return the largest value of each map that can be seen."""
    return [float(one[np.isfinite(one)].max(initial=low)) for one in maps]


def _middle(peaks: list[float], low: float) -> float:
    middle = sorted(peaks)[len(peaks) // 2]
    return middle if middle > low else low + 1.0


def _write_size(
    pen: ImageDraw.ImageDraw, place: tuple[int, int], image: UInt8[np.ndarray, "y x 3"]
) -> None:
    text = f"{image.shape[1]} \N{MULTIPLICATION SIGN} {image.shape[0]}"
    pen.text((place[0], place[1] + 5), text, SOFT, typeface(SMALL))


def _write_word(
    pen: ImageDraw.ImageDraw, place: tuple[int, int], width: int, word: str, chance: str
) -> None:
    (x, y), length = place, typeface(SMALL).getlength(chance)
    pen.text((x + width - length, y + 5), chance, SOFT, typeface(SMALL))
    room = width - length - (10 if chance else 0)
    pen.text((x, y), shortened(word, typeface(_WORD), room), INK, typeface(_WORD))


def _per_cent(log_probability: float) -> str:
    share = 100 * math.exp(min(log_probability, 0.0))
    return "<1 %" if share < 1 else f"{share:.0f} %"


def _draw_gate(pen: ImageDraw.ImageDraw, place: tuple[int, int], width: int, gate: float) -> None:
    (x, y), font = (place[0], place[1] + 32), typeface(SMALL)
    length = width - font.getlength(f"{_BETA} 0.00") - 10
    pen.rounded_rectangle((x, y, x + length, y + 4), 2, TRACK)
    filled = length * min(max(gate, 0.0), 1.0)
    if filled >= 1:
        pen.rounded_rectangle((x, y, x + filled, y + 4), 2, GATE)
    pen.text((x + length + 10, y - 5), f"{_BETA} {gate:.2f}", SOFT, font)
