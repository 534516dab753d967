"""Figures of detections: boxes with labels, and what queries attended to."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float, UInt8

from visattn.geometry.affine import Geometry
from visattn.images.reader import ImageLike, LoadedImage, read_image
from visattn.results.attention_map import AttentionMap
from visattn.results.values import Detections
from visattn.viz.canvas import Canvas, Color
from visattn.viz.heatmap import DrawOptions, resize_image
from visattn.viz.photo_part import PhotoPart
from visattn.viz.rendering import Figure
from visattn.viz.scanpaths.path import contrasting_color
from visattn.viz.text import join_notes, load_font, truncate_text
from visattn.viz.tiles import COMPACT, Legend, Tile, compute_tile_grid, size_text, tile_figure

Corners = tuple[int, int, int, int]  # left, top, right, bottom

# The qualitative colors of Okabe and Ito, which color-blind people can tell apart.
_PALETTE: tuple[Color, ...] = (
    (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0),
    (204, 121, 167),
)  # fmt: skip
_OUTLINE = (20, 20, 20)
_MAX_COVERED = 0.1  # share of a label that others may cover; on a tiny photo few have room


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


def draw_boxes(canvas: Canvas, boxes: Sequence[LabeledBox]) -> None:
    """Draw boxes on an image that fills its canvas; the first lies on top.

    A label for which there is no room beside those of boxes before is left out.

    Args:
        canvas: Is drawn on.
        boxes: In pixels of the canvas.

    Example:
        >>> box = LabeledBox(np.array([2.0, 2.0, 18.0, 18.0]), "", (230, 159, 0))
        >>> canvas = Canvas(20, 20)
        >>> draw_boxes(canvas, [box])
        >>> canvas.paint().getpixel((10, 2))
        (230, 159, 0)
    """
    shorter = min(canvas.width, canvas.height)
    line = max(1, round(shorter / 150))
    font = load_font(max(10, min(18, round(shorter / 22))))
    for each in reversed(boxes):
        left, top, right, bottom = (round(float(side)) for side in each.box)
        right, bottom = max(left, right - 1), max(top, bottom - 1)
        if line > 1:
            canvas.rectangle((left - 1, top - 1, right + 1, bottom + 1), outline=_OUTLINE)
        canvas.rectangle((left, top, right, bottom), outline=each.color, width=line)
    # The labels of the first boxes, those with the highest scores, have the first choice of place.
    labels: list[tuple[LabeledBox, str, Corners]] = []
    for each in boxes:
        if each.text:
            text = truncate_text(each.text, font, canvas.width - 8)
            size = (round(font.size * 1.35), round(font.getlength(text)) + 8)
            taken = [corners for *_, corners in labels]
            place = _label_place(each, size, boxes, taken, (canvas.height, canvas.width))
            if place is not None:
                labels.append((each, text, place))
    for each, text, (left, top, right, bottom) in reversed(labels):
        canvas.rectangle((left, top, right - 1, bottom - 1), each.color)
        place = (left + 4, (top + bottom) / 2)
        canvas.text(place, text, contrasting_color(each.color), font, anchor="lm")


def _label_place(
    box: LabeledBox,
    size: tuple[int, int],
    boxes: Sequence[LabeledBox],
    taken: Sequence[Corners],
    image_size: tuple[int, ...],
) -> Corners | None:
    """Return where a label of a size hides least; None if it would cover another label."""
    (height, width), (rows, columns) = size, image_size
    left, top, right, bottom = (round(float(side)) for side in box.box)
    places = [(x, y) for y in (top - height, bottom, top, bottom - height)
              for x in (left, right - width)]  # fmt: skip
    places += [(x, y) for y in (top, bottom - height) for x in (right, left - width)]
    # Where all of these are taken, one below the other.
    edge = len(places)
    places += [(left, top + step * height) for step in range(1, max(2, rows // height))]

    def cost(number: int) -> float:
        x, y = places[number]
        corners = (x, y, x + width, y + height)
        if x < 0 or y < 0 or corners[2] > columns or corners[3] > rows:
            return 1e6  # beyond the photo
        over = sum(_overlap(corners, other) for other in taken) / (height * width)
        objects = (_overlap(corners, each.box) / max(1.0, _area(each.box)) for each in boxes)
        distance = 0.02 * number if number < edge else 0.5 + 0.2 * (number - edge)
        return 100 * over + sum(objects) + distance

    x, y = places[min(range(len(places)), key=cost)]
    x, y = max(0, min(x, columns - width)), max(0, min(y, rows - height))
    corners = (x, y, x + width, y + height)
    covered = sum(_overlap(corners, other) for other in taken)
    return corners if covered <= _MAX_COVERED * width * height else None


def _area(box: Sequence[float] | Float[np.ndarray, " 4"]) -> float:
    return float(max(0, box[2] - box[0]) * max(0, box[3] - box[1]))


def _overlap(
    box: Sequence[float] | Float[np.ndarray, " 4"], other: Sequence[float] | Float[np.ndarray, " 4"]
) -> float:
    """Return the area that two boxes share."""
    return _area((*map(max, box[:2], other[:2]), *map(min, box[2:], other[2:])))


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
    canvas = _photo_canvas(original.pixels)
    draw_boxes(canvas, _labeled_boxes(result))
    return np.array(canvas.paint())


def _photo_canvas(
    pixels: UInt8[np.ndarray, "y x 3"], size: tuple[int, int] | None = None
) -> Canvas:
    """Return a canvas that an image fills; by default with a pixel for each of its own."""
    height, width = size or pixels.shape[:2]
    canvas = Canvas(width, height)
    canvas.paste(pixels, (0, 0), (height, width))
    return canvas


def detection_figure(
    image: ImageLike,
    result: Detections,
    *,
    name: str = "",
    max_queries: int = _MAX_TILES,
    **options: Any,
) -> Figure:
    """Return a figure of the detections, and of what the query of each attended to.

    A tile shows the map of the query on the image, and its box. All tiles share one value range.
    The subtitle says which share of the photo the model saw, if it is not all of it.

    Args:
        image: The original image.
        result: Its detections, from `detect`.
        name: Name of the image in the figure.
        max_queries: Largest number of detections whose query is drawn.
        options: Fields of `DrawOptions`, such as `width` and `scale`.

    Raises:
        ValueError: If the detections belong to an image of another size.

    Example:
        >>> from visattn.models import DETR, SmallEncoder
        >>> from visattn.pipelines.detection import detect
        >>> model = DETR(("cat",), SmallEncoder((16, 24), channels=8), dim=8, num_queries=3)
        >>> photo = np.zeros((60, 80, 3), np.uint8)
        >>> [result] = detect(model, photo, threshold=0.0)
        >>> detection_figure(photo, result, width=600).image.width
        600
    """
    original = _check_size(image, result.maps)
    drawing = DrawOptions(**options, hatched=True)
    count = len(result.objects)
    drawn = min(len(result.objects), max_queries)
    title = f"{count} object{'' if count == 1 else 's'}"
    if drawn < count:
        title += f"; the {drawn} with the highest scores are drawn"
    info, geometry = result.maps.info, result.maps.geometry
    heads = info.more.get("heads") or "mean"
    mean = "mean over heads" if heads == "mean" else f"heads {', '.join(map(str, heads))}"
    note = f"cross-attention of decoder layer {info.layer}, {mean}"
    draw = partial(
        _query_tiles,
        original,
        _labeled_boxes(result),
        result.maps[:drawn],
        [
            _note(each.query, outside)
            for each, outside in zip(result.objects, info.outside, strict=True)
        ],
        (title, join_notes(name, note, "" if geometry is None else geometry.seen_text)),
        drawing.otherwise(vmax=result.maps.display_range()[1], smooth=True),
    )
    return Figure(draw, drawing.zoom)


def _query_tiles(
    photo: LoadedImage,
    boxes: Sequence[LabeledBox],
    maps: AttentionMap,
    notes: Sequence[str],
    titles: tuple[str, str],
    drawing: DrawOptions,
    detail: float,
) -> Canvas:
    """Return a drawing with all boxes on the photo, and a tile for each map of the first ones."""
    geometry = maps.geometry or Geometry.identity(photo.size)
    part = PhotoPart.of(geometry, crop=drawing.crop)
    grid = compute_tile_grid(part.size, len(maps) + 1, drawing.page_width, detail)
    tile_size = grid.tile_size
    whole, window = part.whole_size(grid.pixels), part.window(grid.pixels)
    small = resize_image(photo.pixels, whole)[window]
    scaled = [replace(each, box=part.boxes_on_tile(each.box[None], tile_size)[0]) for each in boxes]
    overview = _photo_canvas(small, tile_size)
    draw_boxes(overview, scaled)
    tiles = [Tile(overview, "Detections", size_text(photo.pixels))]
    values = maps.resize_to_image(whole, smooth=drawing.smooth is not False).numpy()
    values = values[(..., *window)]
    for index, (box, own) in enumerate(zip(scaled, values, strict=False)):
        tile = _photo_canvas(drawing.draw(small, own), grid.tile_size)
        draw_boxes(tile, [LabeledBox(box.box, "", box.color)])
        tiles.append(Tile(tile, box.text, notes[index]))
    vmax = drawing.vmax or 1.0
    legend = Legend(
        drawing.draw,
        (drawing.vmin, vmax),
        "weight of a cell",
        clipped=float(np.nanmax(values, initial=0.0)) > vmax,
        has_nan=bool(np.isnan(values).any()),
    )
    return tile_figure(
        tiles, grid, title=titles[0], subtitle=titles[1], legends=[legend], text=COMPACT,
        width=drawing.page_width,
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
