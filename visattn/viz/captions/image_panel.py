"""Figure of a caption of several photos or of a video: the maps of a word side by side."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.viz.captions.panel import default_vmax, draw_gate, format_probability, map_peaks
from visattn.viz.layout.grid import MARGIN, draw_title, title_bottom
from visattn.viz.layout.text import load_font, truncate_text
from visattn.viz.maps.heatmap import Style, overlay
from visattn.viz.maps.legend import (
    ACCENT,
    BACKGROUND,
    LEGEND_HEIGHT,
    MUTED,
    SMALL,
    TEXT,
    TRACK,
    draw_legend,
)
from visattn.viz.maps.resize import resize_image, resize_map

_MIN_WIDTH = 480
_LABELS, _GAP, _ROW_GAP = 0.15, 8, 18  # of the width; pixels
_WORD_SIZE, _BARS, _TEXT_HEIGHT = 17, 30, 24
_MAX_COLUMNS, _MAX_HEIGHT = 12, 260


def image_panel(
    images: Sequence[UInt8[np.ndarray, "_y _x 3"]],
    labels: Sequence[str],
    words: Sequence[str],
    maps: Sequence[Float[np.ndarray, "t _y2 _x2"]],
    shares: Float[np.ndarray, "t p"],
    *,
    log_probs: Sequence[float] | None = None,
    gates: Sequence[float] | None = None,
    gate_symbol: str = "on photos",
    vmin: float = 0.0,
    vmax: float | None = None,
    colormap: str = "magma",
    opacity: float = 0.7,
    style: Style = "heat",
    width: int = 1200,
    label: str = "attention",
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure with a row per word: its maps on all images, on one color scale.

    Below each word bars show its share in every image, the highest bar that of the whole figure.
    Of more than 12 images, 12 are drawn, evenly spaced; the bars are those of all.

    Args:
        images: RGB, of any sizes: the photos of a prompt, or frames of a video.
        labels: Name or time of each.
        words: At least one.
        maps: For each image one map per word, over the whole image, at any size; NaN outside
            the model's input.
        shares: Share of each word in each image.
        log_probs: Log-probability of each word, shown as a percentage.
        gates: Gate of each word, between 0 and 1, shown as a bar.
        gate_symbol: Symbol of the gates.
        vmin: Value at the lower end of the colormap.
        vmax: Value at the upper end of the colormap; by default the median of the peaks of the
            words.
        colormap: See `colormap_lut`.
        opacity: Opacity at `vmax`, between 0 and 1.
        style: See `overlay`.
        width: Width of the figure in pixels, at least 480.
        label: Quantity that the colors show.

    Raises:
        ValueError: If there is no word, an argument does not have one entry per word or image, or
            the figure is too narrow.

    Example:
        >>> photo, values = np.zeros((30, 40, 3), np.uint8), np.zeros((1, 3, 5))
        >>> figure = image_panel([photo] * 2, ["a", "b"], ["dog"], [values] * 2, np.ones((1, 2)))
        >>> figure.shape[1]
        1200
    """
    _check(images, labels, words, maps, shares, width)
    peaks = [max(each) for each in zip(*(map_peaks(m, vmin) for m in maps), strict=True)]
    vmax = default_vmax(peaks, vmin) if vmax is None else vmax
    draw = partial(overlay, vmin=vmin, vmax=vmax, colormap=colormap, opacity=opacity, style=style)
    count = min(len(images), _MAX_COLUMNS)
    chosen = [number * len(images) // count for number in range(count)]
    subtitle = "" if count == len(images) else f"{count} of {len(images)} frames are drawn"
    left, places, sizes = _columns([images[number].shape[:2] for number in chosen], width)
    row = max([_TEXT_HEIGHT + _BARS + 36, *(size[0] for size in sizes)]) + _ROW_GAP
    title = " ".join(words)
    first = title_bottom(title, width, subtitle=subtitle)
    top = first + max(size[0] for size in sizes) + _TEXT_HEIGHT + 10
    page = Image.new("RGB", (width, top + len(words) * row + LEGEND_HEIGHT), BACKGROUND)
    draw_title(page, title, subtitle)
    pen = ImageDraw.Draw(page)
    for number, x, size in zip(chosen, places, sizes, strict=True):
        page.paste(Image.fromarray(resize_image(images[number], size)), (x, first))
        shown = truncate_text(labels[number], load_font(SMALL), size[1])
        pen.text((x, first + size[0] + 6), shown, MUTED, load_font(SMALL))
        small = resize_image(images[number], size)
        for word in range(len(words)):
            drawn = draw(small, resize_map(maps[number][word], size))
            page.paste(Image.fromarray(drawn), (x, top + word * row))
    for word, text in enumerate(words):
        probability = "" if log_probs is None else format_probability(log_probs[word])
        place = (MARGIN, top + word * row)
        _write_word(pen, place, left - MARGIN - 16, text, probability)
        if gates is not None:
            draw_gate(pen, place, left - MARGIN - 16, gates[word], gate_symbol)
        bars = (MARGIN, place[1] + (36 if gates is None else 56), left - MARGIN - 16)
        _draw_bars(pen, bars, shares[word] / max(float(shares.max()), 1e-12))
    draw_legend(
        page,
        (MARGIN, page.height - LEGEND_HEIGHT),
        draw,
        (vmin, vmax),
        clipped=max(peaks) > vmax,
        has_nan=any(bool(np.isnan(each).any()) for each in maps),
        gate_symbol=None if gates is None else gate_symbol,
        label=label,
    )
    return np.array(page)


def image_tile_sizes(
    sizes: Sequence[tuple[int, int]], *, width: int = 1200
) -> list[tuple[int, int]]:
    """Return the height and width at which `image_panel` draws each image.

    Args:
        sizes: Height and width of each image.
        width: Width of the panel in pixels.

    Example:
        >>> image_tile_sizes([(30, 40), (40, 30)])
        [(260, 347), (260, 195)]
    """
    count = min(len(sizes), _MAX_COLUMNS)
    chosen = [number * len(sizes) // count for number in range(count)]
    drawn = _columns([sizes[number] for number in chosen], width)[2]
    height = drawn[0][0]
    return [(height, max(1, round(height * size[1] / size[0]))) for size in sizes]


def _columns(
    sizes: Sequence[tuple[int, int]], width: int
) -> tuple[int, list[int], list[tuple[int, int]]]:
    """Return where the images of a row begin, the left of each, and their sizes of one height."""
    left = MARGIN + max(130, round(_LABELS * width))
    aspects = [size[1] / size[0] for size in sizes]
    space = width - MARGIN - left - _GAP * (len(sizes) - 1)
    height = max(1, min(_MAX_HEIGHT, int(space / sum(aspects))))
    drawn = [(height, max(1, round(height * aspect))) for aspect in aspects]
    places = [left]
    for size in drawn[:-1]:
        places.append(places[-1] + size[1] + _GAP)
    return left, places, drawn


def _check(
    images: Sequence[np.ndarray],
    labels: Sequence[str],
    words: Sequence[str],
    maps: Sequence[np.ndarray],
    shares: np.ndarray,
    width: int,
) -> None:
    if not words or not len(images):
        raise ValueError("a panel needs at least one word and one image")
    if {len(labels), len(maps), shares.shape[1]} != {len(images)}:
        raise ValueError(
            f"each of {len(images)} images needs a label, maps and a share, got {len(labels)}, "
            f"{len(maps)} and {shares.shape[1]}"
        )
    if any(len(each) != len(words) for each in (*maps, shares)):
        raise ValueError(f"each image needs a map and a share for each of {len(words)} words")
    if width < _MIN_WIDTH:
        raise ValueError(f"a panel must be at least {_MIN_WIDTH} pixels wide, got {width}")


def _write_word(
    pen: ImageDraw.ImageDraw, place: tuple[int, int], width: int, word: str, probability: str
) -> None:
    (x, y), small, large = place, load_font(SMALL), load_font(_WORD_SIZE)
    length = small.getlength(probability)
    pen.text((x + width - length, y + 5), probability, MUTED, small)
    pen.text((x, y), truncate_text(word, large, width - length - 10), TEXT, large)


def _draw_bars(
    pen: ImageDraw.ImageDraw, place: tuple[int, int, int], shares: Float[np.ndarray, " p"]
) -> None:
    """Draw a bar per image: its height is the share of the word in it."""
    x, y, width = place
    pen.line((x, y + _BARS, x + width, y + _BARS), TRACK)
    step = width / len(shares)
    wide = min(max(1.0, 0.7 * step), 24.0)
    for number, share in enumerate(shares):
        center = x + (number + 0.5) * step
        top = y + _BARS * (1 - min(max(float(share), 0.0), 1.0))
        pen.rectangle((center - wide / 2, min(top, y + _BARS - 1), center + wide / 2, y + _BARS),
                      ACCENT)  # fmt: skip
