"""The file of `--figure`: the maps of all photos of a run, a row for each photo."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.options import figure_options
from visattn.io.locations import Source
from visattn.io.messages import format_names
from visattn.io.written_files import WrittenFiles, replace_files

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from visattn.images.reader import LoadedImage
    from visattn.results.attention_map import AttentionMap
    from visattn.results.scale import MapScale

MOST_ROWS = 30  # a page of more is no longer read


class FigureFile:
    """A figure of photos and their maps, written when all photos are done.

    Args:
        args: Options of `visattn overlay`.
        images: All input images.

    Raises:
        ValueError: If it has no known format, there are too many photos, or it is an input image.
    """

    def __init__(self, args: argparse.Namespace, images: "Collection[Source]") -> None:
        self.args = args
        self.path: Path = args.figure
        if self.path.suffix.lower() not in (".png", ".pdf", ".svg"):
            raise ValueError(f"--figure must end in .png, .pdf or .svg, got {self.path}")
        if len(images) > MOST_ROWS:
            raise ValueError(
                f"--figure holds at most {MOST_ROWS} photos, a row for each, got {len(images)}: "
                "name fewer, or divide them among several figures"
            )
        if os.path.realpath(self.path) in {
            os.path.realpath(image) for image in images if isinstance(image, Path)
        }:
            raise ValueError(f"--figure would overwrite the input image {self.path}")

    def check(self) -> None:
        """Refuse to replace a file that visattn did not write, unless with `--overwrite`.

        Raises:
            FileExistsError: If there is such a file.
        """
        folder = self.path.parent
        if not self.args.overwrite and WrittenFiles.read(folder).foreign([self.path.name]):
            raise FileExistsError(
                f"{folder} holds {format_names([self.path.name])}, which this command did not "
                "write, or which changed since: choose another --figure, or replace with "
                "--overwrite"
            )

    def write(
        self,
        photos: "Sequence[LoadedImage]",
        maps: "Sequence[Sequence[AttentionMap]]",
        scales: "Sequence[MapScale]",
    ) -> None:
        """Draw the maps of the photos, and write the file.

        Args:
            photos: The photos that have maps.
            maps: The maps of each.
            scales: Their color scales, photo by photo.

        Raises:
            ValueError: If the figure would be too high, or too narrow for its columns.
            OSError: If it cannot be written.
        """
        from visattn.viz.figures import figure

        args = self.args
        options: dict[str, Any] = {
            **{name: getattr(args, name) for name in ("style", "colormap", "opacity")},
            **figure_options(args),
            "crop": args.cropped,
            "smooth": args.interpolation == "bilinear",
        }
        drawn = figure(maps, photos, scales=scales, **options)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replace_files(self.path.parent, self.path.name, overwrite=args.overwrite) as part:
            drawn.save(part / self.path.name)
