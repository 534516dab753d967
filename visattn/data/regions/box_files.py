"""Boxes of attention maps as COCO JSON."""

import unicodedata
from collections.abc import Iterable
from typing import Any

from visattn.results.map_boxes import MapBoxes

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
        >>> boxes = MapBoxes((MapBox((1.0, 0.0, 4.0, 2.0), 0.75, 0.5, "dog."),), 0.5, True, (3, 5))
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
        rule = {"threshold": boxes.threshold, "relative": boxes.relative}
        rules += [] if rule in rules else [rule]
        for each in boxes:
            left, top, right, bottom = each.box
            name = category_name(each.label)
            annotations.append({
                "id": len(annotations) + 1,
                "image_id": number,
                "category_id": categories.setdefault(name, len(categories) + 1),
                "bbox": [left, top, right - left, bottom - top],
                "area": (right - left) * (bottom - top),
                "iscrowd": 0,
                "score": each.score,
                "peak": each.peak,
                "text": each.label,
                "index": each.map_index,
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
