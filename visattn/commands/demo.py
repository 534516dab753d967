"""`visattn demo`: draw scenes, caption them with a bundled model, and open the page."""

import argparse
import sys
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from visattn.commands import data
from visattn.commands.caption import command as caption
from visattn.commands.options import OUTPUT, RUN, CommandParser, seed, whole_number
from visattn.commands.output_option import output_path
from visattn.commands.records import INDEX
from visattn.io.safe_text import print_message

_DESCRIPTION = """\
Draw scenes of colored shapes, caption them with the attention of each word, and open the page in a
browser. The model, scenes-captioner, comes with visattn: nothing is downloaded or trained."""

_EPILOG = """\
Writes DIR/images, with the true captions, and DIR/captions, as visattn caption does; its index.html
shows all scenes. visattn models scenes-captioner prints the card of the model."""

_MODEL = "scenes-captioner"
_SIDE = 256  # of a scene in pixels: large enough for the eye


_EXAMPLES = ("visattn demo", "visattn demo --count 4 --seed 7 --out scenes --no-open")


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = CommandParser(
        examples=_EXAMPLES, prog="visattn demo", description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.group(OUTPUT).add_argument(
        "--out",
        type=output_path,
        metavar="DIR",
        default=Path("visattn-demo"),
        help="output folder (default: visattn-demo)",
    )
    parser.group(OUTPUT).add_argument(
        "--count", type=whole_number(1, 100), default=6, help="number of scenes (default: 6)"
    )
    parser.group(RUN).add_argument(
        "--seed", type=seed, default=0, help="seed of the scenes (default: 0)"
    )
    parser.group(OUTPUT).add_argument(
        "--no-open",
        action="store_true",
        help="do not open the page; it is opened only if the output goes to a terminal",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Write and open the page; return 0, or 1 if a scene could not be captioned."""
    args = build_parser().parse_args(argv)
    images = args.out / "images"
    captions = args.out / "captions"
    drawn = ["--count", str(args.count), "--size", str(_SIDE), "--seed", str(args.seed)]
    data.main(["scenes", *drawn, "--out", str(images)])
    code = caption.main([str(images), "--weights", _MODEL, "--out", str(captions)])
    page = (captions / INDEX).resolve()
    if not args.no_open and sys.stdout.isatty() and webbrowser.open(page.as_uri()):
        print_message(f"opened {page}")
    return code
