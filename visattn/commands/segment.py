"""`visattn segment`: segment images, and draw classes and attention gates on them."""

import argparse
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from visattn.commands.image_options import add_images, resolve_images
from visattn.commands.index import Row, card_image
from visattn.commands.model_job import ModelJob
from visattn.commands.model_option import add_model, resolve_model
from visattn.commands.options import (
    BULK,
    PHOTO_FIGURES,
    CommandParser,
    add_options,
    add_resize_mode,
    refuse_without,
)
from visattn.commands.records import Part, Record
from visattn.commands.run import run_job
from visattn.images.encoding import encode_overlay, encode_png
from visattn.results.cards import Card

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    from visattn.images.reader import LoadedImage
    from visattn.results.values import Segmentation

_NO_MODEL = """\
--model is missing: segmentation needs a trained model. Train one:
  in a few minutes    visattn fit --config scenes_unet
  then pass           --model FOLDER with its run directory, or visattn export --run FOLDER"""

_EPILOG = """\
Prints a row per image: its name, a tab, and the share of each class in percent. With --out it also
writes
  DIR/NAME.png           a figure: image, prediction, and attention gates if the model has them
  DIR/NAME.json          class names, shares and geometry
  DIR/masks/NAME.png     the class number of each pixel of the image; 255 outside of the crop
  DIR/overlays/NAME.png  the classes over the image
and for several images DIR/index.html, an index of all figures.
Unreadable images are skipped and reported at the end; the exit code is then 1."""

_BATCH_SIZE = 8


_EXAMPLES = (
    "visattn segment photos --model runs/scenes_unet/1 --out segments",
    "visattn segment photos --model unet.safetensors --out segments",
)


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = CommandParser(
        examples=_EXAMPLES,
        prog="visattn segment",
        description="Segment images with a trained model, and show where its gates open.",
        epilog=_EPILOG,
    )
    add_images(parser)
    add_model(parser)
    add_options(parser, "out", out={"help": "output folder for masks, overlays and figures"})
    add_resize_mode(parser, "pad")
    add_options(parser, *PHOTO_FIGURES, *BULK, "dry-run")
    return parser


def main(argv: Sequence[str]) -> int:
    """Segment images; return 0, or 1 if some could not be read or some files not be written."""
    parser = build_parser()
    args = parser.parse_args(argv)
    resolve_images(parser, args)
    resolve_model(parser, args, _NO_MODEL)
    if args.out is None:
        refuse_without(parser, args, ("overwrite", *PHOTO_FIGURES))
    return run_job(SegmentationJob, args, batch_size=_BATCH_SIZE)


class SegmentationJob(ModelJob["Segmentation"]):
    """Segmentation of images, each with a mask, an overlay and a figure."""

    command = "segment"
    title = "Segmentation"
    work = "segmenting"
    kind = "visattn.models.unet:UNet"
    noun = "a segmentation model"
    options = ("resize_mode",)

    kinds = ("{}.png", "masks/{}.png", "overlays/{}.png")

    def infer(self, images: "Sequence[LoadedImage]") -> "Sequence[Segmentation]":
        """Return the segmentations of images."""
        from visattn.pipelines.segmentation import segment

        mode = self.args.resize_mode
        return [*segment(self.model, images, resize_mode=mode, batch_size=len(images))]

    def parts(self, name: str, image: "LoadedImage", result: "Segmentation") -> Iterable[Part]:
        """Return shares and geometry, and mask, overlay and figure."""
        from visattn.results.kinds import IGNORE_CLASS
        from visattn.results.records import to_dict
        from visattn.viz.figures import png
        from visattn.viz.segmentation import class_palette, draw_labels, segmentation_figure

        record = {
            "image": image.name,
            "class_names": result.class_names,
            "shares": result.shares(),
            "ignored": IGNORE_CLASS,
            "geometry": to_dict(result.geometry),
        }
        if self.out is None:
            return [Part(name, record)]
        palette = class_palette(background=result.has_background).tobytes()
        drawn = draw_labels(image.pixels, result.labels, background=result.has_background)
        crop, width = self.args.cropped, self.args.width
        figure = segmentation_figure(image, result, crop=crop, width=width)
        panel = f"{name}.png"
        files = {
            panel: png(figure),
            f"masks/{name}.png": encode_png(result.labels, palette),
            f"overlays/{name}.png": encode_overlay(drawn),
        }
        card = Card(name, panel, _percent(record["shares"]), card_image(drawn))
        return [Part(name, record, files, card)]

    def rows(self, record: Record) -> Iterable[tuple[str]]:
        """Return the share of each class in percent."""
        return [(_percent(record["shares"]),)]

    @staticmethod
    def table(record: Record) -> Iterable[Row]:
        """Return the share of each class."""
        return [record["shares"]]


def _percent(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {100 * share:.1f} %" for name, share in shares.items())
