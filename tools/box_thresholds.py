"""Compare thresholds of boxes around maps with the boxes of objects.

    python tools/box_thresholds.py --data COCO --weights mobilenetv2_100.safetensors
    python tools/box_thresholds.py --scenes 300

For each category of a COCO photo that has classes of ImageNet: the box with the highest score of
the Grad-CAM of its most probable class, and its largest IoU with a box of that category. On drawn
scenes: the same of each word of the bundled captioner that names the shape of one object.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load_file

from visattn.commands.options import CommandParser
from visattn.commands.score.evaluate_maps import build_queries
from visattn.data.regions.readers import read_annotated_images
from visattn.data.scenes.dataset import Scenes
from visattn.data.scenes.world import object_boxes
from visattn.functional.boxes import box_iou
from visattn.images.reader import read_image
from visattn.models.saving.load import load
from visattn.pipelines.captioning import caption
from visattn.pipelines.explainer import Explainer
from visattn.results.attention_map import AttentionMap

THRESHOLDS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


def main() -> None:
    """Print a row per threshold."""
    parser = CommandParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="COCO folder or instances file")
    parser.add_argument("--weights", type=Path, help="of timm's mobilenetv2_100")
    parser.add_argument("--scenes", type=int, help="number of drawn scenes, instead of photos")
    args = parser.parse_args()
    if args.scenes is None and None in (args.data, args.weights):
        parser.error("pass --data and --weights, or --scenes")
    source = maps_and_boxes(args.data, args.weights) if args.scenes is None else words(args.scenes)
    pairs = list(source)
    print(f"{len(pairs)} maps\nthreshold  mean IoU  IoU >= 0.5  boxes per map")
    for threshold in THRESHOLDS:
        result = [heat.boxes(threshold) for heat, _ in pairs]
        overlaps = torch.tensor([
            float(box_iou(torch.tensor(each.boxes[0].box), boxes).max())
            for each, (_, boxes) in zip(result, pairs, strict=True)
        ])  # fmt: skip
        hits, count = float((overlaps >= 0.5).float().mean()), sum(map(len, result)) / len(result)
        print(f"{threshold:9}  {float(overlaps.mean()):8.3f}  {hits:10.3f}  {count:13.2f}")


def maps_and_boxes(data: Path, weights: Path) -> Iterator[tuple[AttentionMap, torch.Tensor]]:
    """Yield the Grad-CAM of each category of each photo, and the boxes of its objects."""
    model: Any = timm.create_model("mobilenetv2_100", pad_type="same", num_classes=1000)
    model.load_state_dict(load_file(weights))
    model.pretrained_cfg.update(mean=(0.5,) * 3, std=(0.5,) * 3)
    explainer = Explainer(model.eval(), resize_mode="squash")
    queries, _ = build_queries(read_annotated_images(data), (), 1000, predicted=False)
    for query in queries:
        batch = explainer.prepare(read_image(query.image.path))
        with torch.no_grad():
            scores = explainer.analyze().scores(batch.inputs)[0]
        target = max(query.classes, key=lambda index: float(scores[index]))
        [heat] = explainer.map(batch, "gradcam", target)
        objects = [each for each in query.image.objects if each.category == query.category]
        if float(heat.values.max()) > 0:
            yield heat, torch.tensor([each.box for each in objects if each.box is not None])


def words(num_scenes: int) -> Iterator[tuple[AttentionMap, torch.Tensor]]:
    """Yield the maps of words that name the shape of one object, with its box."""
    model: Any = load("scenes-captioner")
    size = model.encoder.img_size[0]
    scenes = Scenes(num_scenes, size=size, split="test")
    images = [scenes.image(index).permute(1, 2, 0).numpy() for index in range(num_scenes)]
    for index, result in enumerate(caption(model, images)):
        world = scenes.world(index)
        boxes = torch.from_numpy(object_boxes(world, size)).float()
        for word, heat in zip(result.words, result.maps, strict=True):
            named = [number for number, each in enumerate(world.objects) if each.shape == word]
            if len(named) == 1:
                yield heat, boxes[named]


if __name__ == "__main__":
    main()
