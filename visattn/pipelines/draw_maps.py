"""Images of attribution maps: overlay, RGBA layer, 16-bit values, and comparison figures."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt8, UInt16

from visattn.attribution.methods import METHODS
from visattn.attribution.regions import mask_from_runs
from visattn.images.reader import ImageLike, read_image
from visattn.results.attention_map import AttentionMap, empty_map_reason
from visattn.results.map_boxes import MapBoxes
from visattn.results.scale import MapScale, map_scale
from visattn.viz.layout.grid import compute_tile_size
from visattn.viz.maps.comparison import MethodMap, comparison_panel
from visattn.viz.maps.heatmap import Style, map_to_rgba, overlay
from visattn.viz.maps.marks import draw_cross, draw_frame, draw_region


@dataclass(frozen=True, eq=False)
class RenderedMap:
    """A map at the size of its image, as three images.

    Args:
        overlay: The map over the image.
        rgba: The map alone, transparent where its value is low or the network did not see.
        gray: Values from `vmin` (0) to `vmax` (65535), for a signed map from `-vmax`; 0 where the
            network did not see.
    """

    overlay: UInt8[np.ndarray, "y x 3"]
    rgba: UInt8[np.ndarray, "y x 4"]
    gray: UInt16[np.ndarray, "y x"]


def render_map(
    image: ImageLike,
    attention_map: AttentionMap,
    scale: MapScale,
    *,
    style: Style = "heat",
    colormap: str = "magma",
    opacity: float = 0.7,
    smooth: bool = True,
) -> RenderedMap:
    """Return a map at the size of its image, as three images.

    Args:
        image: The original image.
        attention_map: One map, placed on it.
        scale: Its color scale, from `map_scale`.
        style: See `visattn.viz.maps.heatmap.overlay`.
        colormap: See `visattn.viz.maps.heatmap.overlay`.
        opacity: See `visattn.viz.maps.heatmap.overlay`.
        smooth: Whether to interpolate between cells.

    Raises:
        ValueError: If the map lies on an image of another size, or has no geometry.

    Example:
        >>> from visattn.geometry import Geometry
        >>> spot = AttentionMap(torch.eye(2), "gate", "gate", Geometry.identity((30, 40)))
        >>> rendered = render_map(np.zeros((30, 40, 3), np.uint8), spot, map_scale([spot]))
        >>> rendered.gray.shape, rendered.gray.max()
        ((30, 40), np.uint16(65535))
    """
    pixels = read_image(image).pixels
    values = attention_map.resize_to_image(smooth=smooth).numpy()
    limits: dict[str, Any] = {"vmin": scale.vmin, "vmax": scale.vmax, "signed": scale.signed}
    blended = overlay(pixels, values, style=style, colormap=colormap, opacity=opacity, **limits)
    rgba = map_to_rgba(values, colormap=colormap, **limits)
    return RenderedMap(draw_target(blended, attention_map), rgba, _to_uint16(values, scale))


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


def draw_target(
    image: UInt8[np.ndarray, "y x 3"], attention_map: AttentionMap
) -> UInt8[np.ndarray, "y x 3"]:
    """Return an image with what a map explains: a pixel as a cross, a region or a box as a line.

    Args:
        image: RGB, at the size of the original image.
        attention_map: A map of `visattn.explain`; of a class, nothing is drawn.

    Example:
        >>> from visattn.geometry import Geometry
        >>> metadata = {"thing": {"kind": "box", "box": [5, 5, 25, 25]}}
        >>> box = AttentionMap(torch.eye(2), "x", "gradient", Geometry.identity((30, 40)), metadata)
        >>> draw_target(np.zeros((30, 40, 3), np.uint8), box).max()
        np.uint8(255)
    """
    thing = attention_map.metadata.get("thing") or {}
    if thing.get("kind") == "pixel":
        return draw_cross(image, thing["x"], thing["y"])
    if thing.get("box"):
        return draw_frame(image, thing["box"])
    if thing.get("runs") and attention_map.geometry is not None:
        mask = mask_from_runs(thing).float()
        # the region is one of the input, wherever the cells of the map lie
        placed = AttentionMap(mask, "region", "gradient", attention_map.geometry.from_edges())
        return draw_region(image, placed.resize_to_image().numpy() > 0.5)
    return image


def outline_boxes(
    image: UInt8[np.ndarray, "y x 3"], boxes: MapBoxes | None
) -> UInt8[np.ndarray, "y x 3"]:
    """Return an image with the outlines of boxes of maps; as it is without.

    Args:
        image: RGB, at the size of the original image.
        boxes: Boxes, from `AttentionMap.boxes`.

    Example:
        >>> from visattn.results.map_boxes import MapBox
        >>> boxes = MapBoxes((MapBox((5.0, 5.0, 25.0, 25.0), 1.0, 1.0),), 0.5, True, (30, 40))
        >>> int(outline_boxes(np.zeros((30, 40, 3), np.uint8), boxes)[5, 15, 0])
        255
    """
    for each in boxes or ():
        image = draw_frame(image, each.box)
    return image


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


def _to_uint16(values: np.ndarray, scale: MapScale) -> UInt16[np.ndarray, "y x"]:
    lowest = -scale.vmax if scale.signed else scale.vmin
    levels = (values - lowest) * (65535 / (scale.vmax - lowest))
    return np.rint(np.clip(np.nan_to_num(levels), 0, 65535)).astype(np.uint16)
