"""Objects on images, with outline and box, as COCO writes them down; each field is looked at."""

import math
from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

from visattn.geometry.affine import Box
from visattn.io.safe_paths import check_name
from visattn.io.safe_text import CONTROLS, bounded_bytes, parsed_json, plain_text, shown

MOST_PIXELS = 64_000_000  # of an image whose outlines are drawn
_SLACK = 1.0  # pixels by which a box may lie beside its image: others round differently


class CocoObject(NamedTuple):
    """One object on an image."""

    category: str
    outline: Any
    """Polygons or run lengths, as they stand in the file."""
    box: Box
    """Left, top, right, bottom in pixels."""


class CocoImage(NamedTuple):
    """An image and the objects on it."""

    file: str
    """A path below the folder of images."""
    size: tuple[int, int]
    """Height and width in pixels."""
    objects: tuple[CocoObject, ...]


def read_instance_file(path: Path) -> list[CocoImage]:
    """Return the images of a file of instances in its order, those without objects too.

    Args:
        path: JSON with `images`, `annotations` and `categories`.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file does not hold what it should; the key is named.

    Example:
        >>> file = getfixture("tmp_path") / "some.json"
        >>> told = '{"images": [{"id": 1, "file_name": "a.jpg", "height": 3, "width": 4}], '
        >>> _ = file.write_text(told + '"annotations": [], "categories": []}')
        >>> read_instance_file(file)
        [CocoImage(file='a.jpg', size=(3, 4), objects=())]

    Source:
        Lin et al. 2014, arXiv:1405.0312 (COCO), whose annotations come so.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no file of instances at {path}")
    content = bounded_bytes(path)
    try:
        told = parsed_json(plain_text(content))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(told, dict):
        raise ValueError(f"{path} must hold an object, it holds a {type(told).__name__}")  # noqa: TRY004 (a file's fault)
    try:
        return _with_objects(_images(told), _categories(told), told)
    except ValueError as error:
        raise ValueError(f"{path} holds no instances as COCO writes them: {error}") from None


def _images(told: dict[str, Any]) -> dict[int | str, CocoImage]:
    images: dict[int | str, CocoImage] = {}
    files: set[str] = set()
    for place, one in _list(told, "images"):
        number, file = _id(one, "id", place), _text(one, "file_name", place)
        _check_new(number, images, place)
        _check_new(file, files, place)
        files.add(file)
        try:
            check_name(file)
        except ValueError as error:
            raise ValueError(f"{place}: {error}") from None
        images[number] = CocoImage(file, _size(one, place), ())
    return images


def _categories(told: dict[str, Any]) -> dict[int | str, str]:
    names: dict[int | str, str] = {}
    for place, one in _list(told, "categories"):
        number = _id(one, "id", place)
        _check_new(number, names, place)
        names[number] = _text(one, "name", place)
    return names


def _with_objects(
    images: dict[int | str, CocoImage], categories: dict[int | str, str], told: dict[str, Any]
) -> list[CocoImage]:
    objects: dict[int | str, list[CocoObject]] = {number: [] for number in images}
    seen: set[int | str] = set()
    for place, one in _list(told, "annotations"):
        image = _known(one, "image_id", images, place)
        category = categories[_known(one, "category_id", categories, place)]
        if "id" in one:
            number = _id(one, "id", place)
            _check_new(number, seen, place)
            seen.add(number)
        outline = one.get("segmentation")
        if not isinstance(outline, (list, dict)):
            raise ValueError(  # noqa: TRY004 (a file's fault)
                f"{place}: segmentation must be polygons or run lengths, got {shown(outline)}"
            )
        box = _box(one.get("bbox"), place, images[image].size)
        objects[image].append(CocoObject(category, outline, box))
    return [one._replace(objects=tuple(objects[number])) for number, one in images.items()]


def _box(told: Any, place: str, size: tuple[int, int]) -> Box:
    """Return left, top, right and bottom of a box that is told by left, top, width and height."""
    numbers = told if isinstance(told, list) and len(told) == 4 else [math.nan]
    if not all(map(_is_number, numbers)):
        raise ValueError(f"{place}: bbox must be four finite numbers, got {shown(told)}")
    x, y, width, height = map(float, numbers)
    right, bottom = size[1] + _SLACK, size[0] + _SLACK
    inside = -_SLACK <= x <= x + width <= right and -_SLACK <= y <= y + height <= bottom
    if not inside:
        raise ValueError(
            f"{place}: bbox must be left, top, width and height in an image that is {size[1]} "
            f"pixels wide and {size[0]} high, got {shown(told)}"
        )
    return x, y, x + width, y + height


def _size(one: dict[str, Any], place: str) -> tuple[int, int]:
    height: Any = one.get("height")
    width: Any = one.get("width")
    whole = type(height) is int and type(width) is int  # True is an int too
    if not whole or min(height, width) < 1 or height * width > MOST_PIXELS:
        raise ValueError(
            f"{place}: height and width must be whole numbers from 1 on, with at most "
            f"{MOST_PIXELS:,} pixels in all, got {shown(height)} and {shown(width)}"
        )
    return height, width


def _list(told: dict[str, Any], key: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the objects of a list, each with its place."""
    held = told.get(key)
    if not isinstance(held, list) or not all(isinstance(one, dict) for one in held):
        raise ValueError(f"{key} must be a list of objects, got {shown(held)}")
    return [(f"{key}[{index}]", one) for index, one in enumerate(held)]


def _id(one: dict[str, Any], key: str, place: str) -> int | str:
    value = one.get(key)
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(f"{place}: {key} must be a whole number or a text, got {shown(value)}")  # noqa: TRY004
    return value


def _text(one: dict[str, Any], key: str, place: str) -> str:
    value = one.get(key)
    if not isinstance(value, str) or not value.strip() or CONTROLS.search(value):
        raise ValueError(f"{place}: {key} must be a text on one line, got {shown(value)}")
    return value


def _known(one: dict[str, Any], key: str, known: Collection[int | str], place: str) -> int | str:
    number = _id(one, key, place)
    if number not in known:
        raise ValueError(f"{place}: {key} {shown(number)} is none that the file defines")
    return number


def _check_new(what: int | str, known: Collection[int | str], place: str) -> None:
    if what in known:
        raise ValueError(f"{place}: {shown(what)} stands there already, before")


def _is_number(value: Any) -> bool:
    """Whether this is a number that could be a place on an image; NaN is none."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e9
