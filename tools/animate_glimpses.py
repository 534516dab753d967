r"""Animate the scan paths of a recurrent attention model: one GIF of all images, or one for each.

    python tools/animate_glimpses.py IMAGE_OR_FOLDER... --weights M.safetensors --out all.gif
    python tools/animate_glimpses.py --digits data --num-distractors 4 --weights M.safetensors \
        --out DIR

With --digits, the images are MNIST test digits on canvases of the model's size. Their labels are
known, and wrong predictions are red. The script runs from a checkout.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.options import CommandParser

if TYPE_CHECKING:
    from visattn.images.reader import LoadedImage
    from visattn.models.glimpses.glimpse_model import GlimpseModel

ROOT = Path(__file__).resolve().parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Write the GIFs and return 0; a usage error is reported and exits with 2."""
    parser = _parser()
    args = parser.parse_args(argv)
    if bool(args.images) == bool(args.digits):
        parser.error("give either images or --digits, the folder that holds MNIST/raw")
    if str(ROOT) not in sys.path:  # a checkout need not be installed
        sys.path.insert(0, str(ROOT))
    try:
        for path in _animate(args):
            print(path)
    except (ValueError, OSError) as error:
        parser.error(str(error))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = CommandParser(
        prog="animate_glimpses.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add(
        "images",
        nargs="*",
        type=Path,
        metavar="IMAGE_OR_FOLDER",
        help="image files, or folders that are searched",
    )
    add("--weights", type=Path, required=True, metavar="FILE", help="an exported model")
    add("--out", type=Path, required=True, metavar="FILE_OR_DIR",
        help="FILE.gif: all images side by side; DIR: a GIF for each")  # fmt: skip
    add("--digits", metavar="DIR", help="folder that holds MNIST/raw")
    add("--num-distractors", type=int, default=0, metavar="N", help="distractors per canvas (0)")
    add("--count", type=int, default=12, metavar="N", help="maximum number of images (12)")
    add("--first", type=int, default=0, metavar="N", help="index of the first digit (0)")
    add("--columns", type=int, metavar="N", help="images per row of FILE.gif")
    add(
        "--side", type=int, default=170, metavar="PIXELS", help="size of an image in FILE.gif (170)"
    )
    add("--policy", choices=["greedy", "sampled", "random", "raster", "saliency"], default="greedy",
        help="policy that selects the locations (greedy)")  # fmt: skip
    add("--seed", type=int, default=0, help="random seed of initial locations and sampling (0)")
    add("--resize-mode", choices=["crop", "squash", "pad"], default="crop",
        help="how images are resized to the input size (crop)")  # fmt: skip
    return parser


def _animate(args: argparse.Namespace) -> list[Path]:
    """Write the GIFs and return their paths."""
    from visattn.io.atomic import atomic_write
    from visattn.models.glimpses.glimpse_model import GlimpseModel
    from visattn.models.saving.load import load
    from visattn.pipelines.scanpath import glimpses
    from visattn.viz.scanpaths.animation import glimpse_animation, glimpse_wall

    model = load(args.weights)
    if not isinstance(model, GlimpseModel):
        raise ValueError(  # noqa: TRY004 (the file is wrong, not an argument type)
            f"{args.weights} contains a {type(model).__name__}, not a glimpse model"
        )
    if min(args.count, args.side // 32, 1 if args.columns is None else args.columns) < 1:
        raise ValueError("--count and --columns must be at least 1, --side at least 32")
    images, truths = _digits(args, model) if args.digits else (_images(args), [])
    scans = glimpses(
        model, images, policy=args.policy, seed=args.seed, resize_mode=args.resize_mode
    )
    if args.out.suffix.lower() == ".gif" and not args.out.is_dir():
        wall = glimpse_wall(images, scans, truths=truths, columns=args.columns, side=args.side)
        atomic_write(args.out, wall)
        return [args.out]
    if args.out.suffix and not args.out.is_dir():
        raise ValueError(f"--out must be a .gif file or a folder, got {args.out}")
    args.out.mkdir(parents=True, exist_ok=True)
    paths = [args.out / f"{number:02}.gif" for number in range(1, len(scans) + 1)]
    for path, image, scan in zip(paths, images, scans, strict=True):
        atomic_write(path, glimpse_animation(image, scan))
    return paths


def _images(args: argparse.Namespace) -> "list[LoadedImage]":
    from visattn.images.reader import find_images, read_image

    return [read_image(path) for path in find_images(args.images)[: args.count]]


def _digits(
    args: argparse.Namespace, model: "GlimpseModel"
) -> "tuple[list[LoadedImage], list[str | None]]":
    """Return test digits on canvases of the model's size, and their labels."""
    from visattn.images.reader import LoadedImage
    from visattn.training.classification.data import ClutteredMNISTDataModule

    data = ClutteredMNISTDataModule(
        root=args.digits, canvas_size=model.img_size, num_distractors=args.num_distractors
    )
    dataset = data.open_dataset("test")
    numbers = list(range(args.first, min(args.first + args.count, len(dataset))))
    if not numbers or args.first < 0:
        raise ValueError(f"--first must be 0 to {len(dataset) - 1}, got {args.first}")
    canvases, labels = dataset[numbers][:2]
    pixels = canvases.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).contiguous().numpy()
    images = [
        LoadedImage(array, name=f"digit {number}")
        for number, array in zip(numbers, pixels, strict=True)
    ]
    return images, [data.data_info["class_names"][label] for label in labels.tolist()]


if __name__ == "__main__":
    sys.exit(main())
