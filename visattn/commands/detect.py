"""`visattn detect`: find objects in images, and draw what each query attended to."""

import argparse
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from visattn.commands.image_options import add_images, resolve_images
from visattn.commands.index import Row, card_image
from visattn.commands.model_job import ModelJob
from visattn.commands.model_option import add_model, resolve_model
from visattn.commands.options import (
    BULK,
    PHOTO_FIGURES,
    TARGET,
    CommandParser,
    add_options,
    add_resize_mode,
    real_number,
    refuse_without,
    whole_number,
)
from visattn.commands.records import Part, Record
from visattn.commands.run import run_job
from visattn.images.encoding import encode_overlay
from visattn.results.cards import Card

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    from visattn.images.reader import LoadedImage
    from visattn.results.values import Detections

_NO_MODEL = """\
--model is missing: detection needs a trained model. Train one:
  visattn fit --config configs/scenes_detr.yaml
then pass --model FOLDER with its run directory, or visattn export --run FOLDER."""

_EPILOG = """\
Prints a row per image: its name, a tab, and how many objects of each class it found. With --out
it also writes
  DIR/NAME.png          the image with boxes, classes and scores
  DIR/NAME.queries.png  for each object the cross-attention of its query, and the sampled points
  DIR/NAME.json         boxes (left, top, right, bottom), classes and scores, in pixels of the
                        image; the maps, with their geometry; and the sampled points
For several images DIR/index.html is an index of all files; DIR/detect.csv lists all objects.
Unreadable images are skipped and reported at the end; the exit code is then 1."""


_EXAMPLES = ("visattn detect photos --model runs/scenes_detr/1 --threshold 0.7 --out objects",)


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = CommandParser(
        examples=_EXAMPLES,
        prog="visattn detect",
        description="Find objects in images, and show what each query attended to.",
        epilog=_EPILOG,
    )
    add_images(parser)
    add_model(parser)
    add_options(parser, "out", out={"help": "output folder for images, maps and JSON"})
    parser.group(TARGET).add_argument(
        "--threshold",
        type=real_number(0, 1),
        default=0.5,
        metavar="P",
        help="smallest score of an object, from 0 to 1 (default: 0.5)",
    )
    parser.group(TARGET).add_argument(
        "--max-detections",
        type=whole_number(1, 10_000),
        default=100,
        metavar="N",
        help="largest number of objects per image (default: 100)",
    )
    parser.group(TARGET).add_argument(
        "--layer",
        type=whole_number(-99, 99),
        default=-1,
        metavar="N",
        help="decoder layer whose attention is drawn, from 0; -1 for the last (default: -1)",
    )
    add_resize_mode(parser, "pad")
    add_options(parser, *PHOTO_FIGURES, *BULK, "dry-run")
    return parser


def main(argv: Sequence[str]) -> int:
    """Detect objects; return 0, or 1 if some could not be read or some files not be written."""
    parser = build_parser()
    args = parser.parse_args(argv)
    resolve_images(parser, args)
    resolve_model(parser, args, _NO_MODEL)
    if args.out is None:
        refuse_without(parser, args, ["layer", "overwrite", *PHOTO_FIGURES])
    return run_job(DetectionJob, args)


class DetectionJob(ModelJob["Detections"]):
    """Detection of objects in images, each with boxes and the attention of queries."""

    command = "detect"
    title = "Detections"
    work = "detecting in"
    kind = "visattn.models.detr:DETR"
    noun = "a detector"
    options = ("threshold", "max_detections", "layer", "resize_mode")

    kinds = ("{}.png", "{}.queries.png")

    @classmethod
    def check_model(cls, model: Any, weights: str, args: argparse.Namespace) -> None:
        """Refuse a layer that the decoder lacks.

        Raises:
            ValueError: With the layers that there are.
        """
        del weights
        count = model.num_decoder_layers
        layer = args.layer
        if not -count <= layer < count:
            raise ValueError(
                f"--layer must be from 0 to {count - 1}, or -1 for the last of the {count} decoder "
                f"layers, got {layer}"
            )

    def infer(self, images: "Sequence[LoadedImage]") -> "Sequence[Detections]":
        """Return the objects in images."""
        from visattn.pipelines.detection import detect

        args = self.args
        return detect(
            self.model,
            images,
            threshold=args.threshold,
            max_detections=args.max_detections,
            layer=args.layer,
            resize_mode=args.resize_mode,
        )

    def parts(self, name: str, image: "LoadedImage", result: "Detections") -> Iterable[Part]:
        """Return the objects and their maps, and the figures of boxes and queries."""
        from visattn.viz.detections import detection_figure, detection_overlay
        from visattn.viz.figures import png

        record = {"image": image.name, **result.to_dict()}
        if self.out is None:
            return [Part(name, record)]
        boxes = detection_overlay(image, result)
        queries = detection_figure(
            image,
            result,
            crop=self.args.cropped,
            width=self.args.width,
        )
        panel = f"{name}.queries.png"
        files = {f"{name}.png": encode_overlay(boxes), panel: png(queries)}
        text = count_classes([detection.label for detection in result.objects])
        card = Card(name, panel, text, card_image(boxes))
        return [Part(name, record, files, card)]

    def rows(self, record: Record) -> Iterable[tuple[str]]:
        """Return how many objects of each class there are."""
        return [(count_classes([detection["label"] for detection in record["objects"]]),)]

    @staticmethod
    def table(record: Record) -> Iterable[Row]:
        """Yield class, score, box and query of each object."""
        for detection in record["objects"]:
            left, top, right, bottom = detection["box"]
            yield {
                "class": detection["label"],
                "score": detection["score"],
                "left": left,
                "top": top,
                "right": right,
                "bottom": bottom,
                "query": detection["query"],
            }


def count_classes(labels: Sequence[str]) -> str:
    """Return how many objects of each class there are, the most frequent class first.

    Example:
        >>> count_classes(["dog", "cat", "cat"]), count_classes([])
        ('2 cat, 1 dog', 'nothing')
    """
    counts = Counter(labels)
    return ", ".join(f"{count} {label}" for label, count in counts.most_common()) or "nothing"
