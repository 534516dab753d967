"""Figure of a caption: the image and the attention map of each word."""

import math
from collections.abc import Sequence, Sized
from functools import partial

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.viz.layout.grid import MARGIN, compute_tile_grid, create_titled_page
from visattn.viz.layout.text import load_font, truncate_text
from visattn.viz.maps.heatmap import Style, overlay
from visattn.viz.maps.legend import ACCENT, LEGEND_HEIGHT, MUTED, SMALL, TEXT, TRACK, draw_legend
from visattn.viz.maps.marks import draw_frame
from visattn.viz.maps.resize import resize_image, resize_map

_MIN_WIDTH = 480  # of the legend, in pixels
_WORD_SIZE = 17  # font size


def caption_panel(
    image: UInt8[np.ndarray, "y x 3"],
    words: Sequence[str],
    maps: Float[np.ndarray, "t y2 x2"],
    *,
    log_probs: Sequence[float] | None = None,
    gates: Sequence[float] | None = None,
    gate_symbol: str = "β",
    boxes: Sequence[Sequence[Sequence[float]]] | None = None,
    vmin: float = 0.0,
    vmax: float | None = None,
    colormap: str = "magma",
    opacity: float = 0.7,
    style: Style = "heat",
    width: int = 1200,
    label: str = "attention",
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure of the image and the attention map of each word.

    All maps share one value range, which the legend shows.

    Args:
        image: RGB, of any size and proportions.
        words: At least one; a word longer than its tile is truncated.
        maps: One per word, over the whole image, at any size; NaN outside the model's input.
            Maps of size `compute_tile_size(...)` are drawn without resizing.
        log_probs: Log-probability of each word, shown as a percentage.
        gates: Gate of each word, between 0 and 1, shown as a bar.
        gate_symbol: Symbol of the gates.
        boxes: Boxes that are outlined for each word: left, top, right, bottom in pixels of the
            image.
        vmin: Value at the lower end of the colormap.
        vmax: Value at the upper end of the colormap. By default the median of the peaks of the
            maps, so that one strong map does not make all others dark.
        colormap: See `colormap_lut`.
        opacity: Opacity at `vmax`, between 0 and 1.
        style: See `overlay`.
        width: Width of the figure in pixels, at least 480.
        label: Quantity that the colors show.

    Raises:
        ValueError: If there is no word, an argument does not have one entry per word, or the
            figure is too narrow.

    Example:
        >>> image = np.zeros((30, 40, 3), dtype=np.uint8)
        >>> caption_panel(image, ["a", "dog"], np.zeros((2, 30, 40)), width=600).shape[1]
        600
    """
    per_word = {"maps": maps, "log_probs": log_probs, "gates": gates, "boxes": boxes}
    _check_arguments(words, per_word, width)
    peaks = map_peaks(maps, vmin)
    vmax = default_vmax(peaks, vmin) if vmax is None else vmax
    draw = partial(overlay, vmin=vmin, vmax=vmax, colormap=colormap, opacity=opacity, style=style)
    grid = compute_tile_grid((image.shape[0], image.shape[1]), len(words) + 1, width)
    small = resize_image(image, grid.tile_size)
    tiles = [small, *(draw(small, resize_map(values, grid.tile_size)) for values in maps)]
    if boxes is not None:
        size = (image.shape[0], image.shape[1])
        tiles[1:] = [_outlined(*each, size) for each in zip(tiles[1:], boxes, strict=True)]
    text_height = 38 if gates is None else 58
    page, places = create_titled_page(" ".join(words), grid, width, text_height, LEGEND_HEIGHT)
    pen = ImageDraw.Draw(page)
    for index, (tile, (x, y)) in enumerate(zip(tiles, places, strict=False)):
        page.paste(Image.fromarray(tile), (x, y))
        position, word = (x, y + grid.tile_size[0] + 8), index - 1
        if not index:
            _write_image_size(pen, position, image)
            continue
        probability = "" if log_probs is None else format_probability(log_probs[word])
        _write_word(pen, position, grid.cell_width, words[word], probability)
        if gates is not None:
            draw_gate(pen, position, grid.cell_width, gates[word], gate_symbol)
    has_nan = bool(np.isnan(maps).any())
    place = (MARGIN, page.height - LEGEND_HEIGHT)
    draw_legend(
        page,
        place,
        draw,
        (vmin, vmax),
        clipped=max(peaks) > vmax,
        has_nan=has_nan,
        gate_symbol=None if gates is None else gate_symbol,
        label=label,
    )
    return np.array(page)


def _outlined(
    tile: UInt8[np.ndarray, "y x 3"], boxes: Sequence[Sequence[float]], size: tuple[int, int]
) -> UInt8[np.ndarray, "y x 3"]:
    """Return a tile with boxes that are in pixels of an image of a size."""
    y, x = tile.shape[0] / size[0], tile.shape[1] / size[1]
    for left, top, right, bottom in boxes:
        tile = draw_frame(tile, (left * x, top * y, right * x, bottom * y))
    return tile


def _check_arguments(words: Sequence[str], per_word: dict[str, Sized | None], width: int) -> None:
    if not words:
        raise ValueError("a panel needs at least one word")
    for name, values in per_word.items():
        if values is not None and len(values) != len(words):
            raise ValueError(
                f"{name} must have one entry for each of {len(words)} words, got {len(values)}"
            )
    if width < _MIN_WIDTH:
        raise ValueError(f"a panel must be at least {_MIN_WIDTH} pixels wide, got {width}")


def map_peaks(maps: Float[np.ndarray, "t y x"], vmin: float) -> list[float]:
    """Return the maximum of each map over its finite values.

    Example:
        >>> map_peaks(np.array([[[0.5, np.nan]]]), 0.0)
        [0.5]
    """
    return [float(values[np.isfinite(values)].max(initial=vmin)) for values in maps]


def default_vmax(peaks: list[float], vmin: float) -> float:
    """Return the upper median of the peaks, or vmin + 1 for empty maps.

    Example:
        >>> default_vmax([0.1, 0.5], 0.0), default_vmax([0.0], 0.0)
        (0.5, 1.0)
    """
    median = sorted(peaks)[len(peaks) // 2]
    return median if median > vmin else vmin + 1.0


def _write_image_size(
    pen: ImageDraw.ImageDraw, place: tuple[int, int], image: UInt8[np.ndarray, "y x 3"]
) -> None:
    text = f"{image.shape[1]} \N{MULTIPLICATION SIGN} {image.shape[0]}"
    pen.text((place[0], place[1] + 5), text, MUTED, load_font(SMALL))


def _write_word(
    pen: ImageDraw.ImageDraw, place: tuple[int, int], width: int, word: str, probability: str
) -> None:
    (x, y), length = place, load_font(SMALL).getlength(probability)
    pen.text((x + width - length, y + 5), probability, MUTED, load_font(SMALL))
    word_width = width - length - (10 if probability else 0)
    pen.text(
        (x, y), truncate_text(word, load_font(_WORD_SIZE), word_width), TEXT, load_font(_WORD_SIZE)
    )


def format_probability(log_prob: float) -> str:
    """Return a probability as a percentage.

    Example:
        >>> format_probability(-0.1), format_probability(-9.0)
        ('90 %', '<1 %')
    """
    percent = 100 * math.exp(min(log_prob, 0.0))
    return "<1 %" if percent < 1 else f"{percent:.0f} %"


def draw_gate(
    pen: ImageDraw.ImageDraw, place: tuple[int, int], width: int, gate: float, symbol: str
) -> None:
    """Draw a gate as a bar and a number, below a word.

    Example:
        >>> page = Image.new("RGB", (200, 60))
        >>> draw_gate(ImageDraw.Draw(page), (0, 0), 180, 0.5, "on photo")
    """
    (x, y), font = (place[0], place[1] + 32), load_font(SMALL)
    length = width - font.getlength(f"{symbol} 0.00") - 10
    pen.rounded_rectangle((x, y, x + length, y + 4), 2, TRACK)
    filled = length * min(max(gate, 0.0), 1.0)
    if filled >= 1:
        pen.rounded_rectangle((x, y, x + filled, y + 4), 2, ACCENT)
    pen.text((x + length + 10, y - 5), f"{symbol} {gate:.2f}", MUTED, font)
