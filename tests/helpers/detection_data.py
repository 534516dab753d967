"""Small COCO instances files and detectors."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from visattn.models.base import SmallEncoder
from visattn.models.detr import DETR


def write_coco_instances(folder: Path, photos: int = 5) -> None:
    """Write `annotations/instances_{train,val}2017.json` with photos of red squares.

    The last photo of each split has no objects; the first has a crowd too.
    """
    (folder / "annotations").mkdir(parents=True, exist_ok=True)
    categories = [{"id": 3, "name": "square"}, {"id": 5, "name": "fence"}]
    for split in ("train2017", "val2017"):
        (folder / split).mkdir(parents=True, exist_ok=True)
        images, annotations = [], []
        for number in range(photos):
            pixels = np.full((40, 60, 3), 90, dtype=np.uint8)
            left = 5 + 4 * number
            if number < photos - 1:
                pixels[8:24, left : left + 18] = (255, 0, 0)
                annotations.append(rectangle(number, 3, (left, 8, 18, 16)))
            Image.fromarray(pixels).save(folder / split / f"{number}.png")
            images.append({"id": number, "file_name": f"{number}.png", "height": 40, "width": 60})
        annotations.append({**rectangle(0, 5, (40, 0, 20, 40)), "iscrowd": 1})
        content = {"images": images, "annotations": annotations, "categories": categories}
        file = folder / "annotations" / f"instances_{split}.json"
        file.write_text(json.dumps(content))


def rectangle(image: int, category: int, box: tuple[int, int, int, int]) -> dict[str, object]:
    """Return a COCO annotation of a filled rectangle: left, top, width, height."""
    x, y, width, height = box
    polygon = [x, y, x + width, y, x + width, y + height, x, y + height]
    return {
        "image_id": image,
        "category_id": category,
        "bbox": list(box),
        "segmentation": [polygon],
        "area": width * height,
    }


def small_detector() -> DETR:
    """Return an untrained detector whose boxes differ from each other."""
    torch.manual_seed(4)
    model = DETR(
        ("cat", "dog"),
        SmallEncoder((24, 40), channels=8),
        dim=16,
        num_queries=5,
        num_heads=2,
        num_encoder_layers=0,
        num_decoder_layers=2,
        mlp_ratio=4.0,
    )
    with torch.no_grad():
        heads: Any = model.heads
        heads.boxes[-1].weight.normal_()
        heads.classes.bias.zero_()
    return model.eval()
