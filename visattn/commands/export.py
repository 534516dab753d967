"""`visattn export`: convert training checkpoints to safetensors."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from visattn.commands.files import create_folder
from visattn.commands.options import (
    MODEL,
    OUTPUT,
    CommandParser,
    add_overwrite,
    refuse_without,
)
from visattn.commands.output_option import output_name
from visattn.commands.streams import activity, print_row
from visattn.models.model_files import checkpoint_run, find_run, parse_hub_name, run_checkpoint

_DESCRIPTION = """\
Convert a training checkpoint to one safetensors file with the weights, the model's configuration
and its preprocessing. Loading this file executes no code. Training is resumed from the checkpoint,
not from this file.

--out hf://USER/NAME[@BRANCH] uploads the file to the Hugging Face hub, with a card of the training
config and the scores of visattn test."""

_NO_SOURCE = """\
name what to export: --run FOLDER, for the best checkpoint of a run, or a checkpoint:
  visattn export --run runs/scenes_demo/1
  visattn export runs/scenes_demo/1/checkpoints/last.ckpt --out last.safetensors"""
_NAME = "model.safetensors"

_EXAMPLES = ("visattn export --run runs/scenes_demo/1",)


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = CommandParser(examples=_EXAMPLES, prog="visattn export", description=_DESCRIPTION)
    parser.add_argument(
        "checkpoint", nargs="?", type=Path, metavar="CHECKPOINT", help=".ckpt file of visattn fit"
    )
    parser.group(MODEL).add_argument(
        "--run",
        type=Path,
        metavar="FOLDER",
        help="run directory of visattn fit, instead of CHECKPOINT: its best checkpoint",
    )
    parser.group(OUTPUT).add_argument(
        "--out",
        type=output_name,
        metavar="FILE",
        help="output file, .safetensors, or hf://USER/NAME[@BRANCH] (default with --run: "
        f"{_NAME} in the run directory)",
    )
    add_overwrite(parser, "a file")
    hub = parser.add_argument_group("card and repository on the hub")
    hub.add_argument("--summary", default="", metavar="TEXT", help="first sentences of the card")
    hub.add_argument("--license", default="", metavar="ID", help="license, such as apache-2.0")
    hub.add_argument("--private", action="store_true", help="make a new repository private")
    return parser


def main(argv: Sequence[str]) -> int:
    """Export the model of a checkpoint; return 0."""
    parser = build_parser()
    args = parser.parse_args(argv)
    if (args.checkpoint is None) == (args.run is None):
        parser.error(_NO_SOURCE)
    if args.out is None and args.run is None:
        parser.error("--out FILE.safetensors is missing")
    out = args.out or ""
    on_hub = out.startswith("hf://")
    hub_options = [name for name in ("summary", "license", "private") if vars(args)[name]]
    if hub_options and not on_hub:
        parser.error(f"--{hub_options[0]} belongs to --out hf://USER/NAME")
    if args.out is not None and not on_hub and Path(args.out).suffix != ".safetensors":
        parser.error(f"--out must end in .safetensors, got {args.out}")
    if on_hub:
        parse_hub_name(out)
        refuse_without(parser, args, ["overwrite"], "a file, --out FILE")
    checkpoint, out = _input_and_output(args)
    if not on_hub:
        file = Path(out)
        create_folder(file.parent)
        if file.exists() and not args.overwrite:
            raise FileExistsError(f"{file} exists: choose another --out, or pass --overwrite")
    with activity("loading the model") as shown:
        from visattn.models.card import model_card
        from visattn.models.saving import load, save

        model = load(checkpoint)
        shown.show(f"exporting to {out}")
        options = {"summary": args.summary, "license": args.license}
        run = checkpoint_run(checkpoint)
        card = model_card(model, str(out), run=run, **options) if on_hub else None
        save(model, out, card=card, private=args.private)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print_row(out, f"{type(model).__name__}, {parameters:,} parameters")
    return 0


def _input_and_output(args: argparse.Namespace) -> tuple[Path, Path | str]:
    """Return the checkpoint, and the output file or its name on the hub."""
    if args.run is not None:
        run = find_run(args.run)
        return run_checkpoint(run), args.out or run / _NAME
    checkpoint = args.checkpoint
    if checkpoint.suffix != ".ckpt" and not checkpoint.is_dir():
        raise ValueError(f"{checkpoint} is exported already, or no checkpoint: it ends in .ckpt")
    if checkpoint.is_dir():
        raise ValueError(f"{checkpoint} is a folder; export the folder of a run with --run")
    if not checkpoint.is_file():
        raise FileNotFoundError(
            f"{checkpoint} does not exist; visattn fit prints where it saves checkpoints"
        )
    return checkpoint, args.out
