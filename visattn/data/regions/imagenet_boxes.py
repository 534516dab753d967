"""Boxes of ImageNet's localization task: a folder of XML files, or a CSV file."""

import csv
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from visattn.data.regions.annotations import AnnotatedImage, AnnotatedObject
from visattn.geometry.affine import Box
from visattn.images.reader import find_images, read_size
from visattn.io.messages import format_names
from visattn.io.safe_text import (
    decode_utf8,
    element_text,
    parse_xml,
    read_bytes_bounded,
    short_repr,
)

_COLUMNS = ["ImageId", "PredictionString"]
_TOLERANCE = 1.0  # pixels by which a box may exceed its image, due to counting from 1
_MAX_COORDINATE = 1e6


def read_imagenet_boxes(
    source: str | os.PathLike[str], images: str | os.PathLike[str] | None = None
) -> list[AnnotatedImage]:
    r"""Read images with the boxes of their objects, whose categories are WordNet ids.

    The region of an object is its box: there are no masks.

    Args:
        source: A folder with an XML file per image, searched recursively (`Annotations`), or a CSV
            file with the columns `ImageId` and `PredictionString`, in which each object is a
            category, left, top, right and bottom (`LOC_val_solution.csv`).
        images: Folder of the images, searched recursively; an image has the name of its XML file or
            its `ImageId`. By default `Data` instead of `Annotations` in the path of the folder, or
            `ILSVRC/Data/CLS-LOC/val` beside the CSV file.

    Raises:
        FileNotFoundError: If there is no such folder, or an image is not in it.
        ValueError: If a file is invalid; the message names it.

    Example:
        >>> from PIL import Image
        >>> folder = getfixture("tmp_path")
        >>> Image.new("RGB", (4, 3)).save(folder / "a.png")
        >>> lines = "ImageId,PredictionString\na,n02391049 1 0 4 2 n02391049 0 0 1 1 \n"
        >>> _ = (folder / "boxes.csv").write_text(lines)
        >>> [image] = read_imagenet_boxes(folder / "boxes.csv", folder)
        >>> image.categories, [annotation.box for annotation in image.objects]
        (('n02391049',), [(1.0, 0.0, 4.0, 2.0), (0.0, 0.0, 1.0, 1.0)])

    Source:
        Russakovsky et al. 2015, arXiv:1409.0575 (ILSVRC), the files of its localization task. Their
        coordinates are used as they are, 0 at the left border of the image.
    """
    path = Path(source)
    folder = Path(images) if images is not None else _default_folder(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"no folder of images at {folder}; name it")
    files: dict[str, Path] = {}
    for file in find_images(folder):
        if (other := files.setdefault(file.stem, file)) != file:
            raise ValueError(f"{other} and {file} have the same name: whose boxes are meant?")
    entries = _read_csv(path, files) if path.is_file() else _read_folder(path)
    annotated: list[AnnotatedImage] = []
    missing: list[str] = []
    for origin, name, size, objects in entries:
        if name not in files:
            missing.append(name)
        elif objects:
            annotations = tuple(AnnotatedObject(category, None, box) for category, box in objects)
            _check_boxes(origin, size, [box for _, box in objects])
            relative = files[name].relative_to(folder).as_posix()
            annotated.append(AnnotatedImage(relative, files[name], size, annotations))
    if missing:
        raise FileNotFoundError(f"no image {format_names(missing, 1)} in {folder}")
    if not annotated:
        raise ValueError(f"{path} has no objects on any image")
    return sorted(annotated, key=lambda image: image.name)


_Objects = list[tuple[str, Box]]
_Entry = tuple[str, str, tuple[int, int], _Objects]  # origin, name, size, objects


def _default_folder(source: Path) -> Path:
    if source.is_file():
        return source.parent / "ILSVRC" / "Data" / "CLS-LOC" / "val"
    parts = ["Data" if part == "Annotations" else part for part in source.parts]
    return Path(*parts)


def _read_folder(folder: Path) -> Iterable[_Entry]:
    for file in sorted(folder.rglob("*.xml")):
        try:
            root = parse_xml(read_bytes_bounded(file))
            width, height = (
                int(element_text(root, f"size/{side}")) for side in ("width", "height")
            )
            objects: _Objects = []
            for element in root.findall("object"):
                sides = [
                    element_text(element, f"bndbox/{side}")
                    for side in ("xmin", "ymin", "xmax", "ymax")
                ]
                objects.append((element_text(element, "name"), _parse_box(sides)))
        except ValueError as error:
            raise ValueError(f"{file} holds no boxes as ImageNet's: {error}") from None
        yield str(file), file.stem, (height, width), objects


def _read_csv(file: Path, images: dict[str, Path]) -> Iterable[_Entry]:
    try:
        rows = csv.reader(decode_utf8(read_bytes_bounded(file)).splitlines(), strict=True)
        if (header := next(rows, [])) != _COLUMNS:
            raise ValueError(f"its columns must be {' and '.join(_COLUMNS)}, got {header[:3]}")
        for row in rows:
            if len(row) != len(_COLUMNS):
                raise ValueError(f"line {rows.line_num} must have two columns, got {row[:3]}")
            name, words = row[0], row[1].split()
            objects: _Objects = [
                (words[start], _parse_box(words[start + 1 : start + 5]))
                for start in range(0, len(words), 5)
            ]
            size = read_size(images[name])[0] if name in images else (0, 0)
            yield f"{file}, line {rows.line_num}", name, size, objects
    except (csv.Error, ValueError) as error:
        raise ValueError(f"{file} holds no boxes as ImageNet's: {error}") from None


def _parse_box(sides: Sequence[str]) -> Box:
    try:
        left, top, right, bottom = map(float, sides)
    except ValueError:
        raise ValueError(f"a box must be four numbers, got {short_repr(list(sides))}") from None
    return left, top, right, bottom


def _check_boxes(origin: str, size: tuple[int, int], boxes: Sequence[Box]) -> None:
    height, width = size
    for left, top, right, bottom in boxes:
        inside = (
            0 <= left < right <= width + _TOLERANCE and 0 <= top < bottom <= height + _TOLERANCE
        )
        if not (inside and math.isfinite(right + bottom) and max(size) < _MAX_COORDINATE):
            raise ValueError(
                f"{origin}: a box must be left, top, right, bottom inside of an image of {width} x "
                f"{height} pixels, got {left:g}, {top:g}, {right:g}, {bottom:g}"
            )
