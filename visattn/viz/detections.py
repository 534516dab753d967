"""Figures of detections: boxes with labels, and the attention of queries."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from jaxtyping import UInt8
from matplotlib.axes import Axes

from visattn.geometry.affine import Box, Geometry
from visattn.images.reader import ImageLike, read_image
from visattn.results.scale import MapScale
from visattn.results.values import DetectedObject, Detections
from visattn.viz.figures import (
    Figure,
    Tile,
    inches,
    outline,
    rgb,
    sheet,
    show,
    style,
)
from visattn.viz.heatmap import DrawOptions, resize_image
from visattn.viz.maps import check_photo
from visattn.viz.marks import Color
from visattn.viz.text import fit_text

# The qualitative palette of Okabe and Ito, which is safe for color blindness.
_PALETTE: tuple[Color, ...] = (
    (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178), (213, 94, 0),
    (204, 121, 167),
)  # fmt: skip
_MAX_TILES = 11


def box_color(index: int) -> Color:
    """Return the color of a class.

    Example:
        >>> box_color(0), box_color(7) == box_color(0)
        ((230, 159, 0), True)
    """
    return _PALETTE[index % len(_PALETTE)]


def draw_boxes(ax: Axes, objects: Sequence[DetectedObject], *, labels: bool = True) -> None:
    """Draw the boxes of detections, with class and score; the first is on top.

    Labels that would overlap earlier ones are omitted.

    Args:
        ax: Axes of matplotlib, whose coordinates are pixels of the photo.
        objects: The detections, the best first.
        labels: Whether to write class and score.
    """
    names = sorted({each.label for each in objects})
    colors = [np.array(box_color(names.index(each.label))) / 255 for each in objects]
    for each, color in reversed(list(zip(objects, colors, strict=True))):
        outline(ax, each.box, color, 1.5)
    if not labels:
        return
    ax.apply_aspect()
    right_end, bottom_end = max(ax.get_xlim()), max(ax.get_ylim())
    unit = right_end / (inches(ax)[0] * 72)  # pixels of the photo per point
    taken: list[Box] = []
    for each, color in zip(objects, colors, strict=True):
        text = fit_text(f"{each.label} {each.score:.2f}", 2.0, size=7)
        width, height = (4.4 * len(text) + 4) * unit, 12 * unit
        left, top, _, bottom = each.box
        x = max(0.0, min(left, right_end - width))
        places = [(x, y, x + width, y + height) for y in (top - height, bottom, top)]
        free = [
            place
            for place in places
            if place[1] >= 0 and place[3] <= bottom_end and not any(_meet(place, b) for b in taken)
        ]
        if not free:
            continue
        taken.append(free[0])
        dark = color @ [0.3, 0.59, 0.11] > 0.45
        ax.text(x + 2 * unit, free[0][1] + height / 2, text, va="center", fontsize=7,
                color="black" if dark else "white",
                bbox={"facecolor": color, "edgecolor": "none", "pad": 1.2})  # fmt: skip


def _meet(box: Box, other: Box) -> bool:
    return all(box[i] < other[i + 2] and other[i] < box[i + 2] for i in (0, 1))


def detection_overlay(image: ImageLike, result: Detections) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with the boxes, classes and scores of its detections.

    Args:
        image: The original image.
        result: Its detections, from `detect`.

    Raises:
        ValueError: If the detections belong to an image of another size.
    """
    photo = read_image(image)
    check_photo(photo, result.maps.geometry, "the detection")
    with style():
        drawn = Figure(((photo.size[1] + 0.01) / 100, (photo.size[0] + 0.01) / 100))
        drawn.set_dpi(100)
        ax = drawn.add_axes((0, 0, 1, 1))
        show(ax, photo.size, lambda size: resize_image(photo.pixels, size))
        draw_boxes(ax, result.objects)
        return rgb(drawn)


def detection_figure(
    image: ImageLike,
    result: Detections,
    *,
    max_queries: int = _MAX_TILES,
    crop: bool = False,
    width: float | None = None,
    rc: Mapping[str, Any] | None = None,
    **options: Any,
) -> Figure:
    """Return a figure of the detections, and of the attention of their queries.

    Each tile shows the map of a query on the image, and its box. All tiles share one value range.

    Args:
        image: The original image.
        result: Its detections, from `detect`.
        max_queries: Maximum number of queries to draw.
        crop: See `visattn.figure`.
        width: See `visattn.figure`.
        rc: See `visattn.figure`.
        options: Fields of `DrawOptions`.

    Raises:
        ValueError: If the detections belong to an image of another size.

    Example:
        >>> from visattn.models import DETR, SmallEncoder
        >>> from visattn.pipelines.detection import detect
        >>> model = DETR(("cat",), SmallEncoder((16, 24), channels=8), dim=8, num_queries=3)
        >>> photo = np.zeros((60, 80, 3), np.uint8)
        >>> [result] = detect(model, photo, threshold=0.0)
        >>> [ax.get_title(loc="left") for ax in detection_figure(photo, result).axes][0]
        '3 objects'
    """
    photo = read_image(image)
    check_photo(photo, result.maps.geometry, "the detection")
    drawing = DrawOptions(**options).otherwise(vmax=result.maps.display_range()[1], smooth=True)
    count = len(result.objects)
    shown, info = result.objects[:max_queries], result.maps.info
    geometry = result.maps.geometry or Geometry.identity(photo.size)
    title = f"{count} object{'' if count == 1 else 's'}"
    if len(shown) < count:
        title += f", queries of the first {len(shown)}"
    values = result.maps.values
    ends = (float(values.min()), float(values.max())) if values.numel() else None
    scale = MapScale("global", drawing.vmin, drawing.vmax or 1.0, values=ends)
    tiles = [Tile(photo.pixels, title=title)]
    for each, own, outside in zip(shown, result.maps, info.outside, strict=False):
        off = "" if outside < 0.005 else f", {100 * outside:.0f} % outside the input"
        name = f"{each.label} {each.score:.2f}"
        tiles.append(Tile(photo.pixels, own, scale, name, note=f"query {each.query}{off}"))
    heads = info.more.get("heads") or "mean"
    mean = "mean over heads" if heads == "mean" else f"heads {', '.join(map(str, heads))}"
    notes = [f"cross-attention of decoder layer {info.layer}, {mean}", geometry.seen_text]
    drawn = sheet([tiles], drawing, notes=notes, crop=crop, width=width, rc=rc)
    with style(rc):
        draw_boxes(drawn.axes[0], result.objects)
        for ax, each in zip(drawn.axes[1:], shown, strict=False):
            names = sorted({other.label for other in result.objects})
            outline(ax, each.box, np.array(box_color(names.index(each.label))) / 255, 1.5)
    return drawn
