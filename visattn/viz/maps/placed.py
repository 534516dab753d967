"""Maps on their photo: overlays, layers, and what a map explains."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8, UInt16
from PIL import Image

from visattn.attribution.regions import mask_from_runs
from visattn.geometry.affine import Geometry
from visattn.images.reader import ImageLike, read_image
from visattn.io.argument_checks import checked_arguments
from visattn.results.attention_map import AttentionMap
from visattn.results.map_boxes import MapBoxes
from visattn.results.scale import MapScale, map_scale
from visattn.viz.maps.contours import draw_contours
from visattn.viz.maps.heatmap import map_to_rgba
from visattn.viz.maps.marks import draw_cross, draw_frame, draw_region
from visattn.viz.maps.options import DrawOptions

MapValues = np.ndarray | torch.Tensor | Sequence[Sequence[float]]


@checked_arguments(outline=(0, 1))
def overlay(
    image: ImageLike,
    attention_map: AttentionMap | MapValues,
    *,
    geometry: Geometry | None = None,
    outline: float | None = None,
    **options: Any,
) -> Image.Image:
    """Return the image overlaid with an attention map, at the size of the image.

    Args:
        image: The original image.
        attention_map: One placed map; or an array, tensor or nested list `[y, x]` on any grid,
            which covers the whole image unless a geometry is passed. Negative values make it
            signed.
        geometry: Geometry of an array: its grid covers the input of the network.
        outline: Draw a contour at this share of `vmax`; None draws none.
        options: Fields of `DrawOptions`. By default `vmin` and `vmax` are those of
            `visattn.results.map_scale`; for words of one caption, use one `vmax` for all.

    Raises:
        ValueError: If the map has no geometry, belongs to an image of another size, or consists
            of several maps (index it first), or an array is not `[y, x]` and finite.

    Example:
        >>> from visattn.geometry import Geometry
        >>> blank = np.full((30, 40, 3), 200, np.uint8)
        >>> spot = AttentionMap(torch.eye(2), "gate", "gate", Geometry.identity((30, 40)))
        >>> overlay(blank, spot).size, overlay(blank, [[0.0, 1.0], [0.5, 0.0]]).size
        ((40, 30), (40, 30))
    """
    original = read_image(image)
    if not isinstance(attention_map, AttentionMap):
        covered = geometry or Geometry.identity(original.size)
        attention_map = _map_from_array(attention_map, covered)
    elif geometry is not None:
        attention_map = attention_map.with_geometry(geometry)
    values = attention_map.values
    if values.ndim != 2:
        raise ValueError(
            f"overlay draws one map, got shape {tuple(values.shape)}; select one: maps[0]"
        )
    if attention_map.geometry and attention_map.geometry.image_size != original.size:
        raise ValueError(
            f"the map lies on an image of {attention_map.geometry.image_size} (height, width), "
            f"but {original.name} has {original.size}; pass the original image"
        )
    scale = map_scale([attention_map])
    if options.get("vmax") is None:
        options = {"vmin": scale.vmin, **options, "vmax": scale.vmax}
    drawing = DrawOptions(**options)
    placed = attention_map.resize_to_image(smooth=drawing.smooth is not False).numpy()
    drawn = drawing.draw(original.pixels, placed, signed=scale.signed)
    if outline is not None:
        drawn = draw_contours(drawn, placed, [outline * options["vmax"]], [(255, 255, 255)])
    return Image.fromarray(draw_target(drawn, attention_map))


def _map_from_array(values: MapValues, geometry: Geometry) -> AttentionMap:
    """Return an array as an attention map."""
    if isinstance(values, torch.Tensor):
        array = values.detach().cpu()
    else:
        try:
            array = torch.from_numpy(np.array(values, dtype=np.float64))
        except (TypeError, ValueError) as error:
            raise ValueError(f"a map must be an array of numbers [y, x]: {error}") from error
    array = array.to(torch.float32)
    if array.ndim != 2 or not array.numel() or not bool(array.isfinite().all()):
        raise ValueError(
            f"a map must be an array [y, x] of finite numbers, got shape {list(array.shape)}"
            + (" with NaN or infinity" if array.ndim == 2 and array.numel() else "")
        )
    return AttentionMap.from_array(array, geometry)


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
    **options: Any,
) -> RenderedMap:
    """Return a map at the size of its image, as three images.

    Args:
        image: The original image.
        attention_map: One map, placed on it.
        scale: Its color scale, from `map_scale`.
        options: Fields of `DrawOptions`, such as `style` and `colormap`.

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
    drawing = DrawOptions(**options, vmin=scale.vmin, vmax=scale.vmax)
    values = attention_map.resize_to_image(smooth=drawing.smooth is not False).numpy()
    blended = drawing.draw(pixels, values, signed=scale.signed)
    rgba = map_to_rgba(values, vmin=scale.vmin, vmax=scale.vmax, colormap=drawing.colormap,
                       signed=scale.signed)  # fmt: skip
    return RenderedMap(draw_target(blended, attention_map), rgba, _to_uint16(values, scale))


def draw_target(
    image: UInt8[np.ndarray, "y x 3"], attention_map: AttentionMap
) -> UInt8[np.ndarray, "y x 3"]:
    """Return an image with what a map explains: a pixel as a cross, a region or a box as a line.

    Args:
        image: RGB, at the size of the original image.
        attention_map: A map of `visattn.explain`; of a class, nothing is drawn.

    Example:
        >>> from visattn.geometry import Geometry
        >>> from visattn.results.info import MapInfo, Thing
        >>> info = MapInfo(thing=Thing("box", box=(5, 5, 25, 25)))
        >>> box = AttentionMap(torch.eye(2), "x", "gradient", Geometry.identity((30, 40)), info)
        >>> draw_target(np.zeros((30, 40, 3), np.uint8), box).max()
        np.uint8(255)
    """
    thing = attention_map.info.thing
    if thing is None:
        return image
    if thing.point is not None:
        return draw_cross(image, *thing.point)
    if thing.box is not None:
        return draw_frame(image, thing.box)
    if thing.grid is not None and attention_map.geometry is not None:
        mask = mask_from_runs(thing.grid, thing.runs).float()
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


def _to_uint16(values: np.ndarray, scale: MapScale) -> UInt16[np.ndarray, "y x"]:
    lowest = -scale.vmax if scale.signed else scale.vmin
    levels = (values - lowest) * (65535 / (scale.vmax - lowest))
    return np.rint(np.clip(np.nan_to_num(levels), 0, 65535)).astype(np.uint16)
