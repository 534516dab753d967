"""Figure of the attention of all heads of all layers of a transformer."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8

from visattn.attribution.layer_weights import describe_read_rows
from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.recording.model_info import ExplainedModel, ModelInfo
from visattn.results.attention_map import AttentionMap
from visattn.results.values import RecordedLayer
from visattn.viz.canvas import MUTED, TEXT, Canvas
from visattn.viz.heatmap import DrawOptions, resize_image
from visattn.viz.photo_part import PhotoPart
from visattn.viz.rendering import Figure
from visattn.viz.text import join_notes, load_font
from visattn.viz.tiles import (
    LEGEND_HEIGHT,
    MARGIN,
    SMALL,
    Legend,
    draw_title,
    scaled_size,
    title_bottom,
)

_OPACITY = 0.85  # by default
_ROW_WIDTH = 1480  # preferred width of a row of heads, in pixels
_LABEL_WIDTH, _HEADER_HEIGHT = 74, 22  # of layer names at the left; of head numbers above
_MIN_TILE = 40
_MAX_TILE = 150
_GAP = 5
_MEAN_GAP = 14
_MIN_WIDTH = 620  # of the legend


def head_tile_size(
    image_size: tuple[int, int], num_heads: int, row_width: int = _ROW_WIDTH
) -> tuple[int, int]:
    """Return height and width of a tile of `all_heads_figure`.

    Args:
        image_size: Height and width of the image.
        num_heads: Maximum number of heads of a layer.
        row_width: Width of a row of heads, in pixels.

    Example:
        >>> head_tile_size((480, 640), 12)
        (81, 108)
    """
    width = min(max(row_width // (num_heads + 1) - _GAP, _MIN_TILE), _MAX_TILE)
    height = round(width * image_size[0] / image_size[1])
    if height > 1.5 * width:
        max_height = round(1.5 * width)
        height, width = max_height, max(1, round(1.5 * width * image_size[1] / image_size[0]))
    return max(1, height), width


def _create_page(
    tile: tuple[int, int], rows: int, titles: tuple[str, str], width: int
) -> tuple[Canvas, int]:
    """Return a page with its title, and the top of the first row of tiles."""
    title, subtitle = titles
    top = title_bottom(title, width, subtitle=subtitle) + _HEADER_HEIGHT
    page = Canvas(width, top + rows * (tile[0] + _GAP) + 18 + LEGEND_HEIGHT)
    draw_title(page, title, subtitle)
    return page, top


def _column_left(column: int, tile: tuple[int, int], num_heads: int) -> int:
    """Return the left edge of a column; there is a wider gap before the column of the mean."""
    return (
        MARGIN
        + _LABEL_WIDTH
        + column * (tile[1] + _GAP)
        + (_MEAN_GAP if column == num_heads else 0)
    )


def _write_heads(page: Canvas, top: int, tile: tuple[int, int], heads: Sequence[int]) -> None:
    y = top - 6
    font = load_font(SMALL)
    names = [f"head {number}" if tile[1] >= 60 else str(number) for number in heads]
    for column, text in enumerate([*names, "mean"]):
        x = _column_left(column, tile, len(heads)) + tile[1] / 2
        page.text((x, y), text, MUTED, font, anchor="ms")


def all_heads_figure(
    image: LoadedImage,
    geometry: Geometry,
    *,
    explained: ExplainedModel,
    layers: Sequence[RecordedLayer],
    name: str | None = None,
    **options: Any,
) -> Figure:
    """Return a figure with a row per layer and a tile per head.

    A tile shows the mean of the rows that the scores read, such as that of the class token. All
    tiles share one color scale, up to the median of the maxima of all heads.

    Args:
        image: The original image.
        geometry: Its geometry on the input of the network.
        explained: The model.
        layers: Attention from `record_layers`.
        name: Name in the figure; by default the file name of the image.
        options: Fields of `DrawOptions`, such as `colormap`, `vmax` and `width`; by default the
            figure is as wide as its heads need.

    Raises:
        ValueError: If there is no layer, or the width is too small for the heads.

    Example:
        >>> from visattn.attribution.explained_model import analyze_model
        >>> from visattn.models import VisionTransformer
        >>> model = VisionTransformer(
        ...     ("cat", "dog"), img_size=(16, 24), patch_size=8, embed_dim=8, depth=2, num_heads=2
        ... )
        >>> explained = analyze_model(model)
        >>> from visattn.images import read_image
        >>> from visattn.pipelines.layer_attention import record_layers
        >>> photo = read_image(np.zeros((16, 24, 3), np.uint8))
        >>> place = Geometry.identity((16, 24))
        >>> layers = record_layers(explained, torch.zeros(1, 3, 16, 24))
        >>> all_heads_figure(photo, place, explained=explained, layers=layers).image.width
        620
    """
    if not layers:
        raise ValueError("a grid of heads needs at least one layer, got none")
    rows = [layer.read_row() for layer in layers]
    peaks = torch.cat([row.flatten(1).amax(1) for row in rows])
    # Full color is at least 4 times uniform attention: heads that look everywhere stay dark.
    uniform = max(4 / row[0].numel() for row in rows)
    drawing = DrawOptions(**{"opacity": _OPACITY, **options})
    drawing = drawing.otherwise(vmax=max(float(peaks.median()), uniform))
    num_heads = max(len(row) for row in rows)
    part = PhotoPart.of(geometry, crop=drawing.crop)
    tile, width = _layout(part.size, num_heads, drawing)
    title = Path(image.name).name if name is None else name
    read = f"{explained.info.name}: attention of {_read_tokens(explained.info)}, by head"
    subtitle = join_notes(read, geometry.seen_text)
    places = [geometry.inset(layer.margin) for layer in layers]
    maps = [AttentionMap(row, "", "tokens", place) for row, place in zip(rows, places, strict=True)]

    def draw(detail: float) -> Canvas:
        page, top = _create_page(tile, len(layers), (title, subtitle), width)
        page.detail = detail
        _draw_rows(page, top, tile, layers, _cut(image, maps, part, page, tile), drawing)
        return page

    return Figure(draw, drawing.zoom)


def _layout(
    image_size: tuple[int, int], num_heads: int, drawing: DrawOptions
) -> tuple[tuple[int, int], int]:
    """Return height and width of a tile, and the width of the page."""
    around = 2 * MARGIN + _LABEL_WIDTH + _MEAN_GAP
    row_width = _ROW_WIDTH if drawing.width is None else drawing.page_width - around
    tile = head_tile_size(image_size, num_heads, row_width)
    needed = max(_column_left(num_heads, tile, num_heads) + tile[1] + MARGIN, _MIN_WIDTH)
    if drawing.width is None:
        return tile, needed
    if drawing.page_width < needed:
        raise ValueError(
            f"{num_heads} heads need a width of {math.ceil(needed * drawing.scale)} pixels at "
            f"scale {drawing.scale:g}, got {drawing.width}"
        )
    return tile, drawing.page_width


def _cut(
    image: LoadedImage,
    attention: Sequence[AttentionMap],
    part: PhotoPart,
    page: Canvas,
    tile: tuple[int, int],
) -> tuple[UInt8[np.ndarray, "y x 3"], list[np.ndarray]]:
    """Return the photo and the maps of each layer as tiles show them."""
    pixels = scaled_size(tile, page.detail)
    whole, window = part.whole_size(pixels), part.window(pixels)
    maps = [each.resize_to_image(whole).numpy()[(..., *window)] for each in attention]
    return resize_image(image.pixels, whole)[window], maps


def _draw_rows(
    page: Canvas,
    top: int,
    tile: tuple[int, int],
    layers: Sequence[RecordedLayer],
    images: tuple[UInt8[np.ndarray, "y x 3"], list[np.ndarray]],
    drawing: DrawOptions,
) -> None:
    """Draw the heads of all layers, and the legend."""
    small, maps = images
    num_heads = max(len(heads) for heads in maps)
    _write_heads(page, top, tile, next(n.heads for n in layers if len(n.heads) == num_heads))
    for number, (layer, heads) in enumerate(zip(layers, maps, strict=True)):
        y = top + number * (tile[0] + _GAP)
        place, font = (MARGIN + _LABEL_WIDTH - 14, y + tile[0] / 2), load_font(SMALL + 1)
        page.text(place, f"layer {layer.index}", TEXT, font, anchor="rm")
        columns = (*range(len(heads)), num_heads)
        for column, values in zip(columns, [*heads, heads.mean(axis=0)], strict=True):
            place = (_column_left(column, tile, num_heads), y)
            page.paste(drawing.draw(small, values), place, tile)
    vmin, vmax = drawing.vmin, drawing.vmax or 1.0
    legend = Legend(
        drawing.draw,
        (vmin, vmax),
        clipped=any(float(np.nanmax(heads, initial=vmin)) > vmax for heads in maps),
        has_nan=any(bool(np.isnan(heads).any()) for heads in maps),
    )
    legend.draw(page, (MARGIN + _LABEL_WIDTH, page.height - LEGEND_HEIGHT))


def _read_tokens(info: ModelInfo) -> str:
    names = {"class": "the class token", "mean": "all patches (mean)"}
    return names.get(info.pooling) or describe_read_rows(info)
