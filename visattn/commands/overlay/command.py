"""`visattn overlay`: where any model looked, on the photos themselves."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from visattn.commands.options.dry_run import add_dry_run, foresee, told_images
from visattn.commands.options.models import add_model_options
from visattn.commands.options.output_streams import print_lines
from visattn.commands.options.parser import CommandParser
from visattn.commands.options.values import (
    LONGEST_SIDE,
    batch_size,
    named_value,
    real_number,
    sides,
    whole_number,
)

_NOTHING = """\
say whose maps these are, with --model SPEC or --maps FILE:
  visattn overlay dog.jpg --model timm:resnet50 --pretrained --method gradcam --out maps
  visattn overlay photos --model timm:deit_tiny_patch16_224 --pretrained --method rollout --out maps
  visattn overlay dog.jpg --maps maps.npy --out dog_maps.png"""

_EPILOG = """\
An image and a method give a line on stdout: names of both, the class that is explained, its
probability, the two ends of the scale; and, with NAME.METHOD for a beginning,
  .png          the image with the map on it, at the image's own size
  .rgba.png     the map alone, transparent where there is nothing
  .16bit.png    the map in gray: 0 and 65535 are the ends of the scale
  .npy          the map as the method made it, on its own grid
  .json         how it was made: model, class, options, scale, and where it lies on the image
and NAME.methods.png, all methods side by side, if there are several. --grid adds NAME.heads.png,
--explorer NAME.html, to be opened in a browser. Of several images DIR/index.html shows the maps.
A method that fails is reported, and the others go on; the exit code is then 1.
What the network did not see, as beside a crop, is hatched or transparent.
A run that was interrupted goes on where it was: what is there and was made in the same way stays.

With --maps, FILE (.npy, .npz, .json) holds one map [y, x] or several [t, y, x] of one photo; the
JSON of visattn caption also knows words and place. --out is then FILE.png or a folder."""

_STYLES = ("heat", "light", "blur", "contour")
_IMAGES = ("overlay", "rgba", "16bit")


def parser() -> argparse.ArgumentParser:
    """Return the options of the command."""
    made = CommandParser(
        prog="visattn overlay",
        description="Show where a model looked, or what its answer rests on, on the photos.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "images", nargs="+", type=Path, metavar="IMAGE_OR_FOLDER", help="folders are searched"
    )
    made.add_argument("--out", type=Path, required=True, metavar="DIR", help="where files go")
    add_model_options(made, required=False)
    _add_methods(made)
    _add_drawing(made)
    _add_given(made)
    made.add_argument("--batch", type=batch_size, default=16, help="images at once (16)")
    made.add_argument("--again", action="store_true", help="make anew what is there already")
    made.add_argument("--strict", action="store_true", help="stop at the first unreadable image")
    add_dry_run(made)
    return made


def _add_methods(made: argparse.ArgumentParser) -> None:
    number = whole_number(-10_000, 10_000)
    made.add_argument(
        "--method",
        nargs="+",
        metavar="METHOD",
        help="one or several, such as attention, rollout, relevance, gradcam, layercam, rise; or "
        "all that fit the model (rollout where it fits, else gradcam)",
    )
    made.add_argument(
        "--target", metavar="CLASS", help="what is explained, by name or number (the prediction)"
    )
    made.add_argument(
        "--layers", nargs="+", type=number, metavar="N", help="only these, from 0; -1 is the last"
    )
    made.add_argument(
        "--layer",
        nargs="+",
        metavar="MODULE",
        help="of methods that look at one layer: any module, such as layer4.2, or one of its runs, "
        "as in layer4.2.relu#2",
    )
    made.add_argument(
        "--heads", nargs="+", type=number, metavar="N", help="only these, counted from 0"
    )
    made.add_argument(
        "--option",
        action="append",
        default=[],
        type=named_value,
        metavar="NAME=VALUE",
        help="of a method, such as masks=4000 for rise",
    )
    made.add_argument(
        "--fit",
        choices=("crop", "squash", "pad"),
        help="what the network sees of a long image: its middle, all of it out of shape, all of "
        "it with margins (as the model is used to)",
    )


def _add_drawing(made: argparse.ArgumentParser) -> None:
    made.add_argument(
        "--scale",
        choices=("image", "global", "percentile"),
        help="what shows in full: the highest value of each map, of a method on all images, or "
        "all but a hundredth of the values (image; with --maps global)",
    )
    shape = made.add_mutually_exclusive_group()
    shape.add_argument(
        "--smooth", dest="cells", action="store_false", default=False, help="soft hills (this)"
    )
    shape.add_argument("--cells", action="store_true", help="the cells of the grid as they are")
    made.add_argument("--style", choices=_STYLES, default="heat", help="colors (heat), the light "
                      "of the photo, its sharpness, or lines")  # fmt: skip
    made.add_argument("--colors", default="magma", help="a color map of matplotlib (magma)")
    made.add_argument(
        "--opacity", type=real_number(0, 1), default=0.7, help="of the colors in full (0.7)"
    )
    made.add_argument(
        "--files", dest="kinds", nargs="+", choices=_IMAGES, default=list(_IMAGES),
        help="which PNGs of each map (all)",
    )  # fmt: skip
    made.add_argument("--grid", action="store_true", help="also all heads of all layers")
    made.add_argument("--explorer", action="store_true", help="also a page to look around in")


def _add_given(made: argparse.ArgumentParser) -> None:
    values = real_number(-1e19, 1e19)  # float32 holds them and their squares
    made.add_argument(
        "--maps", type=Path, metavar="FILE", help="maps of the photo, in place of a model"
    )
    made.add_argument("--size", type=sides, metavar="N|YxX", help="what the network took (224)")
    made.add_argument(
        "--shorter",
        type=whole_number(1, LONGEST_SIDE),
        metavar="N",
        help="the short side before a crop",
    )
    made.add_argument("--map-grid", type=sides, metavar="N|YxX", help="the last axis is this grid")
    made.add_argument("--words", nargs="+", default=[], metavar="WORD", help="one for each map")
    made.add_argument("--low", type=values, default=0.0, help="the value that begins to show (0)")
    made.add_argument("--high", type=values, help="the value that shows in full (by --scale)")


def main(argv: Sequence[str]) -> int:
    """Draw maps on images; return 0, or 1 if some of them could not be read, made or written.

    Raises:
        FileNotFoundError: If an image, a folder, weights or maps do not exist.
        ValueError: If there is no such model, method, layer, head or class, a method does not fit
            the model, a file would overwrite an image, or, with `--strict`, an image cannot be
            read.
        OSError: If the output folder cannot be written.
    """
    options = parser()
    asked = options.parse_args(argv)
    if (asked.model is None) == (asked.maps is None):
        options.error(_NOTHING)
    if asked.layer and asked.layers:
        options.error("--layer names modules, --layers numbers layers: give one of them")
    asked.size = asked.input_size = asked.input_size or asked.size
    asked.scale = asked.scale or ("image" if asked.maps is None else "global")
    if asked.maps is None:
        from visattn.commands.overlay.runs import draw_folder

        return draw_folder(asked)
    if len(asked.images) > 1:
        options.error(f"--maps belong to one photo, got {len(asked.images)} of them")
    from visattn.commands.overlay.saved_maps import draw_given_maps

    paths = draw_given_maps(asked)
    if asked.dry_run:
        reads = [told_images(asked.images), f"maps in {asked.maps}"]
        return foresee(reads, paths[0].parent, [path.name for path in paths])
    print_lines(map(str, paths))
    return 0
