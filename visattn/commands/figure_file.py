"""Option `--figure`: the maps of all photos of a run in one figure."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.commands.options import OUTPUT, CommandParser
from visattn.commands.output_option import output_path
from visattn.io.locations import Source
from visattn.io.messages import format_names
from visattn.io.written_files import WrittenFiles, replace_files

if TYPE_CHECKING:
    from collections.abc import Collection

    from visattn.viz.rendering import Figure

MOST_ROWS = 30  # a page of more is no longer read


def add_figure(parser: CommandParser, rows: str) -> None:
    """Add the option.

    Args:
        parser: Parser of the command.
        rows: What the figure has for each photo, for the help.
    """
    parser.group(OUTPUT).add_argument(
        "--figure",
        type=output_path,
        metavar="FILE",
        help=f"also draw all photos in one figure, {rows} (FILE ends in .pdf, .svg or .png)",
    )


class FigureFile:
    """A figure of photos and their maps, written when all photos are done.

    Args:
        args: Options of the command.
        images: All input images.

    Raises:
        ValueError: If it has no known format, there are too many photos, or it is an input image.
    """

    def __init__(self, args: argparse.Namespace, images: "Collection[Source]") -> None:
        self.path: Path = args.figure
        self._overwrite = bool(args.overwrite)
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
        if not self._overwrite and WrittenFiles.read(folder).foreign([self.path.name]):
            raise FileExistsError(
                f"{folder} holds {format_names([self.path.name])}, which this command did not "
                "write, or which changed since: choose another --figure, or replace with "
                "--overwrite"
            )

    def write(self, drawn: "Figure") -> None:
        """Write the file.

        Args:
            drawn: The figure.

        Raises:
            OSError: If it cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with replace_files(self.path.parent, self.path.name, overwrite=self._overwrite) as part:
            drawn.save(part / self.path.name)
