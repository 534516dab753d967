"""Figure of the attention of all heads of all layers of a transformer."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.attribution.layer_weights import describe_read_rows
from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage
from visattn.recording.model_info import ExplainedModel, ModelInfo
from visattn.results.attention_map import AttentionMap
from visattn.results.values import RecordedLayer
from visattn.viz.layout.grid import MARGIN, draw_title, title_bottom
from visattn.viz.layout.text import load_font
from visattn.viz.maps.heatmap import Style, overlay
from visattn.viz.maps.legend import BACKGROUND, LEGEND_HEIGHT, MUTED, SMALL, TEXT, draw_legend
from visattn.viz.maps.resize import resize_image, resize_map

_ROW_WIDTH = 1480  # preferred width of a row of heads, in pixels
_LABEL_WIDTH, _HEADER_HEIGHT = 74, 22  # of layer names at the left; of head numbers above
_MIN_TILE, _MAX_TILE, _GAP, _MEAN_GAP = 40, 150, 5, 14


@dataclass(frozen=True, eq=False)
class LayerHeads:
    """The maps of the heads of one layer.

    Args:
        name: Short name of the layer.
        maps: One per head, over the whole image, at any size; NaN outside the model's input.
        heads: Indices of the heads, from 0.

    Example:
        >>> LayerHeads("1", np.zeros((3, 4, 5)), (0, 1, 2)).name
        '1'
    """

    name: str
    maps: Float[np.ndarray, "h y x"]
    heads: tuple[int, ...]


def head_tile_size(image_size: tuple[int, int], num_heads: int) -> tuple[int, int]:
    """Return height and width of a tile of `head_grid`.

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


def head_grid(
    image: UInt8[np.ndarray, "y x 3"],
    rows: Sequence[LayerHeads],
    *,
    title: str,
    subtitle: str = "",
    vmax: float,
    vmin: float = 0.0,
    colormap: str = "magma",
    opacity: float = 0.85,
    style: Style = "heat",
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure with a row per layer: a tile for each head, and the mean over heads.

    All tiles share one value range.

    Args:
        image: RGB, of any size and proportions.
        rows: At least one.
        title: Title of the figure.
        subtitle: Second line of the title, smaller.
        vmax: Value at the upper end of the colormap.
        vmin: Value at the lower end of the colormap.
        colormap: See `visattn.viz.maps.heatmap.overlay`.
        opacity: See `visattn.viz.maps.heatmap.overlay`.
        style: See `visattn.viz.maps.heatmap.overlay`.

    Raises:
        ValueError: If there is no layer.

    Example:
        >>> row = LayerHeads("1", np.zeros((3, 30, 40)), (0, 1, 2))
        >>> head_grid(np.zeros((30, 40, 3), np.uint8), [row], title="heads", vmax=1.0).shape
        (303, 775, 3)
    """
    if not rows:
        raise ValueError("a grid of heads needs at least one layer, got none")
    draw = partial(overlay, vmin=vmin, vmax=vmax, colormap=colormap, opacity=opacity, style=style)
    num_heads = max(len(row.maps) for row in rows)
    tile = head_tile_size((image.shape[0], image.shape[1]), num_heads)
    small = resize_image(image, tile)
    page, top = _create_page(tile, num_heads, len(rows), title, subtitle)
    pen = ImageDraw.Draw(page)
    _write_heads(pen, top, tile, rows, num_heads)
    for number, row in enumerate(rows):
        y = top + number * (tile[0] + _GAP)
        middle = y + tile[0] / 2
        pen.text(
            (MARGIN + _LABEL_WIDTH - 14, middle), row.name, TEXT, load_font(SMALL + 1), anchor="rm"
        )
        maps = [*row.maps, row.maps.mean(axis=0)]
        for column, values in zip((*range(len(row.maps)), num_heads), maps, strict=True):
            drawn = draw(small, resize_map(values, tile))
            page.paste(Image.fromarray(drawn), (_column_left(column, tile, num_heads), y))
    has_nan = any(bool(np.isnan(row.maps).any()) for row in rows)
    clipped = any(float(np.nanmax(row.maps, initial=vmin)) > vmax for row in rows)
    place = (MARGIN + _LABEL_WIDTH, page.height - LEGEND_HEIGHT)
    draw_legend(page, place, draw, (vmin, vmax), has_nan=has_nan, clipped=clipped)
    return np.array(page)


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
    pen: ImageDraw.ImageDraw,
    top: int,
    tile: tuple[int, int],
    rows: Sequence[LayerHeads],
    num_heads: int,
) -> None:
    y, font = top - 6, load_font(SMALL)
    numbers = next(row.heads for row in rows if len(row.maps) == num_heads)
    for column, number in enumerate(numbers):
        x = _column_left(column, tile, num_heads) + tile[1] / 2
        text = f"head {number}" if tile[1] >= 60 else str(number)
        pen.text((x, y), text, MUTED, font, anchor="ms")
    pen.text(
        (_column_left(num_heads, tile, num_heads) + tile[1] / 2, y),
        "mean",
        MUTED,
        font,
        anchor="ms",
    )


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
        options: Arguments of `visattn.viz.maps.heads.head_grid`.

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
    info = explained.info
    rows = [layer.read_row() for layer in layers]
    tile = head_tile_size(image.size, max((len(row) for row in rows), default=1))
    places = [key_geometry(layer, explained, geometry.from_edges()) for layer in layers]
    placed = [
        AttentionMap(row, "", "tokens", place) for row, place in zip(rows, places, strict=True)
    ]
    peaks = torch.cat([row.flatten(1).amax(1) for row in rows]) if rows else torch.ones(1)
    uniform = max((4 / row[0].numel() for row in rows), default=0.0)
    return head_grid(
        image.pixels,
        [
            LayerHeads(f"layer {layer.index}", entry.resize_to_image(tile).numpy(), layer.heads)
            for layer, entry in zip(layers, placed, strict=True)
        ],
        title=Path(image.name).name if name is None else name,
        subtitle=f"{info.name}: attention of {_read_tokens(info)}, by head",
        vmax=max(float(peaks.median()), uniform),
        **options,
    )


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
