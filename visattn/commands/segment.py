"""`visattn segment`: segment images, and draw classes and attention gates on them."""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.options.arguments import CommandParser, add_images, add_resize_mode
from visattn.commands.options.dry_run import add_dry_run
from visattn.commands.options.folders import create_folder, encode_png
from visattn.commands.options.image_index import ImageIndex
from visattn.commands.options.image_run import ImageRun
from visattn.commands.options.models import add_weights, check_weights, load_trained_model
from visattn.commands.options.output_streams import print_row
from visattn.io.atomic import atomic_write

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    from visattn.data.images.reader import LoadedImage
    from visattn.models.segmentation.unet import UNet
    from visattn.pipelines.segmentation import Segmentation

_NO_WEIGHTS = """\
--weights is missing: segmentation needs a trained model. Train one:
  in a few minutes    visattn fit --config scenes_unet_gates
  then pass           --run FOLDER with its run directory, or visattn export --run FOLDER"""

_EPILOG = """\
Prints a line per image: its name, a tab, and the share of each class in percent. With --out it also
writes
  DIR/NAME.png           a figure: image, prediction, and attention gates if the model has them
  DIR/NAME.json          class names, shares and geometry
  DIR/masks/NAME.png     the class number of each pixel of the image; 255 outside of the crop
  DIR/overlays/NAME.png  the classes over the image
and for several images DIR/index.html, an index of all figures.
Unreadable images are skipped and reported at the end; the exit code is then 1."""

_FILES = ("{}.png", "{}.json", "masks/{}.png", "overlays/{}.png")
_BATCH_SIZE = 8


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = CommandParser(
        prog="visattn segment",
        description="Segment images with a trained model, and show where its gates open.",
        epilog=_EPILOG,
    )
    add_images(parser)
    add_weights(parser)
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="output folder for masks, overlays and figures"
    )
    add_resize_mode(parser, default="pad")
    add_dry_run(parser)
    return parser


def main(argv: Sequence[str]) -> int:
    """Segment images; return 0, or 1 if some could not be read or some files not be written.

    Raises:
        FileNotFoundError: If an image, a folder, the weights or the run do not exist.
        ValueError: If the weights are not a visattn segmentation model, the device is not
            available, an output file would overwrite an image, or an image cannot be read with
            `--strict`.
        OSError: If the output folder cannot be written.
    """
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.weights is None and args.run is None:
        parser.error(_NO_WEIGHTS)
    check_weights(args)  # reports a missing run before torch is imported
    run = ImageRun(args, _FILES, "Segmentation")
    model, source = _load_segmenter(args)
    if args.dry_run:
        return run.dry_run(model, source)
    if args.out is not None:
        for folder in (args.out, args.out / "masks", args.out / "overlays"):
            create_folder(folder)
    return run.process(
        lambda batch, index: _segment_images(model, args, batch, index), batch_size=_BATCH_SIZE
    )


def _load_segmenter(args: argparse.Namespace) -> "tuple[UNet, str]":
    """Return the selected model on its device, and its file."""
    from visattn.models.segmentation.unet import UNet

    loaded = load_trained_model(args)
    if not isinstance(loaded.model, UNet):
        kind = type(loaded.model).__name__
        raise ValueError(f"{loaded.weights} holds a {kind}, which is not a segmentation model")  # noqa: TRY004 (the file is wrong)
    return loaded.model, loaded.weights


def _segment_images(
    model: "UNet",
    args: argparse.Namespace,
    batch: "list[tuple[str, LoadedImage]]",
    index: ImageIndex | None,
) -> Iterator[list[str]]:
    """Segment images, print a row for each; yield the reasons for missing files of each."""
    from visattn.pipelines.segmentation import segment

    photos = [image for _, image in batch]
    results = segment(model, photos, resize_mode=args.resize_mode, batch_size=len(batch))
    for (name, image), result in zip(batch, results, strict=True):
        print_row(name, _shares_text(result))
        yield [] if args.out is None else _write(args.out, name, image, result, index)


def _shares_text(result: "Segmentation") -> str:
    return ", ".join(f"{name} {100 * share:.1f} %" for name, share in result.shares().items())


def _write(
    folder: Path,
    name: str,
    image: "LoadedImage",
    result: "Segmentation",
    index: ImageIndex | None,
) -> list[str]:
    """Write the files of an image; return reasons for missing files."""
    from visattn.pipelines.segmentation import segmentation_figure
    from visattn.viz.maps.segmentation import draw_labels

    drawn = draw_labels(image.pixels, result.labels, background=result.has_background)
    figure = segmentation_figure(image, result, title=Path(image.name).name)
    record = {
        "image": image.name,
        "class_names": list(result.class_names),
        "shares": result.shares(),
        "ignored": 255,
        "geometry": result.geometry.to_dict(),
    }
    try:
        atomic_write(folder / "masks" / f"{name}.png", encode_png(result.labels))
        atomic_write(folder / "overlays" / f"{name}.png", encode_png(drawn))
        atomic_write(folder / f"{name}.png", encode_png(figure))
        atomic_write(folder / f"{name}.json", json.dumps(record, allow_nan=False).encode() + b"\n")
        if index is not None:
            index.add(name, f"{name}.png", _shares_text(result), [drawn])
    except OSError as error:
        return [f"{image.name}: {error}"]
    return []
