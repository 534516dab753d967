"""Figures of detections: boxes with labels, and sampling points."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.images.reader import ImageLike, LoadedImage, read_image
from visattn.results.attention_map import AttentionMap
from visattn.results.values import Detections
from visattn.viz.heatmap import DrawOptions, resize_image
from visattn.viz.text import UnicodeFont, load_font, truncate_text
from visattn.viz.tiles import (
    BACKGROUND,
    COMPACT,
    TEXT,
    Legend,
    Tile,
    compute_tile_grid,
    size_text,
    tile_figure,
)

Color = tuple[int, int, int]

_SUPERSAMPLING = 3
# The qualitative colors of Okabe and Ito, which color-blind people can tell apart.
_PALETTE: tuple[Color, ...] = (
    (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0),
    (204, 121, 167),
)  # fmt: skip
_OUTLINE = (20, 20, 20)


@dataclass(frozen=True, eq=False)
class LabeledBox:
    """A box with its text and color.

    Args:
        box: Left, top, right, bottom in pixels of the image.
        text: Label; "" for none.
        color: Color of the line and of the label.
    """

    box: Float[np.ndarray, " 4"]
    text: str
    color: Color


def box_color(index: int) -> Color:
    """Return the color of a class.

    Example:
        >>> box_color(0), box_color(7) == box_color(0)
        ((230, 159, 0), True)
    """
    return _PALETTE[index % len(_PALETTE)]


def draw_boxes(
    image: UInt8[np.ndarray, "y x 3"], boxes: Sequence[LabeledBox]
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with boxes; the first lies on top.

    Args:
        image: RGB.
        boxes: In pixels of the image.

    Example:
        >>> box = LabeledBox(np.array([2.0, 2.0, 18.0, 18.0]), "", (230, 159, 0))
        >>> draw_boxes(np.zeros((20, 20, 3), np.uint8), [box])[2, 10].tolist()
        [230, 159, 0]
    """
    drawn = Image.fromarray(image).copy()
    pen = ImageDraw.Draw(drawn)
    line = max(1, round(min(image.shape[:2]) / 150))
    font = load_font(max(10, min(18, round(min(image.shape[:2]) / 22))))
    for each in reversed(boxes):
        left, top, right, bottom = (round(float(side)) for side in each.box)
        right, bottom = max(left, right - 1), max(top, bottom - 1)
        if line > 1:
            pen.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=_OUTLINE, width=1)
        pen.rectangle((left, top, right, bottom), outline=each.color, width=line)
    for each in reversed(boxes):
        if each.text:
            _draw_label(pen, each, font, (image.shape[0], image.shape[1]))
    return np.array(drawn)


def draw_points(
    image: UInt8[np.ndarray, "y x 3"], points: Float[np.ndarray, "p 3"], color: Color
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with points whose area grows with their weight.

    Args:
        image: RGB.
        points: x and y in pixels of the image, and weight, of each; weights sum to 1. Points
            outside of the image are not seen.
        color: Color of the points.

    Example:
        >>> point = np.array([[10.0, 10.0, 1.0]])
        >>> draw_points(np.zeros((20, 20, 3), np.uint8), point, (230, 159, 0))[10, 10].tolist()
        [230, 159, 0]
    """
    size = (image.shape[1] * _SUPERSAMPLING, image.shape[0] * _SUPERSAMPLING)
    large = Image.fromarray(image).resize(size, Image.Resampling.NEAREST)
    pen = ImageDraw.Draw(large)
    largest = max(2.0, min(image.shape[:2]) / 22)
    for x, y, weight in sorted(points.tolist(), key=lambda point: -point[2]):
        # A point of 8 times the mean weight, or more, has the largest dot.
        radius = max(1.0, largest * min(1.0, float(np.sqrt(weight * len(points) / 8))))
        for reach, fill in ((radius + 0.7, _OUTLINE), (radius, color)):
            corners = (x - reach, y - reach, x + reach, y + reach)
            pen.ellipse(tuple(side * _SUPERSAMPLING for side in corners), fill)
    return np.array(large.reduce(_SUPERSAMPLING))


def _draw_label(
    pen: ImageDraw.ImageDraw, box: LabeledBox, font: UnicodeFont, size: tuple[int, int]
) -> None:
    """Write the label above the box, or inside of it where there is no space."""
    text = truncate_text(box.text, font, size[1] - 8)
    left, top = (round(float(side)) for side in box.box[:2])
    height = round(font.size * 1.35)
    width = round(font.getlength(text)) + 8
    left = max(0, min(left, size[1] - width))
    top = top - height if top >= height else top
    pen.rectangle((left, top, left + width - 1, top + height - 1), box.color)
    luminance = 0.3 * box.color[0] + 0.59 * box.color[1] + 0.11 * box.color[2]
    pen.text(
        (left + 4, top + height / 2), text, TEXT if luminance > 120 else BACKGROUND, font, "lm"
    )


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
    original = _check_size(image, result.maps)
    drawing = DrawOptions(**options)
    count = len(result.objects)
    drawn = min(len(result.objects), max_queries)
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
    original = read_image(image)
    geometry = maps.geometry
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
