"""Figure of detections: all boxes, and for each the map and sampling points of its query."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.images.reader import ImageLike, LoadedImage, read_image
from visattn.results.values import DetectionResult
from visattn.viz.detection.boxes import Color, LabeledBox, box_color, draw_boxes, draw_points
from visattn.viz.layout.grid import MARGIN, compute_tile_grid, compute_tile_size, create_titled_page
from visattn.viz.layout.text import load_font, truncate_text
from visattn.viz.maps.heatmap import overlay
from visattn.viz.maps.legend import LEGEND_HEIGHT, MUTED, SMALL, TEXT, draw_legend
from visattn.viz.maps.resize import resize_image, resize_map

_CAPTION_HEIGHT, _NAME_SIZE = 44, 15
_MAX_TILES = 11


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


def detection_overlay(image: ImageLike, result: DetectionResult) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with the boxes, classes and scores of its detections.

    Args:
        image: The original image.
        result: Its detections, from `detect`.

    Raises:
        ValueError: If the detections belong to an image of another size.
    """
    original = _check_size(image, result)
    shown = [_shown(result, index, None) for index in range(len(result.objects))]
    return detection_overview(original.pixels, shown)


def detection_figure(
    image: ImageLike,
    result: DetectionResult,
    *,
    name: str = "",
    max_queries: int = _MAX_TILES,
    width: int = 1200,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure of the detections, and of what the query of each attended to.

    Args:
        image: The original image.
        result: Its detections, from `detect`.
        name: Name of the image in the figure.
        max_queries: Largest number of detections whose query is drawn.
        width: Width of the figure in pixels.

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
    original = _check_size(image, result)
    count, drawn = len(result.objects), min(len(result.objects), max_queries)
    tile = compute_tile_size(original.size, drawn, width=width)
    shown = [_shown(result, index, tile if index < drawn else None) for index in range(count)]
    title = f"{count} object{'' if count == 1 else 's'}"
    if drawn < count:
        title += f", of which the {drawn} with the highest scores"
    layer = result.maps.metadata["layer"]
    note = f"cross-attention of decoder layer {layer}, mean over heads"
    return detection_panel(
        original.pixels,
        shown,
        title=title,
        subtitle=" \N{MIDDLE DOT} ".join(filter(None, [name, note])),
        vmax=result.maps.display_range()[1],
        width=width,
    )


def _check_size(image: ImageLike, result: DetectionResult) -> LoadedImage:
    original, geometry = read_image(image), result.maps.geometry
    if geometry is None or geometry.image_size != original.size:
        size = None if geometry is None else geometry.image_size
        raise ValueError(
            f"the detections belong to an image of {size} (height, width), but {original.name} has "
            f"{original.size}; pass the original image"
        )
    return original


def _shown(result: DetectionResult, index: int, tile: tuple[int, int] | None) -> ShownDetection:
    """Return a detection; its map at the size of a tile, or none."""
    each = result.objects[index]
    names = sorted({other.label for other in result.objects})
    return ShownDetection(
        each.label,
        each.score,
        np.array(each.box),
        box_color(names.index(each.label)),
        None if tile is None else result.maps[index].resize_to_image(tile).numpy(),
        None if result.points is None else result.points[index].numpy(),
        _note(each.query, result.maps.metadata["outside"][index]),
    )


def _note(query: int, outside: float) -> str:
    text = f"query {query}"
    return text if outside < 0.005 else f"{text}, {100 * outside:.0f} % off the input"
