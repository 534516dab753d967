"""Small segmentation data sets on disk."""

import json
from pathlib import Path

import numpy as np
from PIL import Image


def write_instances(folder: Path, split: str, count: int) -> Path:
    """Write photos in `folder/split` and a COCO instances file with a cat and a dog on each."""
    images, annotations = [], []
    (folder / split).mkdir(parents=True, exist_ok=True)
    for index in range(count):
        pixels = np.full((40, 52, 3), 60, np.uint8)
        for category, x in ((3, 4), (7, 30)):
            y, right, bottom = 6 + index, x + 12, 26 + index
            pixels[y:bottom, x:right] = 30 * category
            annotations.append({
                "id": len(annotations) + 1, "image_id": index, "category_id": category,
                "bbox": [x, y, 12, 20], "iscrowd": 0,
                "segmentation": [[x, y, right, y, right, bottom, x, bottom]],
            })  # fmt: skip
        name = f"{index:012}.png"
        Image.fromarray(pixels).save(folder / split / name)
        images.append({"id": index, "file_name": name, "height": 40, "width": 52})
    categories = [{"id": 3, "name": "cat"}, {"id": 7, "name": "dog"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    file = folder / "annotations" / f"instances_{split}.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content))
    return file


def write_mask_folder(folder: Path, count: int, size: tuple[int, int] = (31, 47)) -> None:
    """Write photos in `folder/images` and masks with the numbers 1, 2 and 3 in `folder/masks`."""
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for index in range(count):
        numbers = np.full(size, 2, np.uint8)
        numbers[5:20, 3 + index : 20 + index] = 1
        numbers[20:22, 3:20] = 3
        Image.fromarray(np.stack([80 * numbers] * 3, -1)).save(folder / f"images/{index}.png")
        Image.fromarray(numbers).save(folder / f"masks/{index}.png")
