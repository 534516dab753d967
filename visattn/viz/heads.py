"""Figure of the attention of all heads of all layers of a transformer."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from visattn.attribution.layer_weights import describe_read_rows
from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.recording.model_info import ExplainedModel, ModelInfo
from visattn.results.attention_map import AttentionMap
from visattn.results.values import RecordedLayer
from visattn.viz.heatmap import DrawOptions, resize_image
from visattn.viz.text import load_font
from visattn.viz.tiles import (
    BACKGROUND,
    LEGEND_HEIGHT,
    MARGIN,
    MUTED,
    SMALL,
    TEXT,
    Legend,
    draw_title,
    title_bottom,
)

_OPACITY = 0.85  # by default
_ROW_WIDTH = 1480  # preferred width of a row of heads, in pixels
_LABEL_WIDTH, _HEADER_HEIGHT = 74, 22  # of layer names at the left; of head numbers above
_MIN_TILE = 40
_MAX_TILE = 150
_GAP = 5
_MEAN_GAP = 14


def head_tile_size(image_size: tuple[int, int], num_heads: int) -> tuple[int, int]:
    """Return height and width of a tile of `all_heads_figure`.

    Args:
        image_size: Height and width of the image.
        num_heads: Maximum number of heads of a layer.

    Example:
        >>> head_tile_size((480, 640), 12)
        (81, 108)
    """
    width = min(max(_ROW_WIDTH // (num_heads + 1) - _GAP, _MIN_TILE), _MAX_TILE)
    height = round(width * image_size[0] / image_size[1])
    if height > 1.5 * width:
        max_height = round(1.5 * width)
        height, width = max_height, max(1, round(1.5 * width * image_size[1] / image_size[0]))
    return max(1, height), width


def _create_page(
    tile: tuple[int, int], num_heads: int, rows: int, title: str, subtitle: str
) -> tuple[Image.Image, int]:
    """Return a page with its title, and the top of the first row of tiles."""
    width = max(_column_left(num_heads, tile, num_heads) + tile[1] + MARGIN, 620)
    top = title_bottom(title, width, subtitle=subtitle) + _HEADER_HEIGHT
    page = Image.new("RGB", (width, top + rows * (tile[0] + _GAP) + 18 + LEGEND_HEIGHT), BACKGROUND)
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


def _write_heads(
    pen: ImageDraw.ImageDraw, top: int, tile: tuple[int, int], heads: Sequence[int]
) -> None:
    y = top - 6
    font = load_font(SMALL)
    names = [f"head {number}" if tile[1] >= 60 else str(number) for number in heads]
    for column, text in enumerate([*names, "mean"]):
        x = _column_left(column, tile, len(heads)) + tile[1] / 2
        pen.text((x, y), text, MUTED, font, anchor="ms")


def all_heads_figure(
    image: LoadedImage,
    geometry: Geometry,
    *,
    explained: ExplainedModel,
    layers: Sequence[RecordedLayer],
    name: str | None = None,
    **options: Any,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure with a row per layer and a tile per head.

    A tile shows the mean of the rows that the scores read, such as that of the class token. All
    tiles share one color scale, up to the median of the maxima of all heads.

    Args:
        image: The original image.
        geometry: Its geometry on the input of the network.
        explained: The model.
        layers: Attention from `record_layers`.
        name: Name in the figure; by default the file name of the image.
        options: Fields of `DrawOptions`, such as `colormap` and `vmax`.

    Raises:
        ValueError: If there is no layer.

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
        >>> all_heads_figure(photo, place, explained=explained, layers=layers).shape[2]
        3
    """
    if not layers:
        raise ValueError("a grid of heads needs at least one layer, got none")
    info, rows = explained.info, [layer.read_row() for layer in layers]
    peaks = torch.cat([row.flatten(1).amax(1) for row in rows])
    # Full color is at least 4 times uniform attention: heads that look everywhere stay dark.
    uniform = max(4 / row[0].numel() for row in rows)
    drawing = DrawOptions(**{"opacity": _OPACITY, **options})
    drawing = drawing.otherwise(vmax=max(float(peaks.median()), uniform))
    num_heads = max(len(row) for row in rows)
    tile = head_tile_size(image.size, num_heads)
    places = [key_geometry(layer, explained, geometry.from_edges()) for layer in layers]
    maps = [
        AttentionMap(row, "", "tokens", place).resize_to_image(tile).numpy()
        for row, place in zip(rows, places, strict=True)
    ]
    title = Path(image.name).name if name is None else name
    subtitle = f"{info.name}: attention of {_read_tokens(info)}, by head"
    page, top = _create_page(tile, num_heads, len(layers), title, subtitle)
    pen, small = ImageDraw.Draw(page), resize_image(image.pixels, tile)
    _write_heads(pen, top, tile, next(n.heads for n in layers if len(n.heads) == num_heads))
    for number, (layer, heads) in enumerate(zip(layers, maps, strict=True)):
        y = top + number * (tile[0] + _GAP)
        place, font = (MARGIN + _LABEL_WIDTH - 14, y + tile[0] / 2), load_font(SMALL + 1)
        pen.text(place, f"layer {layer.index}", TEXT, font, anchor="rm")
        columns = (*range(len(heads)), num_heads)
        for column, values in zip(columns, [*heads, heads.mean(axis=0)], strict=True):
            drawn = Image.fromarray(drawing.draw(small, values))
            page.paste(drawn, (_column_left(column, tile, num_heads), y))
    vmin, vmax = drawing.vmin, drawing.vmax or 1.0
    legend = Legend(
        drawing.draw,
        (vmin, vmax),
        clipped=any(float(np.nanmax(heads, initial=vmin)) > vmax for heads in maps),
        has_nan=any(bool(np.isnan(heads).any()) for heads in maps),
    )
    legend.draw(page, (MARGIN + _LABEL_WIDTH, page.height - LEGEND_HEIGHT))
    return np.array(page)


def _read_tokens(info: ModelInfo) -> str:
    names = {"class": "the class token", "mean": "all patches (mean)"}
    return names.get(info.pooling) or describe_read_rows(info)


def key_geometry(layer: RecordedLayer, explained: ExplainedModel, base: Geometry) -> Geometry:
    """Return the geometry of the maps of a layer, whose keys may lie elsewhere than the input.

    Args:
        layer: A layer.
        explained: Its model.
        base: Geometry of the input, from edge to edge.
    """
    if layer.placement is None or explained.align == "edges":
        return base
    return base.with_placement(layer.placement)
