"""Figure of detections: all boxes, and for each the map and sampling points of its query."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.viz.detection.boxes import Color, LabeledBox, draw_boxes, draw_points
from visattn.viz.layout.grid import MARGIN, compute_tile_grid, create_titled_page
from visattn.viz.layout.text import load_font, truncate_text
from visattn.viz.maps.heatmap import overlay
from visattn.viz.maps.legend import LEGEND_HEIGHT, MUTED, SMALL, TEXT, draw_legend
from visattn.viz.maps.resize import resize_image, resize_map

_CAPTION_HEIGHT, _NAME_SIZE = 44, 15


@dataclass(frozen=True, eq=False)
class ShownDetection:
    """One detection with what its query attended to.

    Args:
        label: Name of its class.
        score: Probability of the class.
        box: Left, top, right, bottom in pixels of the image.
        color: Color of its box and points.
        values: Map over the image, at any size; NaN outside of the model's input. Without it only
            the box is drawn.
        points: x and y in pixels of the image, and weight, of each sampled point; None if there
            are none.
        note: Second line below its tile.
    """

    label: str
    score: float
    box: Float[np.ndarray, " 4"]
    color: Color
    values: Float[np.ndarray, "y x"] | None
    points: Float[np.ndarray, "p 3"] | None = None
    note: str = ""


def detection_overview(
    image: UInt8[np.ndarray, "y x 3"], detections: Sequence[ShownDetection]
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with the boxes, classes and scores of all detections.

    Args:
        image: RGB.
        detections: In descending order of their scores.
    """
    return _boxes_at(image, detections, (image.shape[0], image.shape[1]))


def detection_panel(
    image: UInt8[np.ndarray, "y x 3"],
    detections: Sequence[ShownDetection],
    *,
    title: str,
    subtitle: str = "",
    vmax: float = 1.0,
    width: int = 1200,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure with the boxes on the image, and a tile for each detection.

    A tile shows the map of the query on the image, its box, and as dots the points that it
    sampled; the area of a dot grows with its weight. All tiles share one value range.

    Args:
        image: RGB, of any size and proportions.
        detections: In descending order of their scores; may be empty.
        title: Title of the figure.
        subtitle: Second line of the title, smaller.
        vmax: Value at the upper end of the colormap.
        width: Width of the figure in pixels.

    Example:
        >>> box = np.array([4.0, 4.0, 20.0, 20.0])
        >>> shown = ShownDetection("cat", 0.9, box, (230, 159, 0), np.zeros((30, 40)))
        >>> page = detection_panel(np.zeros((30, 40, 3), np.uint8), [shown], title="a", width=600)
        >>> page.shape[1]
        600
    """
    drawn = [each for each in detections if each.values is not None]
    values = [each.values for each in drawn if each.values is not None]
    grid = compute_tile_grid((image.shape[0], image.shape[1]), len(drawn) + 1, width)
    page, places = create_titled_page(
        title, grid, width, _CAPTION_HEIGHT, LEGEND_HEIGHT, subtitle=subtitle
    )
    draw, pen = partial(overlay, vmax=vmax), ImageDraw.Draw(page)
    size = f"{image.shape[1]} \N{MULTIPLICATION SIGN} {image.shape[0]}"
    page.paste(Image.fromarray(_boxes_at(image, detections, grid.tile_size)), places[0])
    _write(pen, places[0], grid.tile_size[0], grid.cell_width, "Detections", size)
    small = resize_image(image, grid.tile_size)
    for each, own, place in zip(drawn, values, places[1:], strict=False):
        tile = draw(small, resize_map(own, grid.tile_size))
        page.paste(Image.fromarray(_query_tile(tile, each, image)), place)
        name = f"{each.label} {each.score:.2f}"
        _write(pen, place, grid.tile_size[0], grid.cell_width, name, each.note)
    has_nan = any(bool(np.isnan(each).any()) for each in values)
    clipped = any(float(np.nanmax(each, initial=0.0)) > vmax for each in values)
    place = (MARGIN, page.height - LEGEND_HEIGHT)
    label = "weight of a cell" + (
        "; dots: sampled points" if any(each.points is not None for each in detections) else ""
    )
    draw_legend(page, place, draw, (0.0, vmax), has_nan=has_nan, clipped=clipped, label=label)
    return np.array(page)


def _query_tile(
    tile: UInt8[np.ndarray, "y x 3"], each: ShownDetection, image: UInt8[np.ndarray, "y2 x2 3"]
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the tile of a query with its box and points."""
    scale = np.array([tile.shape[1] / image.shape[1], tile.shape[0] / image.shape[0]])
    box = LabeledBox(each.box * np.tile(scale, 2), "", each.color)
    tile = draw_boxes(tile, [box])
    if each.points is None:
        return tile
    return draw_points(tile, each.points * np.array([*scale, 1.0]), each.color)


def _boxes_at(
    image: UInt8[np.ndarray, "y x 3"],
    detections: Sequence[ShownDetection],
    size: tuple[int, int],
) -> UInt8[np.ndarray, "y2 x2 3"]:
    """Return the image at another size with all boxes."""
    scale = np.tile([size[1] / image.shape[1], size[0] / image.shape[0]], 2)
    boxes = [
        LabeledBox(each.box * scale, f"{each.label} {each.score:.2f}", each.color)
        for each in detections
    ]
    return draw_boxes(resize_image(image, size), boxes)


def _write(
    pen: ImageDraw.ImageDraw,
    place: tuple[int, int],
    tile_height: int,
    width: int,
    name: str,
    note: str,
) -> None:
    (x, y), small = (place[0], place[1] + tile_height + 6), load_font(SMALL)
    font = load_font(_NAME_SIZE)
    pen.text((x, y), truncate_text(name, font, width), TEXT, font)
    pen.text((x, y + 21), truncate_text(note, small, width), MUTED, small)
