"""`visattn configs`: list the configs that come with visattn, or print one to copy."""

import argparse
from collections.abc import Sequence

from visattn.commands.options import CommandParser
from visattn.commands.streams import print_summaries
from visattn.io.safe_text import print_message
from visattn.training.command import find_config, list_configs

_DESCRIPTION = """\
List the configs that come with visattn, each one an experiment, or print one to copy and edit.
visattn fit --config NAME trains one of them from any directory."""


_EXAMPLES = ("visattn configs", "visattn configs scenes_demo > my_config.yaml")


def build_parser() -> argparse.ArgumentParser:
    """Return the options of the command."""
    options = CommandParser(examples=_EXAMPLES, prog="visattn configs", description=_DESCRIPTION)
    options.add_argument("name", nargs="?", metavar="NAME", help="config to print (default: list)")
    return options


def main(argv: Sequence[str]) -> int:
    """Print the list of configs, or the text of one; return 0, or 2 if there is none.

    Example:
        >>> main(["scenes_demo"])
        # Captioning on rendered scenes: ...
        0
    """
    args = build_parser().parse_args(argv)
    if args.name is None:
        print_summaries(list_configs())
        return 0
    try:
        print(find_config(args.name).read_text(), end="")
    except FileNotFoundError as error:
        print_message(str(error))
        return 2
    return 0
