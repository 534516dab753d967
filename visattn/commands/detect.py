"""`visattn detect`: find objects in photos, and draw where the queries of the detector looked."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.arguments import Figures, Integers, Photos, ResizeModeOrNone
from visattn.commands.loop import (
    Command,
    LoopOptions,
    Made,
    encode_figure,
    run,
)
from visattn.commands.model import ModelOptions
from visattn.images.formats import encode_overlay

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from visattn.images.reader import LoadedImage
    from visattn.results.values import Detections


def detect(
    photos: Photos,
    *,
    model: ModelOptions = ModelOptions(),  # noqa: B008 (frozen)
    threshold: float = 0.5,
    max_detections: int = 100,
    layers: Integers = (-1,),
    resize_mode: ResizeModeOrNone = None,
    figures: Figures = "png",
    loop: LoopOptions = LoopOptions(Path("visattn-out/detect")),  # noqa: B008 (frozen)
) -> int:
    """Detect objects in photos, and show where the query of each object looked.

    Prints the number of objects per class. Writes NAME.png, the boxes on the photo;
    NAME.queries.png, the attention of each object's query; and NAME.json with classes, scores,
    boxes in pixels of the photo and maps. detect.csv has a row per object.

    Args:
        photos: files, folders, quoted patterns, zip and tar archives, URLs
        threshold: minimum score of an object, from 0 to 1
        max_detections: maximum number of objects per photo
        layers: decoder layers whose attention is drawn (averaged), from 0; -1 is the last
        resize_mode: fit a photo to the input size: center crop, change of aspect ratio, or padding
            (default: as in the training of the model)
        figures: format of the figures
    """
    from visattn.models.detr import DETR
    from visattn.pipelines.detection import detect as detect_objects

    network, made = model.load(DETR, "a detector", "detect")
    options = {"threshold": threshold, "max_detections": max_detections, "layers": layers}

    def infer(images: "Sequence[LoadedImage]") -> "Sequence[Detections]":
        return detect_objects(network, images, resize_mode=resize_mode, **options)

    settings = {**made, **options, "resize_mode": resize_mode}
    endings = (f"{{}}.queries.{figures}", "{}.png")
    command = Command("detect", "Detections", settings, infer, _draw, endings)
    return run(command, photos, loop, batch_size=1)


def _draw(image: "LoadedImage", result: "Detections", files: Sequence[str]) -> Made:
    """Return the objects and their maps, and the figures of boxes and queries."""
    from visattn.viz.detections import detection_figure, detection_overlay
    from visattn.viz.html.index_page import thumbnail

    boxes = detection_overlay(image, result)
    queries = encode_figure(detection_figure(image, result), files[0])
    record = {"image": image.name, **result.to_dict()}
    text = count_classes([each.label for each in result.objects])
    return Made(
        record,
        dict(zip(files, (queries, encode_overlay(boxes)), strict=True)),
        rows=[(text,)],
        table=[
            {
                "class": each["label"],
                "score": each["score"],
                **dict(zip(("left", "top", "right", "bottom"), each["box"], strict=True)),
                "query": each["query"],
            }
            for each in record["objects"]
        ],
        caption=text,
        thumbnail=thumbnail(boxes),
    )


def count_classes(labels: Sequence[str]) -> str:
    """Return how many objects of each class there are, the most frequent class first.

    Example:
        >>> count_classes(["dog", "cat", "cat"]), count_classes([])
        ('2 cat, 1 dog', 'nothing')
    """
    counts = Counter(labels)
    return ", ".join(f"{count} {label}" for label, count in counts.most_common()) or "nothing"
