"""Options `--boxes` and `--box-threshold`: boxes around the high parts of maps, as COCO JSON."""

import argparse
import json
import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.options import OUTPUT, CommandParser, real_number, refuse_without
from visattn.commands.output_option import output_path
from visattn.io.atomic import atomic_write
from visattn.io.safe_text import read_bytes_bounded
from visattn.io.sources import Source

if TYPE_CHECKING:
    from visattn.results.attention_map import AttentionMap
    from visattn.results.map_boxes import MapBox, MapBoxes

BOX_OPTIONS = ("boxes", "box_threshold")
_DEFAULT = 0.5  # that of AttentionMap.boxes


def add_boxes(parser: CommandParser) -> None:
    """Add the options."""
    group = parser.group(OUTPUT)
    group.add_argument(
        "--boxes",
        type=output_path,
        metavar="FILE",
        help="also write boxes around the high parts of each map as COCO JSON, in pixels of the "
        "upright photo, and draw them",
    )
    group.add_argument(
        "--box-threshold",
        type=real_number(0.001, 1),
        default=_DEFAULT,
        metavar="SHARE",
        help="with --boxes: share of the peak of a map from which pixels belong to a box (default: "
        f"{_DEFAULT})",
    )


def check_boxes(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Exit with a usage error if only the threshold is given."""
    if args.boxes is None:
        refuse_without(parser, args, ["box_threshold"], "a file of boxes, --boxes FILE")


def without_folder(args: argparse.Namespace, names: Collection[str]) -> list[str]:
    """Return which options have no effect without an output folder.

    Args:
        args: Options of the command.
        names: Those of them that write into the folder; `overwrite` also replaces a file of boxes.
    """
    return [name for name in names if name != "overwrite" or args.boxes is None]


def box_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return what the files of an image depend on, for the records of a run."""
    return {"box_threshold": None if args.boxes is None else args.box_threshold}


def boxes_of(maps: "AttentionMap", args: argparse.Namespace) -> "MapBoxes | None":
    """Return the boxes of maps, or None without `--boxes`.

    Args:
        maps: Placed on a photo.
        args: Options of the command.
    """
    if args.boxes is None:
        return None
    smooth = maps.info.places not in ("argmax", "sample")  # as the maps are drawn
    return maps.boxes(args.box_threshold, smooth=smooth)


def join_boxes(several: "Sequence[MapBoxes | None]") -> "MapBoxes | None":
    """Return the boxes of several maps of an image as one; None if there are none.

    Args:
        several: Boxes of each; None without.
    """
    known = [boxes for boxes in several if boxes is not None]
    if not known:
        return None
    joined: list[MapBox] = []
    first = 0
    for boxes in known:
        joined += [replace(box, map_index=first + box.map_index) for box in boxes]
        first += boxes.num_maps
    return replace(known[0], boxes=tuple(joined), num_maps=first)


class BoxFile:
    """The file of `--boxes`, written when all images are done.

    Args:
        args: Options of the command.
        images: All input images.

    Raises:
        ValueError: If the file is an input image or a folder.
    """

    def __init__(self, args: argparse.Namespace, images: Iterable[Source]) -> None:
        self.path: Path | None = args.boxes
        self._overwrite = bool(args.overwrite)
        self._found: dict[Source, MapBoxes] = {}
        files = [image for image in images if isinstance(image, Path)]
        if self.path is None:
            return
        if self.path.is_dir():
            raise ValueError(f"--boxes must be a file, such as boxes.json; {self.path} is a folder")
        if os.path.realpath(self.path) in {os.path.realpath(image) for image in files}:
            raise ValueError(f"--boxes would overwrite the input image {self.path}")
        # The file names images by their paths from the folder that all have in common.
        parents = [image.parent.absolute() for image in files]
        self._folder = os.path.commonpath(parents) if parents else ""

    def add(self, image: Source, boxes: "MapBoxes | None") -> None:
        """Add the boxes of an image.

        Args:
            image: Its file.
            boxes: Its boxes; None is left out.
        """
        if self.path is not None and boxes is not None:
            self._found[image] = boxes

    def check(self) -> None:
        """Refuse to replace a file that holds no boxes of maps, unless with `--overwrite`.

        Raises:
            FileExistsError: If there is such a file.
        """
        if self.path is None or self._overwrite or not os.path.lexists(self.path):
            return
        from visattn.data.regions.coco_instances import DESCRIPTION

        if DESCRIPTION.encode() not in read_bytes_bounded(self.path):
            raise FileExistsError(
                f"--boxes {self.path} holds no boxes of attention maps: choose another file, or "
                "replace it with --overwrite"
            )

    def _name(self, image: Source) -> str:
        """Return the name of an image in the file."""
        if isinstance(image, Path):
            return Path(os.path.relpath(image.absolute(), self._folder)).as_posix()
        return image.relative.as_posix()

    def write(self) -> None:
        """Write the file, if there is one.

        Raises:
            FileExistsError: If it holds something else by now.
            OSError: If it cannot be written.
        """
        if self.path is None:
            return
        self.check()
        from visattn.data.regions.coco_instances import coco_boxes

        named = ((self._name(image), boxes) for image, boxes in self._found.items())
        content = json.dumps(coco_boxes(named), allow_nan=False).encode() + b"\n"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(self.path, content)
