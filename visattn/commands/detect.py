"""`visattn detect`: find objects in images, and draw what each query attended to."""

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.options.arguments import (
    CommandParser,
    add_images,
    add_resize_mode,
    real_number,
    whole_number,
)
from visattn.commands.options.dry_run import add_dry_run
from visattn.commands.options.folders import create_folder, encode_png
from visattn.commands.options.image_index import ImageIndex
from visattn.commands.options.image_run import ImageRun
from visattn.commands.options.models import add_weights, check_weights, load_trained_model
from visattn.commands.options.output_streams import print_row
from visattn.io.atomic import atomic_write

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    from visattn.data.images.reader import LoadedImage
    from visattn.models.detection.detr import DETR
    from visattn.pipelines.detection import DetectionResult

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
        "--out", type=Path, metavar="DIR", help="output folder for images, maps and JSON"
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
    check_weights(args)  # reports a missing run before torch is imported
    run = ImageRun(args, _FILES, "Detections")
    model, source = _load_detector(args)
    if args.dry_run:
        return run.dry_run(model, source)
    if args.out is not None:
        create_folder(args.out)
    return run.process(
        lambda batch, index: [
            _detect_image(model, name, image, args, index) for name, image in batch
        ]
    )


def _load_detector(args: argparse.Namespace) -> "tuple[DETR, str]":
    """Return the selected model on its device, and its file."""
    from visattn.models.detection.detr import DETR

    loaded = load_trained_model(args)
    if not isinstance(loaded.model, DETR):
        kind = type(loaded.model).__name__
        raise ValueError(f"{loaded.weights} holds a {kind}, which is not a detector")  # noqa: TRY004 (the file is wrong)
    count = loaded.model.num_decoder_layers
    if not -count <= args.layer < count:
        raise ValueError(
            f"--layer must be from 0 to {count - 1}, or -1 for the last of the {count} decoder "
            f"layers, got {args.layer}"
        )
    return loaded.model, loaded.weights


def _detect_image(
    model: "DETR",
    name: str,
    image: "LoadedImage",
    args: argparse.Namespace,
    index: ImageIndex | None,
) -> list[str]:
    """Detect objects, print a row and write the files; return reasons for missing files."""
    from visattn.pipelines.detection import detect
    from visattn.pipelines.draw_detections import detection_figure, detection_overlay

    [result] = detect(
        model,
        image,
        threshold=args.threshold,
        max_detections=args.max_detections,
        layer=args.layer,
        resize_mode=args.resize_mode,
    )
    text = count_classes([each.label for each in result.objects])
    print_row(name, text)
    if args.out is None:
        return []
    boxes = detection_overlay(image, result)
    queries = detection_figure(image, result, name=Path(image.name).name)
    try:
        atomic_write(args.out / f"{name}.png", encode_png(boxes))
        atomic_write(args.out / f"{name}.queries.png", encode_png(queries))
        atomic_write(args.out / f"{name}.json", _json_record(image, result))
        if index is not None:
            index.add(name, f"{name}.queries.png", text, [boxes])
    except OSError as error:
        return [f"{image.name}: {error}"]
    return []


def count_classes(labels: Sequence[str]) -> str:
    """Return how many objects of each class there are, the most frequent class first.

    Example:
        >>> count_classes(["dog", "cat", "cat"]), count_classes([])
        ('2 cat, 1 dog', 'nothing')
    """
    counts = Counter(labels)
    return ", ".join(f"{count} {label}" for label, count in counts.most_common()) or "nothing"


def _json_record(image: "LoadedImage", result: "DetectionResult") -> bytes:
    """Return detections, maps and points as JSON, complete enough to draw them again."""
    geometry = result.maps.geometry
    height, width = image.size
    record = {
        "image": image.name,
        "width": width,
        "height": height,
        "objects": [
            {"class": each.label, "score": each.score, "box": each.box, "query": each.query}
            for each in result.objects
        ],
        "site": result.maps.site,
        **result.maps.metadata,
        "maps": result.maps.values.tolist(),
        "points": None if result.points is None else result.points.tolist(),
        "geometry": None if geometry is None else geometry.to_dict(),
    }
    return json.dumps(record, allow_nan=False).encode() + b"\n"
