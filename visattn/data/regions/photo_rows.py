"""Images with annotated objects from the rows of tables."""

from typing import Any, Literal

from visattn.data.photo_tables import PhotoTable
from visattn.data.regions.annotations import AnnotatedImage, AnnotatedObject
from visattn.data.regions.coco_instances import check_clipped, parse_box
from visattn.images.reader import read_size
from visattn.io.safe_text import short_repr

BoxFormat = Literal["xywh", "xyxy"]
DETECTION_COLUMNS = {
    "image": ("image", "img", "jpg", "png"),
    "boxes": ("objects.bbox", "objects.boxes", "objects.box", "boxes", "bboxes", "bbox"),
    "categories": (
        "objects.category", "objects.categories", "objects.category_id", "objects.label",
        "categories", "category", "labels", "label",
    ),
    "id?": ("image_id", "id", "filename"),
    "width?": ("width",),
    "height?": ("height",),
    "crowds?": ("objects.iscrowd", "objects.is_crowd", "iscrowd"),
    "areas?": ("objects.area", "areas"),
}  # fmt: skip
"""Usual names of columns; `objects` holds a list of structs, or a struct of lists."""


def annotated_rows(table: PhotoTable, box_format: BoxFormat) -> list[AnnotatedImage]:
    """Return the photos of a table with their objects.

    Args:
        table: With the columns `boxes` and `categories`, a list of as many in each row; perhaps
            `id`, `width`, `height`, `crowds` and `areas`.
        box_format: `xywh` or `xyxy`.

    Raises:
        ValueError: If boxes and categories differ in number, or more than 1 % of the boxes exceed
            their photos, as those of another format do; the message names the row.
    """
    cells = {role: table.values(role) for role in table.columns if role not in ("image", "id")}
    faults: dict[str, str] = {}
    images: list[AnnotatedImage] = []
    total = 0
    for number, (photo, name) in enumerate(zip(table, table.ids(), strict=True)):
        row = {role: values[number] for role, values in cells.items()}
        if "width" in row and "height" in row:
            size = int(row["height"]), int(row["width"])
        else:
            size, _ = read_size(photo)
        boxes, kinds = (row[role] or [] for role in ("boxes", "categories"))
        if not isinstance(boxes, list) or not isinstance(kinds, list) or len(boxes) != len(kinds):
            raise ValueError(
                f"{photo.address}: there must be a category for each box, got {short_repr(boxes)} "
                f"and {short_repr(kinds)}"
            )
        total += len(boxes)
        objects: list[AnnotatedObject] = []
        for index, (box, kind) in enumerate(zip(boxes, table.names("categories", kinds),
                                                strict=True)):  # fmt: skip
            place = f"{photo.address}, box {index}"
            corners, fault = parse_box(_corners(box, box_format), place, size)
            if fault:
                faults[place] = fault
            crowd = bool((row.get("crowds") or [0] * len(boxes))[index])
            area = (row.get("areas") or [None] * len(boxes))[index]
            objects.append(
                AnnotatedObject(kind, None, corners, crowd, None if area is None else float(area))
            )
        images.append(AnnotatedImage(name, photo, size, tuple(objects)))
    check_clipped(faults, total)
    return images


def _corners(box: Any, box_format: BoxFormat) -> Any:
    """Return left, top, width and height."""
    if box_format == "xywh" or not isinstance(box, list) or len(box) != 4:
        return box
    left, top, right, bottom = box
    return [left, top, right - left, bottom - top]
