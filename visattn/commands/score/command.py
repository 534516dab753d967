"""`visattn score`: how good captions are, or maps."""

import argparse
from collections.abc import Sequence

from visattn.commands.options.parser import CommandParser
from visattn.commands.score import captions as score_captions
from visattn.commands.score import maps as score_maps

_KINDS = {
    "captions": (score_captions, "captions against those of people"),
    "maps": (score_maps, "maps against objects, and against the model itself"),
}


def parser() -> argparse.ArgumentParser:
    """Return the options of the command."""
    made = CommandParser(
        prog="visattn score", description="Score what a model made against what is known."
    )
    kinds = made.add_subparsers(dest="what", metavar="WHAT", required=True)
    for word, (module, line) in _KINDS.items():
        own = module.parser()
        kinds.add_parser(
            word,
            help=line,
            parents=[own],
            description=own.description,
            epilog=own.epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
    return made


def main(argv: Sequence[str]) -> int:
    """Score captions or maps and print a table.

    Returns:
        0, or 1 if some images could not be scored.

    Raises:
        FileNotFoundError: If a file does not exist.
        ValueError: If a file cannot be understood, or what is asked for does not fit together.
        OSError: If `--out` cannot be written.
    """
    asked = parser().parse_args(argv)
    return _KINDS[asked.what][0].score(asked)
