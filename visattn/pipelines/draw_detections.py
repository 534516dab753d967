"""Figures of detections on photos."""

import numpy as np
from jaxtyping import UInt8

from visattn.images.reader import ImageLike, LoadedImage, read_image
from visattn.results.values import DetectionResult
from visattn.viz.detection.boxes import box_color
from visattn.viz.detection.panel import ShownDetection, detection_overview, detection_panel
from visattn.viz.layout.grid import compute_tile_size

_MAX_TILES = 11


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
