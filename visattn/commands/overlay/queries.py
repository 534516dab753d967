"""`visattn overlay --query best`: a map for each query of a detector, with its box and class."""

import argparse
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.options.dry_run import describe_images, print_dry_run
from visattn.commands.options.folders import (
    check_no_overwrite,
    create_folder,
    encode_png,
    unique_names,
)
from visattn.commands.options.images import (
    count_on_interrupt,
    find_input_images,
    read_images,
    report_failures,
)
from visattn.commands.options.models import move_to_device
from visattn.commands.options.output_streams import print_row
from visattn.io.atomic import atomic_write

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    from visattn.pipelines.explain_queries import Queries
    from visattn.results.values import Detections

_SUFFIXES = (".queries.png", ".queries.json", ".queries.npz")


def query_selection(text: str) -> int | str | list[int]:
    """Return the value of `--query`.

    Args:
        text: An index, `best`, `best:N`, or indices with commas.

    Raises:
        argparse.ArgumentTypeError: If it is something else.

    Example:
        >>> query_selection("7"), query_selection("best:5"), query_selection("3,17")
        (7, 'best:5', [3, 17])
    """
    name, _, count = text.partition(":")
    if text == "best" or (name == "best" and count.isdecimal() and int(count) > 0):
        return text
    parts = text.rstrip(",").split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise argparse.ArgumentTypeError(
            f"must be an index, indices as in 3,17, best or best:N; got {text!r}"
        )
    numbers = [int(part) for part in parts]
    return numbers if "," in text else numbers[0]


def overlay_queries(args: argparse.Namespace) -> int:
    """Draw where the queries of a detector looked; return the exit code.

    Args:
        args: Options of `visattn overlay`.

    Raises:
        FileNotFoundError: If an image or the model does not exist.
        ValueError: If the model is no detector with queries, or an option does not fit.
        OSError: If the folder cannot be written.
    """
    skipped: list[str] = []
    names = unique_names(find_input_images(args.images, args.out, skipped))
    directory = _model_directory(args)
    files = [f"{name}{suffix}" for name in names.values() for suffix in _SUFFIXES]
    check_no_overwrite(args.out, files, names)
    if args.dry_run:
        reads = [describe_images([*names]), f"the detector in {directory}"]
        return print_dry_run(reads, args.out, files)
    from visattn.pipelines.explain_queries import explain_queries, load_detector
    from visattn.viz.detection.panel import query_figure

    model, processor = load_detector(directory)
    move_to_device(model, args.device)
    create_folder(args.out)
    done: list[str] = []
    with count_on_interrupt(done, len(names)):
        for path, image in read_images(names, skipped, strict=args.strict):
            [result] = explain_queries(
                model,
                [image],
                _selected(args.query),
                processor=processor,
                layer=args.layers[0] if args.layers else -1,
                heads=args.heads,
            )
            figure = query_figure(
                image,
                result,
                colormap=args.colormap,
                opacity=args.opacity,
                smooth=args.interpolation == "bilinear",
            )
            name = names[path]
            atomic_write(args.out / f"{name}.queries.png", encode_png(figure))
            _write_arrays(args.out, name, result, {"model": args.model, "image": str(path)})
            done.append(name)
    return report_failures(skipped, [], len(names))


def _selected(selection: str | list[int]) -> "Queries":
    """Return the selection as `explain_queries` takes it."""
    if not isinstance(selection, str):
        return selection
    count = selection.partition(":")[2]
    return int(count) if count else "best"


def _model_directory(args: argparse.Namespace) -> Path:
    """Return the directory of the detector."""
    kind, _, rest = args.model.partition(":")
    if kind != "hf":
        raise ValueError(
            f"--query draws detectors of Hugging Face, --model hf:DIRECTORY; got {args.model}"
        )
    if args.layers and len(args.layers) > 1:
        raise ValueError(f"--query draws one decoder layer, got --layers {args.layers}")
    return Path(rest).expanduser()


def _write_arrays(folder: Path, name: str, result: "Detections", entries: dict[str, Any]) -> None:
    """Write maps, points and metadata of one image, and print a row for each query."""
    import numpy as np

    maps, buffer = result.maps, io.BytesIO()
    values, boxes = maps.values.numpy(), np.array([each.box for each in result.objects], np.float32)
    if result.points is None:
        np.savez(buffer, maps=values, boxes=boxes)
    else:
        np.savez(buffer, maps=values, boxes=boxes, points=result.points.numpy())
    atomic_write(folder / f"{name}.queries.npz", buffer.getvalue())
    geometry = None if maps.geometry is None else maps.geometry.to_dict()
    record = {**entries, "site": maps.site, "geometry": geometry, "metadata": maps.metadata}
    content = json.dumps(record, indent=1, sort_keys=True, allow_nan=False)
    atomic_write(folder / f"{name}.queries.json", content.encode() + b"\n")
    for each in result.objects:
        corners = " ".join(f"{value:.0f}" for value in each.box)
        print_row(name, f"query {each.query}", each.label, f"{each.score:.3f}", corners)
