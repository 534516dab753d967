"""Figure that compares the maps of several attribution methods on one image."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import UInt8

from visattn.attribution.methods import METHODS
from visattn.images.reader import ImageLike, read_image
from visattn.results.attention_map import AttentionMap, empty_map_reason
from visattn.results.scale import MapScale, map_scale
from visattn.viz.layout.grid import compute_tile_grid
from visattn.viz.layout.tiles import Tile, empty_tile, size_text, tile_figure
from visattn.viz.maps.legend import LEGEND_HEIGHT, Legend
from visattn.viz.maps.options import DrawOptions
from visattn.viz.maps.placed import draw_target
from visattn.viz.maps.resize import resize_image, resize_map


def comparison_figure(
    image: ImageLike,
    maps: Sequence[AttentionMap],
    *,
    scales: Sequence[MapScale] | None = None,
    title: str | None = None,
    subtitle: str = "",
    **options: Any,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure of the image and the overlay of each method, side by side.

    Methods measure different quantities, so each has its own value range, printed below its tile.

    Args:
        image: The original image.
        maps: One map per method, placed on the image, as `visattn.explain` returns them.
        scales: One color scale per map; by default that of `map_scale`.
        title: Title; by default the explained class with its probability or score.
        subtitle: Subtitle.
        options: Fields of `DrawOptions`, such as `width` and `colormap`.

    Raises:
        ValueError: If there is no map, or one lies on an image of another size.

    Example:
        >>> from visattn.geometry import Geometry
        >>> spot = AttentionMap(torch.eye(2), "gate", "gate", Geometry.identity((30, 40)))
        >>> comparison_figure(np.zeros((30, 40, 3), np.uint8), [spot], width=600).shape[1]
        600
    """
    original, drawing = read_image(image), DrawOptions(**options)
    if not maps:
        raise ValueError("a comparison needs at least one map, got none")
    scales = scales or [map_scale([each]) for each in maps]
    grid = compute_tile_grid(original.size, len(maps) + 1, drawing.width)
    small = resize_image(draw_target(original.pixels, maps[0]), grid.tile_size)
    values = [_values(each, grid.tile_size, drawing) for each in maps]
    tiles = [_method_tile(*each, small, drawing) for each in zip(maps, scales, values, strict=True)]
    return tile_figure(
        [Tile(small, "Image", size_text(original.pixels)), *tiles],
        grid,
        title=next(filter(None, map(target_line, maps)), "Attention") if title is None else title,
        subtitle=subtitle,
        legends=_legends(values, scales, drawing),
        width=drawing.width,
    )


def _values(
    attention_map: AttentionMap, size: tuple[int, int], drawing: DrawOptions
) -> np.ndarray | None:
    """Return a map at the size of a tile; None if it is empty."""
    if attention_map.info.empty or empty_map_reason(attention_map.values):
        return None
    fine, smooth = _supersampled_size(attention_map, size), drawing.smooth is not False
    return resize_map(attention_map.resize_to_image(fine, smooth=smooth).numpy(), size)


def _method_tile(
    attention_map: AttentionMap,
    scale: MapScale,
    values: np.ndarray | None,
    photo: UInt8[np.ndarray, "y x 3"],
    drawing: DrawOptions,
) -> Tile:
    name = method_title(attention_map)
    if values is None:
        reason = attention_map.info.empty or empty_map_reason(attention_map.values)
        return Tile(empty_tile((photo.shape[0], photo.shape[1]), reason), name, "no map")
    cosine, note = _known(attention_map.info.cosine), scale.text
    if cosine is not None:
        note = f"{_cosine_text(cosine)}; {note}"
    return Tile(_draw(drawing, scale)(photo, values), name, note.replace("-", "\N{MINUS SIGN}"))


def _draw(drawing: DrawOptions, scale: MapScale) -> partial[np.ndarray]:
    limits = replace(drawing, vmin=scale.vmin, vmax=scale.vmax)
    return partial(limits.draw, signed=scale.signed)


def _legends(
    values: Sequence[np.ndarray | None], scales: Sequence[MapScale], drawing: DrawOptions
) -> list[Legend]:
    """Return the legend of plain maps, and of signed ones if there are any."""
    has_nan = any(each is not None and bool(np.isnan(each).any()) for each in values)
    plain, signed = (_draw(drawing, MapScale("image", 0.0, 1.0, sign)) for sign in (False, True))
    label = "range of values below each image"
    legends = [Legend(plain, (0.0, 1.0), label, has_nan=has_nan, end_labels=("min", "max"))]
    drawn = zip(values, scales, strict=True)
    if any(scale.signed and each is not None for each, scale in drawn):
        ends = ("negative", "positive")
        more = Legend(signed, (-1.0, 1.0), "signed maps", end_labels=ends,
                      height=LEGEND_HEIGHT + 8)  # fmt: skip
        legends = [replace(legends[0], height=LEGEND_HEIGHT - 8), more]
    return legends


def target_line(attention_map: AttentionMap) -> str:
    """Return the explained class of a map with its probability or score.

    Example:
        >>> from visattn.results.info import MapInfo
        >>> info = MapInfo(class_name="tench", target=0, score=7.25)
        >>> target_line(AttentionMap(torch.eye(2), "x", "gradient", info=info))
        'tench, score 7.2'
        >>> info = replace(info, probability=0.913)
        >>> target_line(AttentionMap(torch.eye(2), "x", "gradient", info=info))
        'tench, 91 %'
    """
    info = attention_map.info
    name, score, probability = info.target_name, _known(info.score), _known(info.probability)
    if not name:
        return ""
    if (cosine := _known(info.cosine)) is not None:
        return f"{name}, {_cosine_text(cosine)}"
    if probability is not None:
        percent = f"{100 * probability:.0f} %" if probability >= 0.01 else "below 1 %"
        return f"{name}, {percent}"
    if score is None:
        return name
    number = f"{score:.2g}".replace("-", "\N{MINUS SIGN}")
    return f"{name}, score {number}"


def method_title(attention_map: AttentionMap) -> str:
    """Return the title of the method that computed a map.

    Example:
        >>> from visattn.results.info import MapInfo
        >>> info = MapInfo("gradcam")
        >>> method_title(AttentionMap(torch.eye(2), "x", "gradient", info=info))
        'Grad-CAM'
    """
    name = attention_map.info.method or attention_map.site
    return attention_map.info.title or (METHODS[name].title if name in METHODS else name)


def _known(value: float | Sequence[float | None] | None) -> float | None:
    """Return a finite number; None for what figures leave out."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _cosine_text(cosine: float) -> str:
    return f"cosine {cosine:.2f}".replace("-", "\N{MINUS SIGN}")


def _supersampled_size(attention_map: AttentionMap, tile: tuple[int, int]) -> tuple[int, int]:
    """Return a size at which every cell of the map has a pixel; it is then averaged to the tile."""
    geometry = attention_map.geometry
    if geometry is None:
        return tile
    (rows, columns), (height, width) = attention_map.values.shape, geometry.input_size
    (xx, xy, _), (yx, yy, _), _ = geometry.matrix
    image_height, image_width = geometry.image_size
    cells_y = image_height / (abs(yy or yx) * (height / rows if yy else width / columns))
    cells_x = image_width / (abs(xx or xy) * (width / columns if xx else height / rows))
    return max(tile[0], round(cells_y)), max(tile[1], round(cells_x))
