"""Options of `visattn overlay` for a pixel, region, box or query of a dense model."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.options.arguments import (
    whole_number,
)
from visattn.commands.options.provenance import file_digest

if TYPE_CHECKING:  # torch is imported when the command runs, not for its help
    from visattn.attribution.dense_targets import DenseTarget

PREDICTED, BEST = "predicted", "best"
_OPTIONS = ("pixel", "region", "box", "query")


def add_dense_target(parser: argparse.ArgumentParser) -> None:
    """Add the options that select a pixel, region, box or query; at most one is used."""
    group = parser.add_argument_group("segmentation and detection models")
    group.add_argument(
        "--pixel",
        type=_numbers(2),
        metavar="X,Y",
        help="explain --class at a pixel of the photo, for segmentation models",
    )
    group.add_argument(
        "--region",
        metavar="FILE",
        help="explain --class on a region: an image of the size of the photo, not black in the "
        f"region; or {PREDICTED}: the region that is predicted as the class",
    )
    group.add_argument(
        "--box",
        type=_box,
        metavar="L,T,R,B",
        help="explain the detections of --class at a box: left, top, right, bottom in pixels of "
        f"the photo; or {BEST}: the box with the highest score",
    )
    group.add_argument(
        "--query",
        type=whole_number(0, 1_000_000),
        metavar="I",
        help="explain --class of a query of a DETR model, by its index from 0 (visattn detect "
        "draws where queries looked)",
    )
    group.add_argument(
        "--part",
        choices=("score", "left", "top", "right", "bottom"),
        default="score",
        help="with --box and --query: explain the score, or a side of the box (default: score)",
    )


def dense_target(args: argparse.Namespace) -> "DenseTarget | None":
    """Return the target that the options select; None for a class of the whole photo.

    Args:
        args: Options of `visattn overlay`.

    Raises:
        FileNotFoundError: If the mask does not exist.
        ValueError: If several targets are selected, the box is empty, or a region has no class.
    """
    chosen = [name for name in _OPTIONS if getattr(args, name) is not None]
    if not chosen:
        if args.part != "score":
            raise ValueError(f"--part {args.part} needs --box or --query")
        return None
    if len(chosen) > 1:
        raise ValueError(f"--{chosen[0]} and --{chosen[1]} exclude each other: use one of them")
    from visattn.attribution.dense_targets import (
        BoxTarget,
        PixelTarget,
        QueryTarget,
        RegionTarget,
    )

    name = args.target
    label = int(name) if name is not None and name.isdecimal() else name
    if args.pixel is not None:
        return PixelTarget(label, *args.pixel)
    if args.box is not None:
        return BoxTarget(None if args.box == BEST else args.box, label, args.part)
    if args.query is not None:
        return QueryTarget(args.query, label, args.part)
    if args.region == PREDICTED:
        if label is None:
            raise ValueError(f"--region {PREDICTED} needs the class, --class NAME")
        return RegionTarget(label)
    return RegionTarget(label, _read_mask(Path(args.region)))


def check_one_photo(args: argparse.Namespace, count: int) -> None:
    """Refuse coordinates for several photos.

    Raises:
        ValueError: If there are several.
    """
    own = args.box is not None and args.box != BEST
    mask = args.region is not None and args.region != PREDICTED
    if count > 1 and (args.pixel is not None or own or mask or args.query is not None):
        raise ValueError(
            f"a pixel, box, mask or query belongs to one photo, got {count} photos; run the "
            f"command for each of them, or use --region {PREDICTED} or --box {BEST}"
        )


def dense_record(args: argparse.Namespace) -> dict[str, object]:
    """Return the selected target as plain values, by which a finished map is recognized.

    Args:
        args: Options of `visattn overlay`.
    """
    plain: dict[str, object] = {}
    for name in _OPTIONS:
        if (value := getattr(args, name)) is not None:
            plain[name] = list(value) if isinstance(value, tuple) else value
    if args.region not in (None, PREDICTED):
        plain["region_sha256"] = file_digest(Path(args.region))
    return {**plain, "part": args.part} if plain else {}


def _read_mask(file: Path) -> object:
    from visattn.images.reader import read_image

    if not file.is_file():
        raise FileNotFoundError(f"--region {file} does not exist; give an image, or {PREDICTED}")
    return read_image(file).pixels.any(-1)


def _numbers(count: int) -> Callable[[str], tuple[float, ...]]:
    def parse(text: str) -> tuple[float, ...]:
        try:
            numbers = tuple(float(part) for part in text.split(","))
        except ValueError:
            numbers = ()
        if len(numbers) != count or not all(abs(number) < 1e9 for number in numbers):
            raise argparse.ArgumentTypeError(
                f"must be {count} numbers with commas between them, such as "
                f"{','.join(['120', '80', '300', '240'][:count])}; got {text!r}"
            )
        return numbers

    return parse


def _box(text: str) -> str | tuple[float, ...]:
    return text if text == BEST else _numbers(4)(text)
