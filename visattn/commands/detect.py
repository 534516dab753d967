"""`visattn detect`: find objects in images, and draw what each query attended to."""

import argparse
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.options.arguments import (
    CommandParser,
    add_bulk,
    add_images,
    add_resize_mode,
    output_path,
    real_number,
    whole_number,
)
from visattn.commands.options.dry_run import add_dry_run
from visattn.commands.options.folders import encode_png
from visattn.commands.options.image_run import ImageRun, Record
from visattn.commands.options.models import add_weights, check_weights, load_trained_model
from visattn.commands.options.modes import refuse_without
from visattn.commands.options.provenance import weights_origin
from visattn.io.atomic import atomic_write

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    import numpy as np

    from visattn.images.reader import LoadedImage
    from visattn.models.detection.detr import DETR
    from visattn.results.values import Detections

_NO_WEIGHTS = """\
--weights is missing: detection needs a trained model. Train one:
  visattn fit --config configs/scenes_detr.yaml
then pass --run FOLDER with its run directory, or visattn export --run FOLDER"""

_EPILOG = """\
Prints a line per image: its name, a tab, and how many objects of each class it found. With --out
it also writes
  DIR/NAME.png          the image with boxes, classes and scores
  DIR/NAME.queries.png  for each object the cross-attention of its query, and the sampled points
  DIR/NAME.json         boxes (left, top, right, bottom), classes and scores, in pixels of the
                        image; the maps, with their geometry; and the sampled points
and for several images DIR/index.html, an index of all files.
Unreadable images are skipped and reported at the end; the exit code is then 1."""

_FILES = ("{}.png", "{}.queries.png", "{}.json")


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = CommandParser(
        prog="visattn detect",
        description="Find objects in images, and show what each query attended to.",
        epilog=_EPILOG,
    )
    add_images(parser)
    add_weights(parser)
    parser.add_argument(
        "--out", type=output_path, metavar="DIR", help="output folder for images, maps and JSON"
    )
    parser.add_argument(
        "--threshold",
        type=real_number(0, 1),
        default=0.5,
        metavar="P",
        help="smallest score of an object, from 0 to 1 (default: 0.5)",
    )
    parser.add_argument(
        "--max-detections",
        type=whole_number(1, 10_000),
        default=100,
        metavar="N",
        help="largest number of objects per image (default: 100)",
    )
    parser.add_argument(
        "--layer",
        type=whole_number(-99, 99),
        default=-1,
        metavar="N",
        help="decoder layer whose attention is drawn, from 0; -1 for the last (default: -1)",
    )
    add_resize_mode(parser, default="pad")
    add_bulk(parser)
    add_dry_run(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Detect objects; return 0, or 1 if some could not be read or some files not be written.

    Raises:
        FileNotFoundError: If an image, a folder, the weights or the run do not exist.
        ValueError: If the weights are not a visattn detector, the device is not available, there
            is no such layer, an output file would overwrite an image, or an image cannot be read
            with `--strict`.
        OSError: If the output folder cannot be written.
    """
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.weights is None and args.run is None:
        parser.error(_NO_WEIGHTS)
    if args.out is None:
        refuse_without(parser, args, ["layer", "overwrite"])
    check_weights(args)  # reports a missing run before torch is imported
    run = DetectionRun(args)
    model, source = run.load()
    if args.dry_run:
        return run.dry_run(model, source)
    return run.process()


class DetectionRun(ImageRun["Detections"]):
    """Images in which objects are found, each with boxes and the attention of queries.

    Args:
        args: Options of `visattn detect`.

    Raises:
        FileNotFoundError: If an image does not exist.
        ValueError: If a file would overwrite an image.
    """

    title = "Detections"
    page = "{}.queries.png"

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args, _FILES)

    def load(self) -> "tuple[DETR, str]":
        """Load the selected model on its device; return it with its file.

        Raises:
            FileNotFoundError: If the file or run does not exist.
            ValueError: If it is not a detector, or has no such layer.
        """
        self.model, self.weights = _load_detector(self.args)
        return self.model, self.weights

    def settings(self) -> dict[str, Any]:
        """Return model and options."""
        names = ("threshold", "max_detections", "layer", "resize_mode")
        options = {name: getattr(self.args, name) for name in names}
        return {"weights": weights_origin(self.weights), **options}

    def infer(self, images: "Sequence[LoadedImage]") -> "Sequence[Detections]":
        """Return the objects in images."""
        from visattn.pipelines.detection import detect

        return detect(
            self.model,
            images,
            threshold=self.args.threshold,
            max_detections=self.args.max_detections,
            layer=self.args.layer,
            resize_mode=self.args.resize_mode,
        )

    def record(self, image: "LoadedImage", result: "Detections") -> dict[str, Any]:
        """Return the objects and their maps as values of JSON."""
        return {"image": image.name, **result.to_dict()}

    def row(self, record: Record) -> tuple[str]:
        """Return how many objects of each class there are."""
        return (count_classes([each["class"] for each in record["objects"]]),)

    def write(
        self, name: str, image: "LoadedImage", result: "Detections"
    ) -> "Sequence[np.ndarray]":
        """Write the figures of an image; return the one with boxes."""
        from visattn.viz.detection.panel import detection_figure, detection_overlay

        boxes = detection_overlay(image, result)
        queries = detection_figure(image, result, name=Path(image.name).name)
        atomic_write(self.out / f"{name}.png", encode_png(boxes))
        atomic_write(self.out / f"{name}.queries.png", encode_png(queries))
        return [boxes]


def _load_detector(args: argparse.Namespace) -> "tuple[DETR, str]":
    """Return the selected model on its device, and its file."""
    from visattn.models.detection.detr import DETR

    model, weights = load_trained_model(args, DETR, "a detector")
    count = model.num_decoder_layers
    if not -count <= args.layer < count:
        raise ValueError(
            f"--layer must be from 0 to {count - 1}, or -1 for the last of the {count} decoder "
            f"layers, got {args.layer}"
        )
    return model, weights


def count_classes(labels: Sequence[str]) -> str:
    """Return how many objects of each class there are, the most frequent class first.

    Example:
        >>> count_classes(["dog", "cat", "cat"]), count_classes([])
        ('2 cat, 1 dog', 'nothing')
    """
    counts = Counter(labels)
    return ", ".join(f"{count} {label}" for label, count in counts.most_common()) or "nothing"
