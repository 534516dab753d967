"""Overlays of maps on their photo, marks of their targets, and texts of figures."""

import math
from collections.abc import Sequence
from typing import Any
from warnings import warn

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image

from visattn.attribution.dense_targets import mask_from_runs
from visattn.attribution.methods import METHODS
from visattn.geometry.affine import Geometry
from visattn.images.reader import ImageLike, LoadedImage, read_image, render_tensor, single_image
from visattn.results.attention_map import AttentionMap
from visattn.results.info import MapInfo
from visattn.results.scale import map_scale
from visattn.results.values import format_percent
from visattn.viz.heatmap import DrawOptions
from visattn.viz.marks import draw_contour, draw_cross, draw_frame, draw_region

UNITS = {"gate": "gate", "tokens": "attention", "words": "attention", "queries": "attention",
         "gradient": "attribution", "saliency": "saliency"}  # fmt: skip
"""Label of the values of a map, by its kind."""
MapValues = np.ndarray | torch.Tensor | Sequence[Sequence[float]]


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
        image: The original image; or the input tensor of the model, which the map covers.
        attention_map: One placed map; or an array, tensor or nested list `[y, x]` on any grid,
            which covers the whole image unless a geometry is passed. Negative values make it
            signed.
        geometry: Geometry of an array: its grid covers the input of the network.
        outline: Draw a contour at this share of `vmax`; None for no contour.
        options: Fields of `DrawOptions`. By default `vmin` and `vmax` are those of
            `visattn.results.scale.map_scale`; for words of one caption, use one `vmax` for all.

    Raises:
        ValueError: If the map has no geometry, belongs to an image of another size, or consists
            of several maps (index it first), or an array is not `[y, x]` and finite.

    Warns:
        UserWarning: If all values are so close to zero that the colors are meaningless.

    Example:
        >>> from visattn import Geometry
        >>> blank = np.full((30, 40, 3), 200, np.uint8)
        >>> spot = AttentionMap(torch.eye(2), "gate", "gate", Geometry.identity((30, 40)))
        >>> overlay(blank, spot).size, overlay(blank, [[0.0, 1.0], [0.5, 0.0]]).size
        ((40, 30), (40, 30))
    """
    original = displayed_image(image, attention_map)
    if not isinstance(attention_map, AttentionMap):
        covered = geometry or Geometry.identity(original.size)
        attention_map = _map_from_array(attention_map, covered)
    elif geometry is not None:
        attention_map = attention_map.with_geometry(geometry)
    elif isinstance(image, torch.Tensor):
        attention_map = placed_on_tensor(attention_map, original)
    values = attention_map.values
    if values.ndim != 2:
        raise ValueError(
            f"overlay draws one map, got shape {tuple(values.shape)}; select one: maps[0]"
        )
    check_photo(original, attention_map.geometry, "the map")
    scale = map_scale([attention_map])
    if options.get("vmax") is None:
        if scale.is_nearly_zero:
            warn(f"the map of {original.name} is {scale.note}, from {scale.text}", stacklevel=2)
        options = {"vmin": scale.vmin, **options, "vmax": scale.vmax}
    drawing = DrawOptions(**options)
    placed = attention_map.resize_to_image(smooth=drawing.smooth is not False).numpy()
    drawn = drawing.draw(original.pixels, placed, signed=scale.signed)
    if outline is not None:
        drawn = draw_contour(drawn, placed, outline * options["vmax"])
    return Image.fromarray(draw_target(drawn, attention_map))


def displayed_image(image: ImageLike, attention_map: object = None) -> LoadedImage:
    """Return an image to draw a map on; multi-channel images and tensors are rendered.

    A tensor is rendered in its original colors if the map has the mean and std of the model.

    Example:
        >>> displayed_image(torch.zeros(5, 2, 3)).display[:37]
        'channels 0, 1, 2 as red, green, blue'
    """
    if not isinstance(image, torch.Tensor):
        return read_image(image, channels=3)
    info = attention_map.info.more if isinstance(attention_map, AttentionMap) else {}
    made = info.get("preprocessing", {})
    return render_tensor(single_image(image), made.get("mean"), made.get("std"))


def check_photo(photo: LoadedImage, geometry: Geometry | None, what: str) -> None:
    """Check that a result belongs to a photo, and not to a resized copy.

    Raises:
        ValueError: If it belongs to an image of another size.

    Example:
        >>> check_photo(displayed_image(torch.zeros(3, 4, 6)), Geometry.identity((4, 6)), "the map")
    """
    if geometry is not None and geometry.image_size != photo.size:
        raise ValueError(
            f"{what} belongs to an image of {geometry.image_size} (height, width), but "
            f"{photo.name} has {photo.size}; pass the original image"
        )


def placed_on_tensor(attention_map: AttentionMap, rendering: LoadedImage) -> AttentionMap:
    """Return a map with a geometry on the model's input, unless it has one or cannot have one.

    Example:
        >>> gate = AttentionMap(torch.eye(2), "gate", "gate")
        >>> placed_on_tensor(gate, displayed_image(torch.zeros(3, 4, 6))).geometry.image_size
        (4, 6)
    """
    if attention_map.geometry is not None or attention_map.kind == "channel":
        return attention_map
    return attention_map.with_geometry(Geometry.identity(rendering.size))


def _map_from_array(values: MapValues, geometry: Geometry) -> AttentionMap:
    """Return an array as an attention map."""
    listed = values if isinstance(values, torch.Tensor) else np.array(values, dtype=np.float64)
    array = torch.as_tensor(listed).detach().cpu().float()
    if array.ndim != 2 or not array.numel() or not bool(array.isfinite().all()):
        raise ValueError(
            f"a map must be an array [y, x] of finite numbers, got shape {list(array.shape)}"
            + (" with NaN or infinity" if array.ndim == 2 and array.numel() else "")
        )
    return AttentionMap.from_array(array, geometry)


def draw_target(
    image: UInt8[np.ndarray, "y x 3"], attention_map: AttentionMap
) -> UInt8[np.ndarray, "y x 3"]:
    """Return an image with the target of a map: a pixel as a cross, a region or box as a line.

    Args:
        image: RGB, the original image at any size.
        attention_map: A map of `visattn.explain`; nothing is drawn for a class.

    Example:
        >>> from visattn import Geometry
        >>> from visattn.results.info import Thing
        >>> info = MapInfo(thing=Thing("box", box=(5, 5, 25, 25)))
        >>> box = AttentionMap(torch.eye(2), "x", "gradient", Geometry.identity((30, 40)), info)
        >>> draw_target(np.zeros((30, 40, 3), np.uint8), box).max()
        np.uint8(255)
    """
    thing = attention_map.info.thing
    if thing is None or attention_map.geometry is None:
        return image
    size = (image.shape[0], image.shape[1])
    share = np.divide(size, attention_map.geometry.image_size)[::-1]  # factors of x and y
    if thing.point is not None:
        return draw_cross(image, *((np.array(thing.point) + 0.5) * share - 0.5))
    if thing.box is not None:
        return draw_frame(image, (np.array(thing.box) * np.tile(share, 2)).tolist())
    if thing.grid is not None:
        mask = mask_from_runs(thing.grid, thing.runs).float()
        # the region covers the input, which the cells of the map may not
        placed = AttentionMap(mask, "region", "gradient", attention_map.input_geometry)
        return draw_region(image, placed.resize_to_image(size).numpy() > 0.5)
    return image


def values_at(
    attention_map: AttentionMap, size: tuple[int, int], *, smooth: bool = True
) -> Float[np.ndarray, "y x"]:
    """Return a map at the size of a drawing of its image; NaN outside the input.

    A map with more cells than pixels is averaged, so that its peak is not skipped.

    Args:
        attention_map: One map with a geometry.
        size: Height and width of the drawing.
        smooth: Whether to interpolate between cells.

    Example:
        >>> spot = AttentionMap(torch.eye(2), "gate", "gate", Geometry.identity((30, 40)))
        >>> values_at(spot, (15, 20)).shape
        (15, 20)
    """
    fine = _supersampled_size(attention_map, size)
    return resize_map(attention_map.resize_to_image(fine, smooth=smooth).numpy(), size)


def resize_map(
    values: Float[np.ndarray, "y x"], size: tuple[int, int]
) -> Float[np.ndarray, "y2 x2"]:
    """Return a map at another size: bilinear over finite values; NaN stays NaN.

    Args:
        values: The map; NaN outside the model's input.
        size: Height and width.

    Example:
        >>> resize_map(np.array([[1.0, 3.0, np.nan, np.nan]]), (1, 2))
        array([[ 2., nan]], dtype=float32)
    """
    if values.shape == size:
        return values
    valid = ~np.isnan(values)
    # Mean over finite values: NaN becomes 0, and the result is divided by the resampled mask.
    total, weight = (
        np.asarray(Image.fromarray(each).resize((size[1], size[0]), Image.Resampling.BILINEAR))
        for each in (np.where(valid, values, 0).astype(np.float32), valid.astype(np.float32))
    )
    kept = weight >= 0.5
    return np.where(kept, total / np.where(kept, weight, 1), np.float32(np.nan))


def target_line(attention_map: AttentionMap) -> str:
    """Return the explained class of a map with its probability or score.

    Example:
        >>> info = MapInfo(class_name="tench", target=0, score=7.25)
        >>> target_line(AttentionMap(torch.eye(2), "x", "gradient", info=info))
        'tench, logit 7.2'
        >>> from dataclasses import replace
        >>> info = replace(info, probability=0.913)
        >>> target_line(AttentionMap(torch.eye(2), "x", "gradient", info=info))
        'tench, 91 %'
    """
    info, said = attention_map.info, ""
    if (cosine := _known(info.cosine)) is not None:
        said = f", cosine {cosine:.2f}"
    elif (probability := _known(info.probability)) is not None:
        said = f", {format_percent(probability)}"
    elif (score := _known(info.score)) is not None:
        said = f", {score_name(info)} {score:.2g}"
    return info.target_name and info.target_name + said.replace("-", "\N{MINUS SIGN}")


def score_name(info: MapInfo) -> str:
    """Return the name of the score of a map: `logit` for classes, else `score`.

    Example:
        >>> from visattn.results.info import Thing
        >>> score_name(MapInfo(target=3)), score_name(MapInfo(thing=Thing("pixel", (3, 5))))
        ('logit', 'score')
    """
    return "logit" if isinstance(info.target, int) and info.thing is None else "score"


def map_notes(attention_map: AttentionMap) -> list[str]:
    """Return notes on a map: its own, assumptions, and how much the model saw.

    Example:
        >>> half = Geometry.identity((30, 40)).cropped(0, 0, (30, 20))
        >>> map_notes(AttentionMap(torch.eye(2), "x", "gradient", half))
        ['the model saw 50 % of the photo']
    """
    info, made = attention_map.info, attention_map.info.more.get("preprocessing", {})
    source = str(made.get("source", ""))
    seen = "" if attention_map.geometry is None else attention_map.geometry.seen_text
    assumed = source if source.startswith("assumed") else ""
    return [note for note in (info.note, str(made.get("display", "")), assumed, seen) if note]


def method_title(attention_map: AttentionMap) -> str:
    """Return the title of the method that computed a map.

    Example:
        >>> info = MapInfo("gradcam")
        >>> method_title(AttentionMap(torch.eye(2), "x", "gradient", info=info))
        'Grad-CAM'
    """
    name = attention_map.info.method or attention_map.site
    return METHODS[name].title if name in METHODS else name


def _known(value: float | Sequence[float | None] | None) -> float | None:
    """Return a finite number; None for values that figures omit."""
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _supersampled_size(attention_map: AttentionMap, tile: tuple[int, int]) -> tuple[int, int]:
    """Return a size with at least a pixel per cell, to be averaged to the size of the tile."""
    geometry = attention_map.geometry
    if geometry is None:
        return tile
    # A map of 60 rows on a tile of 40 pixels is drawn with 60 rows first, else its peak could be
    # skipped. The number of cells per image height follows from the height of a cell on the image.
    (rows, columns), (height, width) = attention_map.values.shape, geometry.input_size
    (scale_x, *_), (_, scale_y, _), _ = geometry.matrix
    image_height, image_width = geometry.image_size
    cells_y = image_height / (abs(scale_y) * height / rows)
    cells_x = image_width / (abs(scale_x) * width / columns)
    return max(tile[0], round(cells_y)), max(tile[1], round(cells_x))
