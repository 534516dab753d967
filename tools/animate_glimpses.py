"""Let the eyes of a glimpse model move, from a checkout: one GIF of many images, or one for each.

    python tools/animate_glimpses.py IMAGE_OR_FOLDER... --weights M.safetensors --out all.gif
    python tools/animate_glimpses.py --digits data --pieces 4 --weights M.safetensors --out DIR

With --digits, the images are test digits of MNIST on canvases of the model's size, and it is
known what they show: wrong answers are red.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from visattn.data.images.reader import LoadedImage
    from visattn.models.ram.ram import RecurrentAttentionModel

ROOT = Path(__file__).resolve().parents[1]


def main(argv: Sequence[str] | None = None) -> int:
    """Write what is asked for; return 0. A mistake in it ends with a sentence and 2."""
    options = _parser()
    asked = options.parse_args(argv)
    if bool(asked.images) == bool(asked.digits):
        options.error("give either images or --digits, the folder that holds MNIST/raw")
    if str(ROOT) not in sys.path:  # a checkout need not be installed
        sys.path.insert(0, str(ROOT))
    try:
        for path in _animate(asked):
            print(path)
    except (ValueError, OSError) as error:
        options.error(str(error))
    return 0


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="animate_glimpses.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("images", nargs="*", type=Path, metavar="IMAGE_OR_FOLDER", help="folders are searched")
    add("--weights", type=Path, required=True, metavar="FILE", help="a glimpse model")
    add("--out", type=Path, required=True, metavar="FILE_OR_DIR",
        help="FILE.gif: all images side by side; DIR: a GIF for each")  # fmt: skip
    add("--digits", metavar="DIR", help="folder that holds MNIST/raw")
    add("--pieces", type=int, default=0, help="clutter beside a digit (0)")
    add("--count", type=int, default=12, help="most images (12)")
    add("--first", type=int, default=0, help="number of the first digit, from 0 (0)")
    add("--columns", type=int, help="images side by side")
    add("--side", type=int, default=170, help="room for an image in FILE.gif, in pixels (170)")
    add("--policy", choices=["mean", "sampled", "random", "raster", "saliency"], default="mean",
        help="who leads the eye (mean)")  # fmt: skip
    add("--seed", type=int, default=0, help="of a random start and of what is sampled (0)")
    add("--fit", choices=["crop", "squash", "pad"], default="crop",
        help="how a long image comes into the network (crop)")  # fmt: skip
    return made


def _animate(asked: argparse.Namespace) -> list[Path]:
    """Write the files that are asked for and return their paths."""
    from visattn.models.ram.ram import RecurrentAttentionModel
    from visattn.pipelines.draw_scanpaths import glimpse_animation, glimpse_wall
    from visattn.pipelines.save_load import load
    from visattn.pipelines.scanpath import glimpses

    model = load(asked.weights)
    if not isinstance(model, RecurrentAttentionModel):
        raise ValueError(f"{asked.weights} holds a {type(model).__name__}, which takes no glimpses")  # noqa: TRY004 (a file's fault)
    if min(asked.count, asked.side // 32, 1 if asked.columns is None else asked.columns) < 1:
        raise ValueError("--count and --columns must be at least 1, --side at least 32")
    images, truths = _digits(asked, model) if asked.digits else (_images(asked), [])
    scans = glimpses(model, images, policy=asked.policy, seed=asked.seed, fit=asked.fit)
    if asked.out.suffix.lower() == ".gif" and not asked.out.is_dir():
        wall = glimpse_wall(images, scans, truths=truths, columns=asked.columns, side=asked.side)
        asked.out.write_bytes(wall)
        return [asked.out]
    if asked.out.suffix and not asked.out.is_dir():
        raise ValueError(f"--out must be a .gif file or a folder, got {asked.out}")
    asked.out.mkdir(parents=True, exist_ok=True)
    paths = [asked.out / f"{number:02}.gif" for number in range(1, len(scans) + 1)]
    for path, image, scan in zip(paths, images, scans, strict=True):
        path.write_bytes(glimpse_animation(image, scan))
    return paths


def _images(asked: argparse.Namespace) -> "list[LoadedImage]":
    from visattn.data.images.reader import find_images, read_image

    return [read_image(path) for path in find_images(asked.images)[: asked.count]]


def _digits(
    asked: argparse.Namespace, model: "RecurrentAttentionModel"
) -> "tuple[list[LoadedImage], list[str | None]]":
    """Return test digits on canvases of the model's size, and which they are."""
    from visattn.data.images.reader import LoadedImage
    from visattn.training.data.cluttered_mnist import ClutteredMNISTDataModule

    data = ClutteredMNISTDataModule(root=asked.digits, canvas=model.size, pieces=asked.pieces)
    laid = data.laid("test")
    numbers = list(range(asked.first, min(asked.first + asked.count, len(laid))))
    if not numbers or asked.first < 0:
        raise ValueError(f"--first must be 0 to {len(laid) - 1}, got {asked.first}")
    canvases, labels = laid[numbers]
    pixels = canvases.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).contiguous().numpy()
    images = [
        LoadedImage(one, name=f"digit {number}")
        for number, one in zip(numbers, pixels, strict=True)
    ]
    return images, [data.classes[label] for label in labels.tolist()]


if __name__ == "__main__":
    sys.exit(main())
