"""Compare thresholds of boxes around Grad-CAM with the boxes of objects in COCO photos.

    python tools/box_thresholds.py --data COCO --weights mobilenetv2_100.safetensors

For each category of a photo that has classes of ImageNet: the box with the highest score of the
Grad-CAM of its most probable class, and its largest IoU with a box of that category.
"""

import argparse
from collections.abc import Iterator
from pathlib import Path

import timm
import torch
from safetensors.torch import load_file

from visattn.data.images.reader import read_image
from visattn.data.regions.dataset import read_annotated_images
from visattn.functional.boxes import box_iou
from visattn.pipelines.evaluate_maps import build_queries
from visattn.pipelines.explainer import Explainer
from visattn.recording.attention_map import AttentionMap

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


def main() -> None:
    """Print a row per threshold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="COCO folder or instances file")
    parser.add_argument("--weights", type=Path, required=True, help="of timm's mobilenetv2_100")
    args = parser.parse_args()
    pairs = list(maps_and_boxes(args.data, args.weights))
    print(f"{len(pairs)} maps\nthreshold  mean IoU  IoU >= 0.5  boxes per map")
    for threshold in THRESHOLDS:
        found = [heat.boxes(threshold) for heat, _ in pairs]
        overlaps = torch.tensor([
            float(box_iou(torch.tensor(each.boxes[0].box), boxes).max())
            for each, (_, boxes) in zip(found, pairs, strict=True)
        ])  # fmt: skip
        hits, count = float((overlaps >= 0.5).float().mean()), sum(map(len, found)) / len(found)
        print(f"{threshold:9}  {float(overlaps.mean()):8.3f}  {hits:10.3f}  {count:13.2f}")


def maps_and_boxes(data: Path, weights: Path) -> Iterator[tuple[AttentionMap, torch.Tensor]]:
    """Yield the Grad-CAM of each category of each photo, and the boxes of its objects."""
    model = timm.create_model("mobilenetv2_100", pad_type="same", num_classes=1000)
    model.load_state_dict(load_file(weights))
    model.pretrained_cfg.update(mean=(0.5,) * 3, std=(0.5,) * 3)
    explainer = Explainer(model.eval(), resize_mode="squash")
    queries, _ = build_queries(read_annotated_images(data), (), 1000, predicted=False)
    for query in queries:
        batch = explainer.prepare(read_image(query.image.path))
        with torch.no_grad():
            scores = explainer.analyze().scores(batch.inputs)[0]
        target = max(query.classes, key=lambda index: float(scores[index]))
        [heat] = explainer.map(batch, "gradcam", target, keep_empty=True)
        objects = [each for each in query.image.objects if each.category == query.category]
        if float(heat.values.max()) > 0:
            yield heat, torch.tensor([each.box for each in objects if each.box is not None])


if __name__ == "__main__":
    main()
