"""Placed maps as images: on the photo, alone, as numbers in gray; several side by side."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import UInt8, UInt16

from visattn.attribution.methods import METHODS
from visattn.data.images.reader import read_image
from visattn.pipelines.captioning import ImageLike
from visattn.pipelines.scale import MapScale, blankness, map_scale
from visattn.recording.attention_map import AttentionMap
from visattn.viz.layout.grid import tile_size
from visattn.viz.maps.comparison import ComparedMap, comparison_panel
from visattn.viz.maps.heatmap import Style, colored_map, overlay


@dataclass(frozen=True, eq=False)
class DrawnMap:
    """A map at the size of its photo, in three forms.

    Args:
        overlay: On the photo.
        alone: In colors that let through where there is no attention.
        gray: From `low`, 0, to `high`, 65535; of a signed map from minus `high`. Where the network
            did not look it is 0 too.
    """

    overlay: UInt8[np.ndarray, "y x 3"]
    alone: UInt8[np.ndarray, "y x 4"]
    gray: UInt16[np.ndarray, "y x"]


def drawn_map(
    image: ImageLike,
    attention_map: AttentionMap,
    scale: MapScale,
    *,
    style: Style = "heat",
    colors: str = "magma",
    opacity: float = 0.7,
    smooth: bool = True,
) -> DrawnMap:
    """Return a map at the size of its photo, in three forms.

    Args:
        image: The original image.
        attention_map: One map, placed on it.
        scale: As `map_scale` makes it.
        style: See `visattn.viz.maps.heatmap.overlay`.
        colors: See `visattn.viz.maps.heatmap.overlay`.
        opacity: See `visattn.viz.maps.heatmap.overlay`.
        smooth: Whether to blend between cells, or to show each as it is.

    Raises:
        ValueError: If the map lies on an image of another size, or has no place.

    Example:
        >>> from visattn.geometry import Geometry
        >>> spot = AttentionMap(torch.eye(2), "gate", "gate", Geometry.identity((30, 40)))
        >>> drawn = drawn_map(np.zeros((30, 40, 3), np.uint8), spot, map_scale([spot]))
        >>> drawn.gray.shape, drawn.gray.max()
        ((30, 40), np.uint16(65535))
    """
    pixels = read_image(image).pixels
    values = attention_map.on_image(smooth=smooth).numpy()
    ends: dict[str, Any] = {"low": scale.low, "high": scale.high, "signed": scale.signed}
    shown = overlay(pixels, values, style=style, colors=colors, opacity=opacity, **ends)
    alone = colored_map(values, colors=colors, **ends)
    return DrawnMap(shown, alone, _sixteen_bits(values, scale))


def comparison(
    image: ImageLike,
    maps: Sequence[AttentionMap],
    *,
    scales: Sequence[MapScale] | None = None,
    title: str | None = None,
    subtitle: str = "",
    width: int = 1200,
    **options: Any,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a page with the image and what each method shows on it, side by side.

    Args:
        image: The original image.
        maps: Of the methods, placed on the image, as `visattn.explain` returns them.
        scales: One for each map; by default from 0 to the highest value of each.
        title: Of the page; by default the class that is explained, and its probability.
        subtitle: In small print.
        width: Of the page, in pixels.
        options: As `visattn.viz.maps.comparison.comparison_panel` takes them.

    Raises:
        ValueError: If there is no map, or one lies on an image of another size.

    Example:
        >>> from visattn.geometry import Geometry
        >>> spot = AttentionMap(torch.eye(2), "gate", "gate", Geometry.identity((30, 40)))
        >>> comparison(np.zeros((30, 40, 3), np.uint8), [spot], width=600).shape[1]
        600
    """
    read = read_image(image)
    chosen = scales or [map_scale([one]) for one in maps]
    tile = tile_size(read.size, len(maps), width=width)
    compared = [_compared(one, scale, tile) for one, scale in zip(maps, chosen, strict=True)]
    if title is None:
        title = next(filter(None, map(subject_line, maps)), "Where it looked")
    return comparison_panel(
        read.pixels, compared, title=title, subtitle=subtitle, width=width, **options
    )


def subject_line(attention_map: AttentionMap) -> str:
    """Return what a map is about: the class, or its number, and how the model found it.

    Example:
        >>> made = {"class": "tench", "target": 0, "score": 7.25}
        >>> subject_line(AttentionMap(torch.eye(2), "x", "gradient", made=made))
        'tench, score 7.2'
        >>> made["probability"] = 0.913
        >>> subject_line(AttentionMap(torch.eye(2), "x", "gradient", made=made))
        'tench, 91 %'
    """
    made = attention_map.made
    if made.get("target") is None and not made.get("class"):
        return ""
    name = made.get("class") or f"class {made['target']}"
    numbers = (made.get(key) for key in ("score", "probability"))
    # a record of JSON holds NaN as text
    score, share = (one if isinstance(one, (int, float)) else None for one in numbers)
    if share is not None:
        return f"{name}, {100 * share:.0f} %" if share >= 0.01 else f"{name}, below 1 %"
    if score is None:
        return str(name)
    number = f"{score:.2g}".replace("-", "\N{MINUS SIGN}")
    return f"{name}, score {number}"


def method_title(attention_map: AttentionMap) -> str:
    """Return the name of the method that made a map, as people write it.

    Example:
        >>> method_title(AttentionMap(torch.eye(2), "x", "gradient", made={"method": "gradcam"}))
        'Grad-CAM'
    """
    made = attention_map.made
    name = str(made.get("method") or attention_map.site)
    return str(made.get("title") or (METHODS[name].title if name in METHODS else name))


def _compared(one: AttentionMap, scale: MapScale, tile: tuple[int, int]) -> ComparedMap:
    name = method_title(one)
    if reason := one.made.get("empty") or blankness(one.values):
        return ComparedMap(name, None, note=reason)
    values = one.on_image(_fine_size(one, tile)).numpy()
    return ComparedMap(name, values, scale.low, scale.high, scale.signed)


def _fine_size(one: AttentionMap, tile: tuple[int, int]) -> tuple[int, int]:
    """Return a size at which no cell of a map is passed over, for it to be averaged to a tile."""
    if one.geometry is None:
        return tile
    (top, left), (height, width) = one.values.shape, one.geometry.input_size
    (xx, xy, _), (yx, yy, _), _ = one.geometry.matrix
    tall, wide = one.geometry.image_size
    down = tall / (abs(yy or yx) * (height / top if yy else width / left))
    along = wide / (abs(xx or xy) * (width / left if xx else height / top))
    return max(tile[0], round(down)), max(tile[1], round(along))


def _sixteen_bits(values: np.ndarray, scale: MapScale) -> UInt16[np.ndarray, "y x"]:
    first = -scale.high if scale.signed else scale.low
    steps = (values - first) * (65535 / (scale.high - first))
    return np.rint(np.clip(np.nan_to_num(steps), 0, 65535)).astype(np.uint16)
