"""`visattn export`: convert a training checkpoint to a safetensors file."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from visattn.commands.options.arguments import CommandParser
from visattn.commands.options.folders import create_folder
from visattn.commands.options.models import add_run
from visattn.commands.options.output_streams import print_row
from visattn.io.run_directory import find_run, run_checkpoint

_DESCRIPTION = """\
Convert a training checkpoint to one safetensors file with the weights, the model's configuration
and its preprocessing. Loading this file executes no code. Training is resumed from the checkpoint,
not from this file."""

_NO_SOURCE = """\
name what to export: --run FOLDER, for the best checkpoint of a run, or a checkpoint:
  visattn export --run runs/scenes_demo/1
  visattn export runs/scenes_demo/1/checkpoints/last.ckpt --out last.safetensors"""
_NAME = "model.safetensors"


def build_parser() -> argparse.ArgumentParser:
    """Return the argument parser of the command."""
    parser = CommandParser(prog="visattn export", description=_DESCRIPTION)
    parser.add_argument(
        "checkpoint", nargs="?", type=Path, metavar="CHECKPOINT", help=".ckpt file of visattn fit"
    )
    add_run(parser, "run directory of visattn fit, instead of CHECKPOINT: its best checkpoint")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help=f"output file, FILE.safetensors (default with --run: {_NAME} in the run directory)",
    )
    return parser


def main(argv: Sequence[str]) -> int:
    """Export the model of a checkpoint; return 0.

    Raises:
        FileNotFoundError: If the checkpoint does not exist.
        ValueError: If the file is not a visattn checkpoint, or the folder holds several runs.
        OSError: If the file cannot be written.
    """
    parser = build_parser()
    args = parser.parse_args(argv)
    if (args.checkpoint is None) == (args.run is None):
        parser.error(_NO_SOURCE)
    if args.out is None and args.run is None:
        parser.error("--out FILE.safetensors is missing")
    if args.out is not None and args.out.suffix != ".safetensors":
        parser.error(f"--out must end in .safetensors, got {args.out}")
    checkpoint, out = _input_and_output(args)
    create_folder(out.parent)
    from visattn.models.serialization.checkpoint import read_model
    from visattn.pipelines.model_io import save

    model = read_model(checkpoint)
    save(model, out)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print_row(out, f"{type(model).__name__}, {parameters:,} parameters")
    return 0


def _input_and_output(args: argparse.Namespace) -> tuple[Path, Path]:
    """Return the checkpoint and the output file."""
    if args.run is not None:
        run = find_run(args.run)
        return run_checkpoint(run), args.out or run / _NAME
    if args.checkpoint.is_dir():
        raise ValueError(f"{args.checkpoint} is a folder; export the folder of a run with --run")
    if args.checkpoint.suffix == ".safetensors":
        raise ValueError(f"{args.checkpoint} is exported already; a checkpoint ends in .ckpt")
    if not args.checkpoint.is_file():
        raise FileNotFoundError(
            f"{args.checkpoint} does not exist; visattn fit prints where it saves checkpoints"
        )
    return args.checkpoint, args.out
