"""`visattn segment`: segment images, and draw classes and attention gates on them."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.options.arguments import (
    CommandParser,
    add_bulk,
    add_images,
    add_resize_mode,
    output_path,
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
    from visattn.models.segmentation.unet import UNet
    from visattn.results.values import Segmentation

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
        "--out",
        type=output_path,
        metavar="DIR",
        help="output folder for masks, overlays and figures",
    )
    add_resize_mode(parser, default="pad")
    add_bulk(parser)
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
    if args.out is None:
        refuse_without(parser, args, ["overwrite"])
    check_weights(args)  # reports a missing run before torch is imported
    run = SegmentationRun(args)
    model, source = run.load()
    if args.dry_run:
        return run.dry_run(model, source)
    return run.process(batch_size=_BATCH_SIZE)


class SegmentationRun(ImageRun["Segmentation"]):
    """Images that are segmented, each with a mask, an overlay and a figure.

    Args:
        args: Options of `visattn segment`.

    Raises:
        FileNotFoundError: If an image does not exist.
        ValueError: If a file would overwrite an image.
    """

    title = "Segmentation"

    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__(args, _FILES)

    def load(self) -> "tuple[UNet, str]":
        """Load the selected model on its device; return it with its file.

        Raises:
            FileNotFoundError: If the file or run does not exist.
            ValueError: If it is not a segmentation model.
        """
        self.model, self.weights = _load_segmenter(self.args)
        return self.model, self.weights

    def settings(self) -> dict[str, Any]:
        """Return model and options."""
        return {"weights": weights_origin(self.weights), "resize_mode": self.args.resize_mode}

    def infer(self, images: "Sequence[LoadedImage]") -> "Sequence[Segmentation]":
        """Return the segmentations of images."""
        from visattn.pipelines.segmentation import segment

        mode = self.args.resize_mode
        return [*segment(self.model, images, resize_mode=mode, batch_size=len(images))]

    def record(self, image: "LoadedImage", result: "Segmentation") -> dict[str, Any]:
        """Return shares and geometry as values of JSON."""
        return {"image": image.name, **result.to_dict()}

    def row(self, record: Record) -> tuple[str]:
        """Return the share of each class in percent."""
        shares = record["shares"].items()
        return (", ".join(f"{name} {100 * share:.1f} %" for name, share in shares),)

    def write(
        self, name: str, image: "LoadedImage", result: "Segmentation"
    ) -> "Sequence[np.ndarray]":
        """Write mask, overlay and figure of an image; return the overlay."""
        from visattn.viz.maps.segmentation import draw_labels, segmentation_figure

        drawn = draw_labels(image.pixels, result.labels, background=result.has_background)
        figure = segmentation_figure(image, result, title=Path(image.name).name)
        atomic_write(self.out / "masks" / f"{name}.png", encode_png(result.labels))
        atomic_write(self.out / "overlays" / f"{name}.png", encode_png(drawn))
        atomic_write(self.out / f"{name}.png", encode_png(figure))
        return [drawn]


def _load_segmenter(args: argparse.Namespace) -> "tuple[UNet, str]":
    """Return the selected model on its device, and its file."""
    from visattn.models.segmentation.unet import UNet

    return load_trained_model(args, UNet, "a segmentation model")
