"""`visattn export`: from a training checkpoint to the one file that is passed on."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from visattn.commands.options.folders import prepare_folder
from visattn.commands.options.output_streams import print_row
from visattn.commands.options.parser import CommandParser
from visattn.commands.options.runs import add_run

_DESCRIPTION = """\
Turn a training checkpoint into one safetensors file: the weights, how to build the model, how to
feed it. The file executes nothing when it is loaded; training is resumed from the checkpoint."""

_NOTHING = """\
say what is exported: --run FOLDER, for the best checkpoint of a run, or a checkpoint:
  visattn export --run runs/scenes_demo/1
  visattn export runs/scenes_demo/1/checkpoints/last.ckpt --out last.safetensors"""
_NAME = "model.safetensors"


def parser() -> argparse.ArgumentParser:
    """Return the options of the command."""
    made = CommandParser(
        prog="visattn export",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument(
        "checkpoint", nargs="?", type=Path, metavar="CHECKPOINT", help=".ckpt of visattn fit"
    )
    add_run(made, "a run of visattn fit, in place of CHECKPOINT: its best one")
    made.add_argument(
        "--out", type=Path, metavar="FILE", help=f"FILE.safetensors (with --run, {_NAME} in it)"
    )
    return made


def main(argv: Sequence[str]) -> int:
    """Write the model of a checkpoint; return 0.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: If it is not a checkpoint of ours, or several runs lie where one was named.
        OSError: If the file cannot be written.
    """
    options = parser()
    asked = options.parse_args(argv)
    if (asked.checkpoint is None) == (asked.run is None):
        options.error(_NOTHING)
    if asked.out is None and asked.run is None:
        options.error("--out FILE.safetensors is missing")
    if asked.out is not None and asked.out.suffix != ".safetensors":
        options.error(f"--out must end in .safetensors, got {asked.out}")
    checkpoint, out = _files(asked)
    prepare_folder(out.parent)
    from visattn.pipelines.save_load import save
    from visattn.training.checkpoint.reader import read_model

    model = read_model(checkpoint)
    save(model, out)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print_row(out, f"{type(model).__name__}, {parameters:,} parameters")
    return 0


def _files(asked: argparse.Namespace) -> tuple[Path, Path]:
    """Return the checkpoint that is read, and the file that is written."""
    if asked.run is None:
        if asked.checkpoint.is_dir():
            raise ValueError(f"{asked.checkpoint} is a folder; if it is a run's, say --run")
        if asked.checkpoint.suffix == ".safetensors":
            raise ValueError(f"{asked.checkpoint} is exported already; a checkpoint ends in .ckpt")
        if not asked.checkpoint.is_file():
            raise FileNotFoundError(
                f"{asked.checkpoint} does not exist; visattn fit says where it saves"
            )
        return asked.checkpoint, asked.out
    from visattn.training.run_dir.find import finished_run, run_checkpoint

    run = finished_run(asked.run)
    return run_checkpoint(run), asked.out or run / _NAME
