"""Figures of detections: all boxes, and for each the map and sampling points of its query."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from visattn.images.reader import ImageLike, LoadedImage, read_image
from visattn.results.attention_map import AttentionMap
from visattn.results.values import Detections
from visattn.viz.detection.boxes import LabeledBox, box_color, draw_boxes, draw_points
from visattn.viz.layout.grid import compute_tile_grid
from visattn.viz.layout.tiles import COMPACT, Tile, size_text, tile_figure
from visattn.viz.maps.legend import Legend
from visattn.viz.maps.options import DrawOptions
from visattn.viz.maps.resize import resize_image

_MAX_TILES = 11


def detection_overlay(image: ImageLike, result: Detections) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with the boxes, classes and scores of its detections.

    Args:
        image: The original image.
        result: Its detections, from `detect`.

    Raises:
        ValueError: If the detections belong to an image of another size.
    """
    original = _check_size(image, result.maps)
    return draw_boxes(original.pixels, _labeled_boxes(result))


def detection_figure(
    image: ImageLike,
    result: Detections,
    *,
    name: str = "",
    max_queries: int = _MAX_TILES,
    **options: Any,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure of the detections, and of what the query of each attended to.

    A tile shows the map of the query on the image, its box, and as dots the points that it
    sampled; the area of a dot grows with its weight. All tiles share one value range.

    Args:
        image: The original image.
        result: Its detections, from `detect` or `explain_queries`.
        name: Name of the image in the figure.
        max_queries: Largest number of detections whose query is drawn.
        options: Fields of `DrawOptions`, such as `width`.

    Raises:
        ValueError: If the detections belong to an image of another size.

    Example:
        >>> from visattn.models import DETR, SmallEncoder
        >>> from visattn.pipelines.detection import detect
        >>> model = DETR(("cat",), SmallEncoder((16, 24), channels=8), dim=8, num_queries=3)
        >>> photo = np.zeros((60, 80, 3), np.uint8)
        >>> [result] = detect(model, photo, threshold=0.0)
        >>> detection_figure(photo, result, width=600).shape[1]
        600
    """
    original, drawing = _check_size(image, result.maps), DrawOptions(**options)
    count, drawn = len(result.objects), min(len(result.objects), max_queries)
    title = f"{count} object{'' if count == 1 else 's'}"
    if drawn < count:
        title += f", of which the {drawn} with the highest scores"
    info = result.maps.info
    heads = info.more.get("heads") or "mean"
    mean = "mean over heads" if heads == "mean" else f"heads {', '.join(map(str, heads))}"
    note = f"cross-attention of decoder layer {info.layer}, {mean}"
    return _query_tiles(
        original,
        _labeled_boxes(result),
        result.maps[:drawn],
        None if result.points is None else result.points.numpy(),
        [
            _note(each.query, outside)
            for each, outside in zip(result.objects, info.outside, strict=True)
        ],
        (title, " \N{MIDDLE DOT} ".join(filter(None, [name, note]))),
        drawing.otherwise(vmax=result.maps.display_range()[1], smooth=True),
    )


def _query_tiles(
    photo: LoadedImage,
    boxes: Sequence[LabeledBox],
    maps: AttentionMap,
    points: Float[np.ndarray, "q p 3"] | None,
    notes: Sequence[str],
    titles: tuple[str, str],
    drawing: DrawOptions,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure with all boxes on the photo, and a tile for each map of the first of them."""
    grid = compute_tile_grid(photo.size, len(maps) + 1, drawing.width)
    small = resize_image(photo.pixels, grid.tile_size)
    scale = np.array([grid.tile_size[1] / photo.size[1], grid.tile_size[0] / photo.size[0]])
    scaled = [LabeledBox(each.box * np.tile(scale, 2), each.text, each.color) for each in boxes]
    tiles = [Tile(draw_boxes(small, scaled), "Detections", size_text(photo.pixels))]
    values = maps.resize_to_image(grid.tile_size, smooth=drawing.smooth is not False).numpy()
    for index, (box, own) in enumerate(zip(scaled, values, strict=False)):
        tile = draw_boxes(drawing.draw(small, own), [LabeledBox(box.box, "", box.color)])
        if points is not None:
            tile = draw_points(tile, points[index] * np.array([*scale, 1.0]), box.color)
        tiles.append(Tile(tile, box.text, notes[index]))
    vmax = drawing.vmax or 1.0
    legend = Legend(
        drawing.draw,
        (drawing.vmin, vmax),
        "weight of a cell" + ("" if points is None or not boxes else "; dots: sampled points"),
        clipped=float(np.nanmax(values, initial=0.0)) > vmax,
        has_nan=bool(np.isnan(values).any()),
    )
    return tile_figure(
        tiles, grid, title=titles[0], subtitle=titles[1], legends=[legend], text=COMPACT,
        width=drawing.width,
    )  # fmt: skip


def _check_size(image: ImageLike, maps: AttentionMap) -> LoadedImage:
    original, geometry = read_image(image), maps.geometry
    if geometry is None or geometry.image_size != original.size:
        size = None if geometry is None else geometry.image_size
        raise ValueError(
            f"the detections belong to an image of {size} (height, width), but {original.name} has "
            f"{original.size}; pass the original image"
        )
    return original


def _labeled_boxes(result: Detections) -> list[LabeledBox]:
    names = sorted({each.label for each in result.objects})
    return [
        LabeledBox(
            np.array(each.box), f"{each.label} {each.score:.2f}", box_color(names.index(each.label))
        )
        for each in result.objects
    ]


def _note(query: int, outside: float) -> str:
    text = f"query {query}"
    return text if outside < 0.005 else f"{text}, {100 * outside:.0f} % off the input"
