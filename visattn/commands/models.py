"""`visattn models`: list the trained models that come with visattn, or print the card of one."""

import argparse
from collections.abc import Sequence

from visattn.commands.options import CommandParser
from visattn.commands.streams import print_summaries
from visattn.io.messages import did_you_mean
from visattn.models.model_files import BUNDLED, bundled_models

_DESCRIPTION = """\
List the trained models that come with visattn, or print the card of one: data, training config,
test scores, limits. They are small and know synthetic scenes only."""

_EPILOG = """\
va.load(NAME) loads a model; --weights NAME uses it in a command:
  visattn data scenes --size 256 --out scenes
  visattn caption scenes --model scenes-captioner --out captions"""


_EXAMPLES = (
    "visattn models",
    "visattn models scenes-captioner",
)


def build_parser() -> argparse.ArgumentParser:
    """Return the options of the command."""
    parser = CommandParser(
        examples=_EXAMPLES, prog="visattn models", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="card to print (default: list)")
    return parser


def main(argv: Sequence[str]) -> int:
    """Print the list of models, or the card of one; return 0.

    Example:
        >>> main(["scenes-captioner"])
        ---
        library_name: visattn
        ...
        0
    """
    args = build_parser().parse_args(argv)
    if args.name is not None:
        if args.name not in bundled_models():
            hint = did_you_mean(args.name, bundled_models())
            raise FileNotFoundError(f"no model is named {args.name!r}; {hint}")
        print((BUNDLED / f"{args.name}.md").read_text(encoding="utf-8"), end="")
        return 0
    print_summaries(bundled_models())
    return 0
