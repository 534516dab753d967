"""Figure that compares the maps of several attribution methods on one image."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.attribution.methods import METHODS
from visattn.images.reader import ImageLike, read_image
from visattn.results.attention_map import AttentionMap, empty_map_reason
from visattn.results.scale import MapScale, map_scale
from visattn.viz.layout.grid import MARGIN, compute_tile_grid, compute_tile_size, create_titled_page
from visattn.viz.layout.text import load_font, truncate_text, wrap_text
from visattn.viz.maps.heatmap import Style, overlay
from visattn.viz.maps.legend import LEGEND_HEIGHT, MUTED, SMALL, TEXT, TRACK, draw_legend
from visattn.viz.maps.placed import draw_target
from visattn.viz.maps.resize import resize_image, resize_map

_NAME_SIZE, _CAPTION_HEIGHT = 17, 56  # font size of names; height of the text below a tile


@dataclass(frozen=True, eq=False)
class MethodMap:
    """The map of one method.

    Args:
        name: Name of the method.
        values: Over the whole image, at any size; NaN outside the model's input. None if there is
            no map.
        vmin: Value at the lower end of the colormap.
        vmax: Value at the upper end of the colormap.
        signed: Whether the map has negative values, which count against the target.
        note: Annotation; without a map, the reason.

    Example:
        >>> MethodMap("Grad-CAM", np.zeros((3, 4))).vmax
        1.0
    """

    name: str
    values: Float[np.ndarray, "y x"] | None
    vmin: float = 0.0
    vmax: float = 1.0
    signed: bool = False
    note: str = ""


def comparison_panel(
    image: UInt8[np.ndarray, "y x 3"],
    maps: Sequence[MethodMap],
    *,
    title: str,
    subtitle: str = "",
    colormap: str = "magma",
    opacity: float = 0.7,
    style: Style = "heat",
    width: int = 1200,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure with the image and the map of each method.

    Methods measure different quantities, so each has its own value range, printed below its tile.

    Args:
        image: RGB, of any size and proportions.
        maps: At least one; drawn at the size that `compute_tile_size` returns.
        title: Title of the figure.
        subtitle: Second line of the title, smaller.
        colormap: See `visattn.viz.maps.heatmap.overlay`.
        opacity: See `visattn.viz.maps.heatmap.overlay`.
        style: See `visattn.viz.maps.heatmap.overlay`.
        width: Width of the figure in pixels, at least 480.

    Raises:
        ValueError: If there is no map, or the figure is too narrow.

    Example:
        >>> maps = [MethodMap("rollout", np.zeros((30, 40)))]
        >>> page = comparison_panel(np.zeros((30, 40, 3), np.uint8), maps, title="dog", width=600)
        >>> page.shape[1]
        600
    """
    if not maps or width < 480:
        raise ValueError(
            f"a comparison needs at least one map and a width of 480 pixels, got {len(maps)} maps "
            f"and {width} pixels"
        )
    grid = compute_tile_grid((image.shape[0], image.shape[1]), len(maps) + 1, width)
    draw = partial(overlay, colormap=colormap, opacity=opacity, style=style)
    signed = any(entry.signed for entry in maps)
    footer = LEGEND_HEIGHT * (2 if signed else 1)
    page, places = create_titled_page(
        title, grid, width, _CAPTION_HEIGHT, footer, subtitle=subtitle
    )
    small = resize_image(image, grid.tile_size)
    pen = ImageDraw.Draw(page)
    page.paste(Image.fromarray(small), places[0])
    size = f"{image.shape[1]} \N{MULTIPLICATION SIGN} {image.shape[0]}"
    _write(pen, places[0], grid.tile_size[0], grid.cell_width, "Image", size)
    for entry, place in zip(maps, places[1:], strict=False):
        if entry.values is None:
            _draw_placeholder(pen, place, grid.tile_size, entry.note)
            _write(pen, place, grid.tile_size[0], grid.cell_width, entry.name, "no map")
            continue
        values = resize_map(entry.values, grid.tile_size)
        tile = draw(small, values, vmin=entry.vmin, vmax=entry.vmax, signed=entry.signed)
        page.paste(Image.fromarray(tile), place)
        note = entry.note or format_range(entry.vmin, entry.vmax, signed=entry.signed)
        _write(pen, place, grid.tile_size[0], grid.cell_width, entry.name, note)
    _draw_legends(page, footer, draw, maps)
    return np.array(page)


def _draw_legends(
    page: Image.Image, footer: int, draw: partial[np.ndarray], maps: Sequence[MethodMap]
) -> None:
    has_nan = any(m.values is not None and bool(np.isnan(m.values).any()) for m in maps)
    plain, signed = (partial(draw, vmax=1.0, signed=sign) for sign in (False, True))
    place = (MARGIN, page.height - footer)
    draw_legend(
        page, place, plain, (0.0, 1.0), has_nan=has_nan,
        end_labels=("min", "max"), label="range of values below each image",
    )  # fmt: skip
    if any(entry.signed for entry in maps):
        place = (MARGIN, page.height - footer + LEGEND_HEIGHT - 8)
        draw_legend(
            page,
            place,
            signed,
            (-1.0, 1.0),
            end_labels=("negative", "positive"),
            label="signed maps",
        )


def format_range(vmin: float, vmax: float, *, signed: bool) -> str:
    """Return the value range of a map as text; that of a signed map is symmetric.

    Example:
        >>> format_range(0.0, 1.25, signed=False)
        '0 to 1.2'
    """
    lowest = -vmax if signed else vmin
    return f"{lowest:.2g} to {vmax:.2g}".replace("-", "\N{MINUS SIGN}")


def _write(
    pen: ImageDraw.ImageDraw,
    place: tuple[int, int],
    tile_height: int,
    width: int,
    name: str,
    note: str,
) -> None:
    (x, y), small = (place[0], place[1] + tile_height + 8), load_font(SMALL)
    pen.text((x, y), truncate_text(name, load_font(_NAME_SIZE), width), TEXT, load_font(_NAME_SIZE))
    pen.text((x, y + 24), truncate_text(note, small, width), MUTED, small)


def _draw_placeholder(
    pen: ImageDraw.ImageDraw, place: tuple[int, int], tile: tuple[int, int], reason: str
) -> None:
    """Draw an empty tile with the reason why there is no map."""
    (x, y), (height, width) = place, tile
    pen.rectangle((x, y, x + width - 1, y + height - 1), TRACK)
    lines = wrap_text(reason, load_font(SMALL), width - 20, max(1, (height - 20) // 16))
    for number, line in enumerate(lines):
        pen.text((x + 10, y + 10 + 16 * number), line, MUTED, load_font(SMALL))


def comparison_figure(
    image: ImageLike,
    maps: Sequence[AttentionMap],
    *,
    scales: Sequence[MapScale] | None = None,
    title: str | None = None,
    subtitle: str = "",
    width: int = 1200,
    **options: Any,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure of the image and the overlay of each method, side by side.

    Args:
        image: The original image.
        maps: One map per method, placed on the image, as `visattn.explain` returns them.
        scales: One color scale per map; by default that of `map_scale`.
        title: Title; by default the explained class with its probability or score.
        subtitle: Subtitle.
        width: Width of the figure in pixels.
        options: Arguments of `visattn.viz.maps.comparison.comparison_panel`.

    Raises:
        ValueError: If there is no map, or one lies on an image of another size.

    Example:
        >>> from visattn.geometry import Geometry
        >>> spot = AttentionMap(torch.eye(2), "gate", "gate", Geometry.identity((30, 40)))
        >>> comparison_figure(np.zeros((30, 40, 3), np.uint8), [spot], width=600).shape[1]
        600
    """
    original = read_image(image)
    scales = scales or [map_scale([each]) for each in maps]
    tile = compute_tile_size(original.size, len(maps), width=width)
    compared = [_method_map(*pair, tile) for pair in zip(maps, scales, strict=True)]
    if title is None:
        title = next(filter(None, map(target_line, maps)), "Attention")
    marked = draw_target(original.pixels, maps[0]) if maps else original.pixels
    return comparison_panel(
        marked, compared, title=title, subtitle=subtitle, width=width, **options
    )


def target_line(attention_map: AttentionMap) -> str:
    """Return the explained class of a map with its probability or score.

    Example:
        >>> metadata = {"class": "tench", "target": 0, "score": 7.25}
        >>> target_line(AttentionMap(torch.eye(2), "x", "gradient", metadata=metadata))
        'tench, score 7.2'
        >>> metadata["probability"] = 0.913
        >>> target_line(AttentionMap(torch.eye(2), "x", "gradient", metadata=metadata))
        'tench, 91 %'
    """
    metadata = attention_map.metadata
    if metadata.get("target") is None and not metadata.get("class"):
        return ""
    name = metadata.get("class") or f"class {metadata['target']}"
    cosine = metadata.get("cosine")
    if isinstance(cosine, (int, float)):
        return f"{name}, {_cosine_text(cosine)}"
    values = (metadata.get(key) for key in ("score", "probability"))
    # records in JSON hold NaN as a string
    score, probability = (value if isinstance(value, (int, float)) else None for value in values)
    if probability is not None:
        percent = f"{100 * probability:.0f} %" if probability >= 0.01 else "below 1 %"
        return f"{name}, {percent}"
    if score is None:
        return str(name)
    number = f"{score:.2g}".replace("-", "\N{MINUS SIGN}")
    return f"{name}, score {number}"


def method_title(attention_map: AttentionMap) -> str:
    """Return the title of the method that computed a map.

    Example:
        >>> metadata = {"method": "gradcam"}
        >>> method_title(AttentionMap(torch.eye(2), "x", "gradient", metadata=metadata))
        'Grad-CAM'
    """
    metadata = attention_map.metadata
    name = str(metadata.get("method") or attention_map.site)
    return str(metadata.get("title") or (METHODS[name].title if name in METHODS else name))


def _method_map(attention_map: AttentionMap, scale: MapScale, tile: tuple[int, int]) -> MethodMap:
    name = method_title(attention_map)
    if reason := attention_map.metadata.get("empty") or empty_map_reason(attention_map.values):
        return MethodMap(name, None, note=reason)
    size = _supersampled_size(attention_map, tile)
    values = attention_map.resize_to_image(size).numpy()
    cosine, note = attention_map.metadata.get("cosine"), ""
    if isinstance(cosine, (int, float)):
        note = f"{_cosine_text(cosine)}; {scale.text}".replace("-", "\N{MINUS SIGN}")
    return MethodMap(name, values, scale.vmin, scale.vmax, scale.signed, note)


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
