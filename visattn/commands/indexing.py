"""`visattn index`: write index and tables of the results in a folder or a store."""

import argparse
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from visattn.commands.index import FolderIndex
from visattn.commands.options import CommandParser, add_options
from visattn.commands.output_option import output_place
from visattn.commands.outputs import INDEX, open_output
from visattn.commands.streams import activity, print_where
from visattn.io.safe_text import print_message
from visattn.io.tables import parquet_table

if TYPE_CHECKING:
    from visattn.commands.image_results import ImageResults

_DESCRIPTION = """\
Write index.html and a table, such as captions.csv, of all results in a folder or a store. In a
folder the commands keep both up to date themselves; in a store, where parallel runs cannot share a
file, they are written when all are done."""

_EXAMPLES = (
    "visattn index s3://bucket/maps",
    "visattn index captions --parquet",
)
_JOBS = {
    "caption": "visattn.commands.caption.job:CaptionJob",
    "overlay": "visattn.commands.overlay.job:OverlayJob",
    "ask": "visattn.commands.ask:AnswersJob",
    "detect": "visattn.commands.detect:DetectionJob",
    "segment": "visattn.commands.segment:SegmentationJob",
    "glimpse": "visattn.commands.glimpse:GlimpseJob",
}


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = CommandParser(examples=_EXAMPLES, prog="visattn index", description=_DESCRIPTION)
    parser.add_argument(
        "out", type=output_place, metavar="OUT", help="output folder of the results, or its URL"
    )
    overwrite = "replace tables of the same names that visattn did not write (default: refuse)"
    add_options(parser, "parquet", "overwrite", overwrite={"help": overwrite})
    return parser


def main(argv: Sequence[str]) -> int:
    """Write index and tables; return 0.

    Raises:
        FileExistsError: If a table of the user would be replaced.
        OSError: If the place cannot be read or written.
        ValueError: If it holds no results.
    """
    args = build_parser().parse_args(argv)
    if args.parquet:
        parquet_table([])  # refuses before anything is read
    out = open_output(args.out)
    index = FolderIndex(out, "Results", "", _kind)
    with activity("reading the records"):
        index.read()
        if not (commands := index.commands):
            raise ValueError(
                f"{out} holds no results of {', '.join(_JOBS)}: name the folder or URL that was "
                "their --out; score writes its report itself"
            )
        if len(commands) == 1 and (kind := _kind(commands[0])) is not None:
            index.title, index.command = kind.title, commands[0]
        index.write(commands, parquet=args.parquet, overwrite=args.overwrite)
    if out.renames:
        print_where(out.where(INDEX))
    else:
        print_message(f"written: {out.where(INDEX)}; a copy of the store in a folder can be opened")
    return 0


@cache
def _kind(command: str) -> "type[ImageResults] | None":
    """Return what says the rows of the records of a command; None if they have none."""
    if command not in _JOBS:
        return None
    module, _, name = _JOBS[command].partition(":")
    return getattr(import_module(module), name)
