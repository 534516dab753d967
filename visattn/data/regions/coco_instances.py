"""COCO instance annotations, with every field validated."""

import math
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from visattn.data.regions.annotations import AnnotatedObject
from visattn.data.regions.masks import check_polygons, check_rle
from visattn.geometry.affine import Box
from visattn.io.safe_paths import check_relative_path
from visattn.io.safe_text import (
    CONTROL_CHARACTERS,
    paused_garbage_collection,
    read_json_object,
    short_repr,
)
from visattn.results.map_boxes import MapBoxes

MAX_PIXELS = 64_000_000  # of an image whose masks are rasterized
_BOX_TOLERANCE = 1.0  # pixels by which a box may exceed its image, due to rounding
_MAX_CLIPPED = 0.01  # share of boxes beyond it; more of them are boxes of another format


class CocoImage(NamedTuple):
    """An image and its annotated objects."""

    file: str
    """Path relative to the folder of images."""
    size: tuple[int, int]
    """Height and width in pixels."""
    objects: tuple[AnnotatedObject, ...]
    """Segmentations are polygons or run-length encodings (RLE), as in the file."""


def read_instance_file(path: Path) -> list[CocoImage]:
    """Read a COCO instances file: all images in its order, also those without objects.

    Everything is checked here, the polygons too, so that no annotation ends a training later. A
    segmentation may be missing: absent, null, `[]` or `{}`. Single points and lines beside a
    polygon are left out and boxes are clipped at the image.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If its content is invalid; the message names the key. If more than 1 % of the
            boxes exceed their images.

    Example:
        >>> file = getfixture("tmp_path") / "instances.json"
        >>> images = '{"images": [{"id": 1, "file_name": "a.jpg", "height": 3, "width": 4}], '
        >>> _ = file.write_text(images + '"annotations": [], "categories": []}')
        >>> read_instance_file(file)
        [CocoImage(file='a.jpg', size=(3, 4), objects=())]

    Source:
        Lin et al. 2014, arXiv:1405.0312 (COCO), the format of its annotations.
    """
    document = _read_document(path)
    try:
        with paused_garbage_collection():
            categories = _parse_categories(document)
            result = _attach_objects(_parse_images(document), categories, document)
    except ValueError as error:
        raise ValueError(f"{path} is not a COCO instances file: {error}") from None
    return result


def read_category_names(path: Path) -> list[str]:
    """Return the names of the categories of a COCO instances file, in its order.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If its content is invalid, or two categories have the same name.
    """
    try:
        names = list(_parse_categories(_read_document(path)).values())
    except ValueError as error:
        raise ValueError(f"{path} is not a COCO instances file: {error}") from None
    if len(set(names)) < len(names) or not names:
        raise ValueError(f"{path} must have categories with distinct names, got {names[:5]} ...")
    return names


def _read_document(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise FileNotFoundError(f"no instances file at {path}")
    return read_json_object(path)


def _parse_images(document: dict[str, Any]) -> dict[int | str, CocoImage]:
    images: dict[int | str, CocoImage] = {}
    files: set[str] = set()
    for location, entry in _list_entries(document, "images"):
        image_id = _parse_id(entry, "id", location)
        file = _parse_text(entry, "file_name", location)
        _check_unique(image_id, images, location)
        _check_unique(file, files, location)
        files.add(file)
        try:
            check_relative_path(file)
        except ValueError as error:
            raise ValueError(f"{location}: {error}") from None
        images[image_id] = CocoImage(file, _parse_size(entry, location), ())
    return images


def _parse_categories(document: dict[str, Any]) -> dict[int | str, str]:
    names: dict[int | str, str] = {}
    for location, entry in _list_entries(document, "categories"):
        category_id = _parse_id(entry, "id", location)
        _check_unique(category_id, names, location)
        names[category_id] = _parse_text(entry, "name", location)
    return names


def _attach_objects(
    images: dict[int | str, CocoImage],
    categories: dict[int | str, str],
    document: dict[str, Any],
) -> list[CocoImage]:
    objects: dict[int | str, list[AnnotatedObject]] = {image_id: [] for image_id in images}
    ids: set[int | str] = set()
    faults: list[str] = []
    entries = _list_entries(document, "annotations")
    for location, entry in entries:
        image_id = _reference(entry, "image_id", images, location)
        category = categories[_reference(entry, "category_id", categories, location)]
        if "id" in entry:
            object_id = _parse_id(entry, "id", location)
            _check_unique(object_id, ids, location)
            ids.add(object_id)
        size = images[image_id].size
        box, fault = parse_box(entry.get("bbox"), location, size)
        faults += [fault] if fault else []
        try:
            segmentation = _parse_segmentation(entry.get("segmentation"), size, box)
        except ValueError as error:
            raise ValueError(f"{location}: {error}") from None
        crowd = _parse_crowd(entry, location)
        area = _parse_area(entry, location)
        objects[image_id].append(AnnotatedObject(category, segmentation, box, crowd, area))
    check_clipped(faults, len(entries))
    return [image._replace(objects=tuple(objects[image_id])) for image_id, image in images.items()]


def _parse_segmentation(value: Any, size: tuple[int, int], box: Box) -> Any:
    """Return polygons or RLE, or None if there is neither."""
    if value is None or value in ([], {}):
        return None
    if not isinstance(value, list):
        check_rle(value, size)
        return value
    polygons, around = check_polygons(value, size)
    if around is not None and not _overlap(around, box):
        raise ValueError(
            f"the segmentation lies outside of bbox: x from {around[0]:g} to {around[2]:g} and y "
            f"from {around[1]:g} to {around[3]:g}, got the box {short_repr(list(box))} (left, top, "
            "right, bottom)"
        )
    return value if len(polygons) == len(value) else polygons


def _overlap(first: Box, second: Box) -> bool:
    """Return whether two boxes have a point in common, with the tolerance of rounding."""
    return all(
        max(first[side], second[side]) <= min(first[side + 2], second[side + 2]) + _BOX_TOLERANCE
        for side in (0, 1)
    )


def parse_box(value: Any, location: str, size: tuple[int, int]) -> tuple[Box, str]:
    """Return left, top, right, bottom from left, top, width, height, and why it was clipped.

    Args:
        value: The box of an annotation.
        location: The annotation, for messages.
        size: Height and width of its image.

    Raises:
        ValueError: If it is no box, or lies outside of the image.

    Example:
        >>> parse_box([1, 2, 3, 4], "here", (30, 40))
        ((1.0, 2.0, 4.0, 6.0), '')
    """
    numbers = value if isinstance(value, list) and len(value) == 4 else [math.nan]
    if not all(map(_is_number, numbers)):
        raise ValueError(f"{location}: bbox must be four finite numbers, got {short_repr(value)}")
    x, y, width, height = map(float, numbers)
    right = x + width
    bottom = y + height
    excess = max(-x, -y, right - size[1], bottom - size[0])
    if excess <= _BOX_TOLERANCE and min(width, height) >= 0:
        return (x, y, right, bottom), ""
    fault = (
        f"{location}: bbox must be left, top, width, height inside of an image of {size[1]} x "
        f"{size[0]} pixels, got {short_repr(value)}"
    )
    if min(width, height, right, bottom) < 0 or x > size[1] or y > size[0]:
        raise ValueError(fault)
    return (max(x, 0.0), max(y, 0.0), min(right, size[1]), min(bottom, size[0])), fault


def check_clipped(faults: Sequence[str], total: int) -> None:
    """Raise if boxes exceed their images so often that they must be meant otherwise.

    Args:
        faults: What is wrong with each box that was clipped.
        total: Number of all boxes.

    Raises:
        ValueError: If they are more than 1 %.
    """
    if len(faults) > _MAX_CLIPPED * total:
        raise ValueError(
            f"{faults[0]}; {len(faults):,} of {total:,} boxes exceed their images: are they "
            "corners, relative coordinates, or those of another image size?"
        )


def _parse_crowd(entry: dict[str, Any], location: str) -> bool:
    value = entry.get("iscrowd")
    if value not in (None, 0, 1):
        raise ValueError(f"{location}: iscrowd must be 0 or 1, got {short_repr(value)}")
    return bool(value)


def _parse_area(entry: dict[str, Any], location: str) -> float | None:
    value = entry.get("area")
    if value is not None and not (_is_number(value) and value >= 0):
        raise ValueError(
            f"{location}: area must be a number of at least 0, got {short_repr(value)}"
        )
    return value if value is None else float(value)


def _parse_size(entry: dict[str, Any], location: str) -> tuple[int, int]:
    height, width = (_as_integer(entry.get(side)) for side in ("height", "width"))
    integers = type(height) is int and type(width) is int  # bool is a subclass of int
    if not integers or min(height, width) < 1 or height * width > MAX_PIXELS:
        raise ValueError(
            f"{location}: height and width must be positive integers, with at most "
            f"{MAX_PIXELS:,} pixels in total, got {short_repr(height)} and {short_repr(width)}"
        )
    return height, width


def _list_entries(document: dict[str, Any], key: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the entries of a list, each with its location."""
    entries = document.get(key)
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{key} must be a list of objects, got {short_repr(entries)}")
    return [(f"{key}[{index}]", entry) for index, entry in enumerate(entries)]


def _parse_id(entry: dict[str, Any], key: str, location: str) -> int | str:
    value = _as_integer(entry.get(key))
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(  # noqa: TRY004 (a file's fault)
            f"{location}: {key} must be an integer or a string, got {short_repr(value)}"
        )
    return value


def _parse_text(entry: dict[str, Any], key: str, location: str) -> str:
    value = entry.get(key)
    if not isinstance(value, str) or not value.strip() or CONTROL_CHARACTERS.search(value):
        raise ValueError(
            f"{location}: {key} must be a nonempty string on one line, got {short_repr(value)}"
        )
    return value


def _reference(
    entry: dict[str, Any], key: str, defined: Collection[int | str], location: str
) -> int | str:
    number = _parse_id(entry, key, location)
    if number not in defined:
        raise ValueError(f"{location}: {key} {short_repr(number)} is not defined in the file")
    return number


def _check_unique(value: int | str, previous: Collection[int | str], location: str) -> None:
    if value in previous:
        raise ValueError(f"{location}: duplicate {short_repr(value)}")


def _as_integer(value: Any) -> Any:
    """Return 7 for 7.0, as some tools write whole numbers; anything else as it is."""
    return int(value) if type(value) is float and value.is_integer() else value


def _is_number(value: Any) -> bool:
    """Return whether this is a finite number in the range of image coordinates."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e9


DESCRIPTION = "boxes of attention maps"
"""By which such a file is known."""


def coco_boxes(images: Iterable[tuple[str, MapBoxes]]) -> dict[str, Any]:
    """Return boxes of maps as a COCO document, in pixels of the upright images.

    Its `annotations` have the form of COCO's results, with `score`; `read_coco_images` and
    `pycocotools.coco.COCO` read the document, `COCO.loadRes` its annotations. The category of a box
    is the label of its map without punctuation around it; `text` is the label as it is, `index` the
    number of the word or map, and `peak` the highest value of the map in the box.

    Args:
        images: File name of each image, relative to the folder of images, and its boxes.

    Example:
        >>> from visattn.results.map_boxes import MapBox
        >>> boxes = MapBoxes((MapBox((1.0, 0.0, 4.0, 2.0), 0.75, 0.5, "dog."),), 0.5, (3, 5))
        >>> document = coco_boxes([("a.jpg", boxes)])
        >>> document["annotations"][0]["bbox"], document["categories"]
        ([1.0, 0.0, 3.0, 2.0], [{'id': 1, 'name': 'dog'}])

    Source:
        Lin et al. 2014, arXiv:1405.0312 (COCO), the formats of annotations and results.
    """
    entries: list[dict[str, Any]] = []
    annotations: list[dict[str, Any]] = []
    categories: dict[str, int] = {}
    rules: list[dict[str, Any]] = []
    for number, (file, boxes) in enumerate(images, start=1):
        height, width = boxes.image_size
        entries.append({"id": number, "file_name": file, "height": height, "width": width})
        rule = {"threshold": boxes.threshold}
        rules += [] if rule in rules else [rule]
        for box in boxes:
            left, top, right, bottom = box.box
            name = category_name(box.label)
            annotations.append({
                "id": len(annotations) + 1,
                "image_id": number,
                "category_id": categories.setdefault(name, len(categories) + 1),
                "bbox": [left, top, right - left, bottom - top],
                "area": (right - left) * (bottom - top),
                "iscrowd": 0,
                "score": box.score,
                "peak": box.peak,
                "text": box.label,
                "index": box.map_index,
            })  # fmt: skip
    info = {"description": DESCRIPTION, "rules": rules}
    listed = [{"id": number, "name": name} for name, number in categories.items()]
    return {"info": info, "images": entries, "annotations": annotations, "categories": listed}


def category_name(label: str) -> str:
    """Return a label on one line without punctuation around it; one of punctuation stays.

    Example:
        >>> category_name('"dog,'), category_name("..."), category_name("")
        ('dog', '...', 'map')
    """
    line = " ".join("".join(letter if letter.isprintable() else " " for letter in label).split())
    inner = [index for index, letter in enumerate(line) if unicodedata.category(letter)[0] != "P"]
    return line[inner[0] : inner[-1] + 1] if inner else line or "map"
