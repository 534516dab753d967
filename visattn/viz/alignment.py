"""Alignment matrix: the attention of each word over the columns of the image, below the image."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, UInt8

from visattn.images.reader import ImageLike, read_image
from visattn.metrics.ptb_tokenizer import join_words
from visattn.results.attention_map import AttentionMap
from visattn.results.captions import Caption
from visattn.viz.canvas import MUTED, TEXT, Canvas
from visattn.viz.detections import box_color
from visattn.viz.heatmap import DrawOptions, overlay, resize_image
from visattn.viz.marks import draw_contours
from visattn.viz.rendering import Figure
from visattn.viz.text import format_probability, load_font, truncate_text
from visattn.viz.tiles import (
    LEGEND_HEIGHT,
    MARGIN,
    SMALL,
    Legend,
    draw_title,
    scaled_size,
    title_bottom,
)

MIN_WIDTH = 560  # of the legend, in pixels
_LABELS_WIDTH, _PROBABILITY_WIDTH = 140, 56  # left and right of the matrix, in pixels
_ROW_HEIGHT = 30
_ROW_GAP = 2
_MATRIX_GAP = 10
_MAX_HEIGHT = 960  # of the image, in pixels: a square one fills the width
_WORD_SIZE = 17
_SWATCH = 10
_GRAY = 150
_OUTLINE = 0.5  # of the peak of a map


def alignment_panel(
    image: UInt8[np.ndarray, "y x 3"],
    words: Sequence[str],
    columns: Float[np.ndarray, "t x2"],
    *,
    maps: Float[np.ndarray, "t y3 x3"] | None = None,
    log_probs: Sequence[float] | None = None,
    subtitle: str = "",
    width: int = 1200,
    detail: float = 1.0,
) -> Canvas:
    """Return a drawing of the image above its alignment matrix, at the same horizontal scale.

    A row of the matrix is a word, a cell lies below the columns of the image that it covers, and
    its color is the attention summed over the height of the image.

    Args:
        image: RGB, of any size and proportions.
        words: At least one.
        columns: For each word the attention of each column of `alignment_image_size`, times
            `detail`, which are not resized; NaN outside the model's input.
        maps: The maps of the words at the same size. The part of each above half of its
            maximum is outlined on the image, in the color of the word's swatch.
        log_probs: Log-probability of each word, shown as a percentage.
        subtitle: Second line of the title.
        width: Width of the drawing in pixels, at least 560.
        detail: Pixels of images per pixel of the drawing.

    Raises:
        ValueError: If there is no word, an argument does not have one entry per word or per
            column, or the figure is too narrow.

    Example:
        >>> image = np.zeros((30, 90, 3), dtype=np.uint8)
        >>> columns = np.zeros((2, alignment_image_size((30, 90), width=600)[1]))
        >>> alignment_panel(image, ["4", "2"], columns, width=600).width
        600
    """
    size = alignment_image_size((image.shape[0], image.shape[1]), width=width)
    pixels = scaled_size(size, detail)
    _check_arguments(words, columns, maps, log_probs, pixels)
    title = join_words(words)
    top = title_bottom(title, width, subtitle=subtitle)
    matrix_top = top + size[0] + _MATRIX_GAP
    bottom = matrix_top + len(words) * (_ROW_HEIGHT + _ROW_GAP)
    page = Canvas(width, bottom + MARGIN // 2 + LEGEND_HEIGHT, detail=detail)
    draw_title(page, title, subtitle)
    colors = [box_color(index) for index in range(len(words))]
    small = resize_image(image, pixels)
    if maps is not None:
        small = _draw_outlines(small, maps, colors)
    page.paste(small, (MARGIN + _LABELS_WIDTH, top), size)
    finite = columns[np.isfinite(columns)]
    vmax = float(finite.max(initial=0.0)) or 1.0
    draw = partial(_draw_cells, vmax=vmax)
    for index, word in enumerate(words):
        probability = "" if log_probs is None else format_probability(log_probs[index])
        y = matrix_top + index * (_ROW_HEIGHT + _ROW_GAP)
        cells = np.broadcast_to(columns[index], (round(_ROW_HEIGHT * detail), pixels[1]))
        page.paste(draw(None, cells), (MARGIN + _LABELS_WIDTH, y), (_ROW_HEIGHT, size[1]))
        swatch = None if maps is None else colors[index]
        _write_row(page, y, word, probability, size[1], swatch)
    legend = Legend(draw, (0.0, vmax), has_nan=len(finite) < columns.size)
    legend.draw(page, (MARGIN, bottom + MARGIN // 2))
    return page


def alignment_image_size(image_size: tuple[int, int], *, width: int = 1200) -> tuple[int, int]:
    """Return the height and width of the image in `alignment_panel`.

    Args:
        image_size: Height and width of the image.
        width: Width of the figure in pixels. A tall image is narrower.

    Raises:
        ValueError: If the figure is too narrow.

    Example:
        >>> alignment_image_size((48, 160))
        (280, 932)
    """
    if width < MIN_WIDTH:
        raise ValueError(f"an alignment must be at least {MIN_WIDTH} pixels wide, got {width}")
    available = width - 2 * MARGIN - _LABELS_WIDTH - _PROBABILITY_WIDTH
    scale = min(available / image_size[1], _MAX_HEIGHT / image_size[0])
    return max(1, round(image_size[0] * scale)), max(1, round(image_size[1] * scale))


def _check_arguments(
    words: Sequence[str],
    columns: Float[np.ndarray, "t x2"],
    maps: Float[np.ndarray, "t y3 x3"] | None,
    log_probs: Sequence[float] | None,
    size: tuple[int, int],
) -> None:
    if not words:
        raise ValueError("an alignment needs at least one word")
    if columns.shape != (len(words), size[1]) or len(log_probs or words) != len(words):
        raise ValueError(
            f"there must be {size[1]} columns (see alignment_image_size) and a log-probability for "
            f"each of {len(words)} words, got columns of shape {columns.shape}"
        )
    if maps is not None and maps.shape != (len(words), *size):
        raise ValueError(f"maps must have the shape {(len(words), *size)}, got {maps.shape}")


def _draw_cells(
    _: np.ndarray | None, values: Float[np.ndarray, "y x"], *, vmax: float
) -> UInt8[np.ndarray, "y x 3"]:
    """Return values in the colors of overlays, on gray as in legends; NaN is hatched."""
    gray = np.full((*values.shape, 3), _GRAY, np.uint8)
    return overlay(gray, values, vmax=vmax, opacity=1.0, hatched=True)


def _draw_outlines(
    image: UInt8[np.ndarray, "y x 3"],
    maps: Float[np.ndarray, "t y x"],
    colors: Sequence[tuple[int, int, int]],
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with an outline per map, and hatched outside the model's input."""
    inside = np.where(np.isnan(maps[0]), np.nan, 1.0)
    image = overlay(image, inside, style="light", hatched=True)
    for values, color in zip(maps, colors, strict=True):
        peak = float(values[np.isfinite(values)].max(initial=0.0))
        if peak > 0:
            image = draw_contours(image, values, [_OUTLINE * peak], [color])
    return image


def _write_row(
    page: Canvas,
    top: int,
    word: str,
    probability: str,
    matrix_width: int,
    swatch: tuple[int, int, int] | None,
) -> None:
    """Write a word left of its row of the matrix, and its probability right of it."""
    middle = top + _ROW_HEIGHT // 2
    right = MARGIN + _LABELS_WIDTH - 12
    if swatch is not None:
        place = (right - _SWATCH, middle - _SWATCH // 2, right, middle + _SWATCH // 2)
        page.rectangle(place, swatch)
        right -= _SWATCH + 10
    font = load_font(_WORD_SIZE)
    page.text((right, middle), truncate_text(word, font, right - MARGIN), TEXT, font, anchor="rm")
    left = MARGIN + _LABELS_WIDTH + matrix_width + 10
    page.text((left, middle), probability, MUTED, load_font(SMALL), anchor="lm")


def alignment_figure(
    image: ImageLike,
    caption: Caption,
    *,
    width: int | None = None,
    scale: float = 1.0,
) -> Figure:
    """Return a figure of the image above the alignment matrix: words by columns of the image.

    A cell of the matrix has the attention of a column of the grid, all its rows together, and lies
    below the part of the image that this column covers.

    Args:
        image: The original image.
        caption: Its caption.
        width: See `DrawOptions`.
        scale: See `DrawOptions`.

    Raises:
        ValueError: If the maps have no geometry.

    Example:
        >>> from visattn.geometry import Geometry
        >>> maps = AttentionMap(torch.tensor([[[0.0, 1.0]]]), "attend", "words")
        >>> maps = maps.with_geometry(Geometry.identity((30, 90)))
        >>> result = Caption(("7",), (-0.1,), (1.0,), maps, -0.1, True)
        >>> alignment_figure(np.zeros((30, 90, 3), np.uint8), result, width=600).image.width
        600
    """
    original, caption = read_image(image), caption.drawable()
    drawing = DrawOptions(width=width, scale=scale)
    size = alignment_image_size(original.size, width=drawing.page_width)
    geometry = caption.maps.geometry

    def draw(detail: float) -> Canvas:
        pixels = scaled_size(size, detail)
        return alignment_panel(
            original.pixels,
            caption.words,
            _attention_per_column(caption.maps, pixels),
            maps=caption.maps.resize_to_image(pixels, smooth=caption.smooth).numpy(),
            log_probs=caption.log_probs or None,
            subtitle="" if geometry is None else geometry.seen_text,
            width=drawing.page_width,
            detail=detail,
        )

    return Figure(draw, drawing.zoom)


def _attention_per_column(maps: AttentionMap, size: tuple[int, int]) -> Float[np.ndarray, "t x"]:
    """Return the attention of the grid column at each pixel column; NaN where nothing was seen."""
    sums = maps.values.sum(-2, keepdim=True).expand_as(maps.values)
    placed = replace(maps, values=sums).resize_to_image(size, smooth=False)
    columns = placed.nan_to_num(-1.0).amax(-2)  # equal in all rows that were seen
    return columns.masked_fill(columns < 0, torch.nan).numpy()
