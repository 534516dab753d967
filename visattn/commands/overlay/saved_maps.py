"""Overlays of maps from a file on the photo that they were computed from."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.boxes import BoxFile, boxes_of
from visattn.commands.files import create_folder
from visattn.commands.options import figure_settings
from visattn.images.encoding import encode_overlay
from visattn.io.atomic import atomic_write
from visattn.io.messages import format_names

if TYPE_CHECKING:  # torch and Pillow are imported when the command runs, not for its help
    import numpy as np

    from visattn.images.reader import LoadedImage
    from visattn.results.attention_map import AttentionMap
    from visattn.results.map_files import SavedMaps
    from visattn.viz.figures import Figure


def overlay_saved_maps(args: argparse.Namespace) -> list[Path]:
    """Draw the maps of a file on one photo; return the output files.

    Args:
        args: Options of `visattn overlay`; with `dry_run` nothing is written.
    """
    from visattn.images.reader import read_image
    from visattn.results.map_files import read_saved_maps, reshape_maps

    photo = args.images[0]
    image = read_image(photo)
    saved = read_saved_maps(args.maps)
    words = args.words or saved.words
    try:
        values = reshape_maps(saved.maps, args.map_shape)
    except ValueError as error:
        raise ValueError(f"{args.maps}: {error}") from error
    maps = _with_geometry(values, image, saved, args)
    if words and len(words) != len(maps):
        raise ValueError(
            f"there are {len(maps)} maps and {len(words)} words; give one word per map, or "
            "unflatten the last axis with --map-shape"
        )
    saved.words = words or [str(number) for number in range(1, len(maps) + 1)]
    single_file = args.out.suffix.lower() == ".png" and not args.out.is_dir()
    paths = [args.out] if single_file else _output_paths(args.out, saved.words)
    _check_format(args, single_map=single_file and len(maps) == 1)
    box_file = BoxFile(args, [photo])
    if photo.resolve() in {path.resolve() for path in paths}:
        raise ValueError(f"--out would overwrite the photo {photo}")
    box_file.check()
    present = [path.name for path in paths if path.exists()]
    if present and not args.overwrite:
        raise FileExistsError(
            f"{format_names(present)} exist already: choose another --out, or pass --overwrite"
        )
    boxes = [] if args.boxes is None else [args.boxes.absolute()]
    if args.dry_run:
        return [*boxes, *paths]
    create_folder(paths[0].parent)
    if not single_file:
        for index, path in enumerate(paths[:-1]):
            atomic_write(path, encode_overlay(_overlay(image, maps, index, args)))
    if single_file and len(maps) == 1:
        content = encode_overlay(_overlay(image, maps, 0, args))
    else:
        from visattn.viz.figures import png

        content = png(_panel(image, maps, saved, args))
    atomic_write(paths[-1], content)
    box_file.add(photo, boxes_of(replace(maps, labels=tuple(saved.words)), args))
    box_file.write()
    return [*boxes, *paths]


def _check_format(args: argparse.Namespace, *, single_map: bool) -> None:
    """Check that a single file is what its suffix and the options say."""
    suffix = args.out.suffix.lower()
    if single_map and (suffix != ".png" or figure_settings(args)):
        raise ValueError(
            f"one map is drawn at the size of its photo, as .png without --width; got {args.out}"
        )


def _output_paths(folder: Path, words: Sequence[str]) -> list[Path]:
    """Return the file of each map, and last that of the panel."""
    if folder.suffix and not folder.is_dir():
        raise ValueError(f"--out must be a .png file or a folder, got {folder}")
    stems = [re.sub(r"[^0-9A-Za-z-]+", "_", word)[:40] for word in words]
    names = [f"{index:02}_{stem}.png" for index, stem in enumerate(stems, start=1)]
    return [folder / name for name in [*names, "panel.png"]]


def _with_geometry(
    values: "np.ndarray", image: "LoadedImage", saved: "SavedMaps", args: argparse.Namespace
) -> "AttentionMap":
    """Return the maps with their geometry on the photo, from the file or from the options."""
    import torch

    from visattn.geometry.affine import Geometry
    from visattn.images.resize import ResizeSpec, resize_to_input
    from visattn.results.attention_map import AttentionMap
    from visattn.results.records import from_dict

    if saved.geometry is not None and args.resize_mode is None:
        try:
            geometry = from_dict(Geometry, saved.geometry)
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise ValueError(f"{args.maps}: not a geometry, {error!r}") from error
        if geometry.image_size != image.size:
            raise ValueError(
                f"{args.maps} belongs to an image of {geometry.image_size} pixels, {image.name} "
                f"has {image.size}; give the same photo"
            )
    else:
        spec = ResizeSpec(
            args.input_size or (224, 224), args.resize_mode or "squash", args.resize_shorter
        )
        _, geometry = resize_to_input(image, spec)
    return AttentionMap(torch.from_numpy(values), str(args.maps), "gradient", geometry)


def _full_color_value(maps: "AttentionMap", args: argparse.Namespace) -> float:
    """Return the value at full color, by --vmax or --normalize."""
    from visattn.results.scale import map_scale

    if args.vmax is not None:
        return args.vmax
    if args.normalize == "percentile":
        return map_scale([maps], "percentile").vmax
    return maps.display_range()[1]


def _overlay(
    image: "LoadedImage", maps: "AttentionMap", index: int, args: argparse.Namespace
) -> "np.ndarray":
    from visattn.viz.heatmap import overlay
    from visattn.viz.maps import outline_boxes

    drawn = overlay(
        image.pixels,
        maps[index].resize_to_image(smooth=args.interpolation == "bilinear").numpy(),
        vmin=args.vmin,
        vmax=_full_color_value(maps[index] if args.normalize == "image" else maps, args),
        colormap=args.colormap,
        opacity=args.opacity,
        style=args.style,
    )
    return outline_boxes(drawn, boxes_of(maps[index], args))


def _panel(
    image: "LoadedImage", maps: "AttentionMap", saved: "SavedMaps", args: argparse.Namespace
) -> "Figure":
    from visattn.results.captions import Caption
    from visattn.viz.captions import caption_figure

    per_map = args.normalize == "image" and args.vmax is None
    boxes = boxes_of(maps, args)
    caption = Caption(tuple(saved.words), (), (), maps, score=0.0, finished=True)
    return caption_figure(
        image,
        caption,
        boxes=boxes,
        scales="own" if per_map else "shared",
        vmin=args.vmin,
        vmax=_full_color_value(maps, args),
        colormap=args.colormap,
        opacity=args.opacity,
        style=args.style,
        smooth=args.interpolation == "bilinear",
        width=args.width,
    )
