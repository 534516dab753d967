"""`visattn score`: score captions or maps."""

import argparse
from collections.abc import Sequence

from visattn.commands.options import CommandParser
from visattn.commands.score import captions as score_captions, maps as score_maps

_SUBCOMMANDS = {
    "captions": (score_captions, "captions against reference captions"),
    "maps": (score_maps, "maps against annotated objects, and against the model itself"),
}


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = CommandParser(
        examples=[module.build_parser().examples[0] for module, _ in _SUBCOMMANDS.values()],
        prog="visattn score",
        description="Score captions or maps of a model.",
    )
    subparsers = parser.add_subparsers(dest="what", metavar="WHAT", required=True)
    for name, (module, line) in _SUBCOMMANDS.items():
        parent = module.build_parser()
        subparsers.add_parser(
            name,
            help=line,
            parents=[parent],
            description=parent.description,
            epilog=parent.epilog,
        )
    return parser


def main(argv: Sequence[str]) -> int:
    """Score captions or maps and print a table.

    Returns:
        0, or 1 if some images could not be scored.
    """
    args = build_parser().parse_args(argv)
    return _SUBCOMMANDS[args.what][0].score(args)
