"""`visattn overlay`: attribution and attention maps of any model, drawn on the photos."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from visattn.commands.boxes import BOX_OPTIONS, add_boxes, check_boxes
from visattn.commands.image_options import add_images, describe_images, resolve_images
from visattn.commands.model_option import add_model, resolve_model
from visattn.commands.options import (
    BULK,
    DRAWING,
    FIGURES,
    LONGEST_SIDE,
    OUTPUT,
    PHOTO_FIGURES,
    RUN,
    TARGET,
    CommandParser,
    Mode,
    add_options,
    add_resize_mode,
    height_width,
    named_value,
    print_dry_run,
    real_number,
    refuse_unused,
    refuse_without,
    whole_number,
)
from visattn.commands.overlay.methods import add_dense_target
from visattn.commands.streams import print_lines
from visattn.images.formats import MAX_PIXELS

_NO_SOURCE = """\
name a model or a file of maps, with --model SPEC or --maps FILE:
  visattn overlay dog.jpg --model timm:resnet50 --pretrained --method gradcam --out maps
  visattn overlay photos --model timm:deit_tiny_patch16_224 --pretrained --method rollout --out maps
  visattn overlay dog.jpg --model torchvision:fasterrcnn_resnet50_fpn --pretrained --box best
  visattn overlay dog.jpg --maps maps.npy --out dog_maps.png
  visattn overlay clip.mp4 --model timm:resnet50 --pretrained --every 5 --out maps"""

_EPILOG = """\
Prints a row per image and method: the names of both, the explained class, its probability, and
the displayed range of values; for a text, its cosine similarity with the image.
A video gives NAME.METHOD.mp4, its frames with their maps on one color scale, and NAME.METHOD.png,
a contact sheet. Files of a map of a photo begin with NAME.METHOD:
  .png          overlay on the image, at most 2048 pixels wide and high
  .rgba.png     the map alone; transparent where it is zero
  .16bit.png    the map in gray: 0 and 65535 are the ends of the displayed range
  .npy          the map at its own resolution
  .json         metadata: model, class, arguments, displayed range, geometry on the image
NAME.methods.png is a sheet of all maps of an image with their color scales. --explorer adds
NAME.html, a page for the browser. For several images DIR/index.html shows all maps.
visattn detect draws where the queries of a detector of transformers looked.
With --boxes FILE, FILE holds the boxes of each map: COCO JSON, whose categories are the classes,
texts or words, or the methods of maps without one.
If a method fails, this is reported, the other methods continue, and the exit code is 1.
Regions outside of the network's input, such as those beside a crop, are dimmed or transparent.
An interrupted run resumes: maps that exist and were made in the same way are not computed again.

With --maps, FILE (.npy, .npz, .json) holds one map [y, x] or several [t, y, x] of one photo; the
JSON of visattn caption also holds words and geometry. --out is then FILE.png or a folder."""

_MODEL = (
    "model", "weights", "pretrained", "model_args", "input_size", "classes", "mean", "std",
    "transform", "device", "method",
    "target", "layers", "layer", "heads", "method_args", "resize_mode", "style",
    "colormap", "opacity", "batch_size", "overwrite",
)  # fmt: skip
_PHOTO = (
    "text", "max_pixels", "pixel", "region", "box", "query", "normalize", "interpolation",
    "save", "explorer", "top_classes", "shard", "autocast",
    *BOX_OPTIONS, *PHOTO_FIGURES,
)  # fmt: skip
_SAVED = ("maps", "resize_shorter", "map_shape", "words", "vmin", "vmax", *BOX_OPTIONS, *FIGURES)
_MODES = {
    "photos": Mode("photos", (*_MODEL, *_PHOTO)),
    "videos": Mode("videos", (*_MODEL, "every")),
    "maps": Mode(
        "saved maps (--maps)",
        (*_SAVED, "input_size", "resize_mode", "style", "colormap", "opacity", "overwrite",
         "normalize", "interpolation"),
    ),
}  # fmt: skip

_STYLES = ("heat", "quantitative", "light", "contour")
_KINDS = ("overlay", "rgba", "16bit", "sheet")


_EXAMPLES = (
    "visattn overlay photos --model timm:resnet50 --pretrained --method gradcam rise --out maps",
    "visattn overlay photos --model my_net.py:build --weights my.pth --method all --out maps",
    "visattn overlay photo.jpg --maps maps.npy --out maps.png",
    "visattn overlay clip.mp4 --model timm:resnet50 --pretrained --every 5 --out maps",
)


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = CommandParser(
        examples=_EXAMPLES,
        prog="visattn overlay",
        description="Draw attention maps and attribution maps of a model on photos.",
        epilog=_EPILOG,
    )
    add_images(parser, videos=True)
    add_options(parser, "out", out={"required": True})
    add_model(parser, builds=True)
    _add_methods(parser)
    add_dense_target(parser)
    _add_drawing(parser)
    _add_saved_maps(parser)
    add_boxes(parser)
    parser.group(RUN).add_argument(
        "--every",
        type=whole_number(1, 10**6),
        default=1,
        metavar="N",
        help="of a video: explain every n-th frame (default: 1)",
    )
    text = "images per batch (default: 16; 1 for methods that run the model many times)"
    add_options(parser, "batch-size", batch_size={"default": None, "help": text})
    add_options(parser, *PHOTO_FIGURES, *BULK, "autocast", "dry-run")
    return parser


def _add_methods(parser: CommandParser) -> None:
    group = parser.group(TARGET)
    group.add_argument(
        "--method",
        nargs="+",
        metavar="METHOD",
        help="one or several of attention, rollout, relevance, gradcam, layercam, rise, ...; or "
        "all: every method that the model supports (default: auto, which is rollout if supported, "
        "else gradcam; with --text legrad)",
    )
    group.add_argument(
        "--target",
        "--class",
        nargs="+",
        metavar="CLASS",
        help="class to explain, by name or index, or several, with a map for each (default: the "
        "predicted class)",
    )
    group.add_argument(
        "--text",
        nargs="+",
        metavar="TEXT",
        help="texts to compare the images with, for a model of images and texts, such as "
        "hf:DIRECTORY of CLIP or SigLIP; one map for each text, on one scale",
    )
    _add_layers(group)
    group.add_argument(
        "--method-arg",
        nargs="+",
        default=[],
        dest="method_args",
        type=named_value,
        metavar="NAME=VALUE",
        help="arguments of the methods, such as num_masks=4000 seed=1 for rise",
    )
    add_resize_mode(parser, None)
    group.add_argument(
        "--max-pixels",
        type=whole_number(1, 10**10),
        default=MAX_PIXELS,
        metavar="N",
        help=f"largest photo that is read, in pixels (default: {MAX_PIXELS:,}); one of 200 million "
        "takes about 4 GB of memory",
    )


def _add_layers(group: "argparse._ArgumentGroup") -> None:
    index = whole_number(-10_000, 10_000)
    group.add_argument(
        "--layers",
        nargs="+",
        type=index,
        metavar="N",
        help="indices of layers, from 0; -1 is the last layer (default: as the method does)",
    )
    group.add_argument(
        "--layer",
        nargs="+",
        metavar="MODULE",
        help="module names for methods that explain one layer, such as layer4.2; "
        "layer4.2.relu#2 is the second call of a module",
    )
    group.add_argument(
        "--heads",
        nargs="+",
        type=index,
        metavar="N",
        help="indices of attention heads, from 0 (default: all)",
    )


def _add_drawing(parser: CommandParser) -> None:
    group = parser.group(DRAWING)
    output = parser.group(OUTPUT)
    group.add_argument(
        "--normalize",
        choices=("image", "global", "percentile"),
        help="ends of the colors: of each map; of a method over all images; or the 1st and 99th "
        "percentile, which clips outliers. Maps at pixel resolution are always clipped at the 99th "
        "(default: image; with --maps: global)",
    )
    group.add_argument(
        "--interpolation",
        choices=("bilinear", "nearest"),
        default="bilinear",
        help="interpolation of the map to the image (default: bilinear)",
    )
    group.add_argument(
        "--style",
        choices=_STYLES,
        default="heat",
        help="show values as colors on the photo, on a gray photo whose lightness is that of the "
        "value, as brightness, or as contour lines (default: heat)",
    )
    group.add_argument(
        "--colormap", default="inferno", help="matplotlib colormap (default: inferno)"
    )
    group.add_argument(
        "--opacity",
        type=real_number(0, 1),
        default=0.8,
        help="opacity of the highest value, from 0 to 1 (default: 0.8)",
    )
    output.add_argument(
        "--save",
        nargs="+",
        choices=_KINDS,
        default=["overlay", "sheet"],
        help="PNG files: of each map, and a sheet of all maps of an image with their color scales "
        "(default: overlay sheet), beside .npy and .json",
    )
    output.add_argument(
        "--explorer", action="store_true", help="also write an interactive page per image"
    )
    output.add_argument(
        "--top-classes",
        type=whole_number(0, 100),
        default=5,
        metavar="N",
        help="with --explorer: number of classes whose Grad-CAM in each layer the page has "
        "(default: 5; 0: none)",
    )


def _add_saved_maps(parser: CommandParser) -> None:
    values = real_number(-1e19, 1e19)  # squares fit into float32
    group = parser.add_argument_group("saved maps of one photo, instead of a model")
    group.add_argument("--maps", type=Path, metavar="FILE", help="draw the maps of this file")
    group.add_argument(
        "--resize-shorter",
        type=whole_number(1, LONGEST_SIDE),
        metavar="N",
        help="length of the shorter side before a crop, in pixels",
    )
    group.add_argument(
        "--map-shape",
        type=height_width,
        metavar="N|HxW",
        help="shape into which the last axis is unflattened",
    )
    group.add_argument(
        "--words", nargs="+", default=[], metavar="WORD", help="a label for each map"
    )
    group.add_argument(
        "--vmin", type=values, default=0.0, help="lowest displayed value (default: 0)"
    )
    group.add_argument("--vmax", type=values, help="value at full color (default: see --normalize)")


def main(argv: Sequence[str]) -> int:
    """Draw maps on images; return 0, or 1 if an image or a map failed."""
    parser = build_parser()
    args = parser.parse_args(argv)
    has_videos = _has_videos(parser, args)
    resolve_model(parser, args)
    if (args.model is None) == (args.maps is None):
        parser.error(_NO_SOURCE)
    if args.text and (args.maps or args.target or args.classes):
        parser.error("--text names what to explain: --target, --classes and --maps have no use")
    if args.layer and args.layers:
        parser.error("--layer takes names of modules, --layers indices: use one of them")
    mode = "maps" if args.maps is not None else "videos" if has_videos else "photos"
    refuse_unused(parser, args, mode, _MODES)
    _refuse_without_effect(parser, args, mode)
    if mode == "videos":
        if len(args.target or ()) > 1:
            parser.error("a video shows maps of one class: run the command for each --target")
        from visattn.commands.overlay.videos import overlay_videos

        return overlay_videos(args)
    if args.shard and (args.maps is not None or args.normalize == "global"):
        parser.error("--shard divides images: --maps and --normalize global need all at once")
    args.normalize = args.normalize or ("image" if args.maps is None else "global")
    if args.maps is None:
        from visattn.commands.overlay.job import overlay_images

        return overlay_images(args)
    if len(args.images) > 1:
        parser.error(f"--maps belong to one photo, got {len(args.images)} images")
    from visattn.commands.overlay.saved_maps import overlay_saved_maps

    paths = overlay_saved_maps(args)
    if args.dry_run:
        reads = [describe_images(args.images), f"maps in {args.maps}"]
        return print_dry_run(reads, paths[0].parent, [path.name for path in paths])
    print_lines(map(str, paths))
    return 0


def _has_videos(parser: argparse.ArgumentParser, args: argparse.Namespace) -> bool:
    """Return whether the sources are videos; exit with a usage error if some are."""
    resolve_images(parser, args, "name the photos or videos: files, folders")
    from visattn.images.formats import is_video

    if any("*" in str(path) for path in args.images):
        from visattn.images.sources import expand_patterns

        args.images = expand_patterns(args.images)  # they may be videos
    videos = [path for path in args.images if is_video(path)]
    if 0 < len(videos) < len(args.images):
        parser.error(f"photos and videos take separate commands, got {videos[0]} beside photos")
    return bool(videos)


def _refuse_without_effect(
    parser: argparse.ArgumentParser, args: argparse.Namespace, mode: str
) -> None:
    """Exit with a usage error if an option has no effect beside the others."""
    check_boxes(parser, args)
    if not args.explorer:
        refuse_without(parser, args, ["top_classes"], "--explorer")
    if mode == "photos" and "sheet" not in args.save:
        refuse_without(parser, args, ["width", "cropped"], "--save sheet")
    if args.style in ("light", "contour") and not args.explorer:
        refuse_without(parser, args, ["opacity"], "--style heat, quantitative or --explorer")
    if args.style == "light" and mode in ("maps", "videos"):
        refuse_without(parser, args, ["colormap"], "--style heat or contour")
    if mode == "maps" and args.resize_mode in (None, "squash"):
        refuse_without(parser, args, ["input_size"], "--resize-mode crop or pad")
    if args.resize_mode != "crop":
        refuse_without(parser, args, ["resize_shorter"], "--resize-mode crop")
    if args.vmax is not None:
        refuse_without(parser, args, ["normalize"], "a computed scale, without --vmax")
