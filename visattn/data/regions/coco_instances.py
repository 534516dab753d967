"""Reader of COCO instances files, and checks of boxes."""

import math
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from visattn.data.regions.annotations import AnnotatedObject
from visattn.data.regions.masks import check_polygons, check_rle
from visattn.geometry.affine import Box
from visattn.images.formats import MAX_PIXELS
from visattn.io.safe_paths import relative_path
from visattn.io.safe_text import paused_garbage_collection, read_json, reading, short_repr

_TOLERANCE = 1.0  # pixels by which a box may exceed its image, due to rounding
_MAX_CLIPPED = 0.01  # fraction of boxes beyond it; more suggest another format


class CocoImage(NamedTuple):
    """An image and its annotated objects."""

    file: str
    """Path relative to the folder of images."""
    size: tuple[int, int]
    """Height and width in pixels."""
    objects: list[AnnotatedObject]
    """Segmentations are polygons or run-length encodings (RLE), as in the file."""


def read_instance_file(path: Path) -> tuple[list[CocoImage], list[str]]:
    """Read a COCO instances file: all images in file order, and the category names.

    Segmentations may be absent, null, `[]` or `{}`. Stray points and lines among polygons are
    dropped, and boxes are clipped to the image. Rotated rectangles of CVAT (`attributes.rotation`)
    become their bounding boxes.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If its content is invalid (the message names the entry), two categories share a
            name, or the boxes are in another format: more than 1 % of them exceed their images, or
            all are between 0 and 1.

    Example:
        >>> file = getfixture("tmp_path") / "instances.json"
        >>> images = '{"images": [{"id": 1, "file_name": "a.jpg", "height": 3, "width": 4}], '
        >>> _ = file.write_text(images + '"annotations": [], "categories": []}')
        >>> read_instance_file(file)
        ([CocoImage(file='a.jpg', size=(3, 4), objects=[])], [])

    Source:
        Lin et al. 2014, arXiv:1405.0312 (COCO), the format of its annotations.
    """
    with reading(path), paused_garbage_collection():
        document = read_json(path)
        categories: dict[Any, str] = {}
        for number, entry in enumerate(document["categories"]):
            with reading(path, f"categories[{number}]"):
                if entry["name"] in categories.values():
                    raise ValueError(
                        f"the name {entry['name']!r} occurs twice; rename one of the categories"
                    )
                categories[entry["id"]] = " ".join(entry["name"].split())
        images: dict[Any, CocoImage] = {}
        for number, entry in enumerate(document["images"]):
            with reading(path, f"images[{number}]"):
                size = (int(entry["height"]), int(entry["width"]))
                if min(size) < 1 or math.prod(size) > MAX_PIXELS:
                    raise ValueError(f"the size of an image cannot be {size[0]} x {size[1]}")
                if entry["id"] in images:
                    raise ValueError(f"ids must be unique, but {entry['id']} occurs twice")
                images[entry["id"]] = CocoImage(relative_path(entry["file_name"]), size, [])
        boxes: list[tuple[Box, tuple[int, int]]] = []
        rotated = 0
        for number, entry in enumerate(document["annotations"]):
            with reading(path, f"annotations[{number}]"):
                _, size, objects = images[entry["image_id"]]
                x, y, width, height = map(float, entry["bbox"])
                box = (x, y, x + width, y + height)
                if angle := float((entry.get("attributes") or {}).get("rotation") or 0):
                    box = _turned(box, math.radians(angle))
                    rotated += 1
                clipped = clip_box(box, size)
                area = entry.get("area")
                objects.append(
                    AnnotatedObject(
                        categories[entry["category_id"]],
                        _checked_segmentation(entry.get("segmentation"), size, clipped),
                        clipped,
                        bool(entry.get("iscrowd")),
                        None if area is None else float(area),
                    )
                )
                boxes.append((box, size))
        check_boxes(boxes)
    if rotated:
        warnings.warn(
            f"{path}: {rotated:,} rectangles are rotated; their bounding boxes are used",
            stacklevel=2,
        )
    return list(images.values()), list(categories.values())


def clip_box(box: Box, size: tuple[int, int]) -> Box:
    """Clip a box (left, top, right, bottom) to an image of this height and width.

    A box that exceeds the image by at most one pixel is returned unchanged.

    Raises:
        ValueError: If the box is invalid, or outside the image.

    Example:
        >>> clip_box((1, 2, 44, 6), (30, 40))
        (1, 2, 40, 6)
    """
    left, top, right, bottom = box
    height, width = size
    if not (left <= right and top <= bottom and right >= 0 <= bottom and left <= width
            and top <= height) or math.isinf(right + bottom):  # fmt: skip
        raise ValueError(
            "a box (left, top, right, bottom) must have left <= right, top <= bottom and overlap "
            f"its image of {width} x {height} pixels, got {short_repr(list(box))}"
        )
    if not _exceeds(box, size):
        return box
    return max(left, 0.0), max(top, 0.0), min(right, width), min(bottom, height)


def check_boxes(boxes: Sequence[tuple[Box, tuple[int, int]]]) -> None:
    """Raise if boxes, each with the size of its image, seem to be in another format."""
    outside = [box for box, size in boxes if _exceeds(box, size)]
    if len(outside) > _MAX_CLIPPED * len(boxes):
        raise ValueError(
            f"{len(outside):,} of {len(boxes):,} boxes exceed their images, such as "
            f"{short_repr(list(outside[0]))}; check the box format and the image sizes"
        )
    if len(boxes) > 2 and all(max(box) <= 1 for box, _ in boxes):
        raise ValueError(
            "boxes must be in pixels, but all are between 0 and 1; multiply them by the width and "
            "height of the image"
        )


def _exceeds(box: Box, size: tuple[int, int]) -> bool:
    return max(-box[0], -box[1], box[2] - size[1], box[3] - size[0]) > _TOLERANCE


def _turned(box: Box, angle: float) -> Box:
    """Return the bounding box of a rectangle rotated around its center."""
    left, top, right, bottom = box
    cosine, sine = abs(math.cos(angle)), abs(math.sin(angle))
    half_width = ((right - left) * cosine + (bottom - top) * sine) / 2
    half_height = ((right - left) * sine + (bottom - top) * cosine) / 2
    x, y = (left + right) / 2, (top + bottom) / 2
    return x - half_width, y - half_height, x + half_width, y + half_height


def _checked_segmentation(value: Any, size: tuple[int, int], box: Box) -> Any:
    """Return polygons or RLE, or None if there is neither."""
    if not value:
        return None
    if isinstance(value, dict):
        check_rle(value, size)
        return value
    polygons, around = check_polygons(value, size)
    apart = around and any(
        max(around[side], box[side]) > min(around[side + 2], box[side + 2]) + _TOLERANCE
        for side in (0, 1)
    )
    if apart:
        raise ValueError(
            f"the segmentation must overlap its bbox {short_repr(list(box))}, got "
            f"{short_repr(around)} (left, top, right, bottom)"
        )
    return polygons
