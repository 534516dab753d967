"""Small segmentation data sets on disk."""

import json
from pathlib import Path

import numpy as np
from PIL import Image


def write_coco(
    folder: Path,
    split: str,
    photos: list[np.ndarray],
    objects: list[tuple[int, str, tuple[int, int, int, int]]],
    categories: dict[str, int],
) -> Path:
    """Write photos in `folder/split` and a COCO instances file about filled rectangles on them.

    Objects are the number of their photo, their category, and left, top, width and height.
    """
    (folder / split).mkdir(parents=True, exist_ok=True)
    images, annotations = [], []
    for number, pixels in enumerate(photos):
        height, width, _ = pixels.shape
        Image.fromarray(pixels).save(folder / split / f"{number}.png")
        name = f"{number}.png"
        images.append({"id": number, "file_name": name, "height": height, "width": width})
    for number, category, (x, y, width, height) in objects:
        right, bottom = x + width, y + height
        annotations.append({
            "image_id": number, "category_id": categories[category],
            "bbox": [x, y, width, height],
            "segmentation": [[x, y, right, y, right, bottom, x, bottom]],
        })  # fmt: skip
    named = [{"id": number, "name": name} for name, number in categories.items()]
    content = {"images": images, "annotations": annotations, "categories": named}
    file = folder / "annotations" / f"instances_{split}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content))
    return file


def write_instances(folder: Path, split: str, count: int) -> Path:
    """Write photos with a cat and a dog each, in the format of COCO."""
    categories = {"cat": 3, "dog": 7}
    photos = [np.full((40, 52, 3), 60, np.uint8) for _ in range(count)]
    objects = []
    for number, pixels in enumerate(photos):
        for (name, category), x in zip(categories.items(), (4, 30), strict=True):
            objects.append((number, name, (x, 6 + number, 12, 20)))
            pixels[6 + number : 26 + number, x : x + 12] = 30 * category
    return write_coco(folder, split, photos, objects, categories)


def write_mask_folder(folder: Path) -> None:
    """Write 5 photos in `folder/images` and masks with the numbers 1, 2 and 3 in `folder/masks`."""
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for index in range(5):
        numbers = np.full((31, 47), 2, np.uint8)
        numbers[5:20, 3 + index : 20 + index] = 1
        numbers[20:22, 3:20] = 3
        Image.fromarray(np.stack([80 * numbers] * 3, -1)).save(folder / f"images/{index}.png")
        Image.fromarray(numbers).save(folder / f"masks/{index}.png")
