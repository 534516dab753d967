"""`visattn export`: from a training checkpoint to the one file that is passed on."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from visattn.commands.folders import prepare_folder

_DESCRIPTION = """\
Turn a training checkpoint into one safetensors file: the weights, how to build the model, how to
feed it. The file executes nothing when it is loaded; training is resumed from the checkpoint."""


def parser() -> argparse.ArgumentParser:
    """Return the options of the command."""
    made = argparse.ArgumentParser(
        prog="visattn export",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("checkpoint", type=Path, metavar="CHECKPOINT", help=".ckpt of visattn fit")
    made.add_argument("--out", type=Path, metavar="FILE", required=True, help="FILE.safetensors")
    return made


def main(argv: Sequence[str]) -> int:
    """Write the model of a checkpoint; return 0.

    Raises:
        FileNotFoundError: If there is no checkpoint.
        ValueError: If it is not a checkpoint of ours.
        OSError: If the file cannot be written.
    """
    options = parser()
    asked = options.parse_args(argv)
    if asked.out.suffix != ".safetensors":
        options.error(f"--out must end in .safetensors, got {asked.out}")
    if not asked.checkpoint.is_file():
        raise FileNotFoundError(
            f"{asked.checkpoint} does not exist; visattn fit says where it saves"
        )
    prepare_folder(asked.out.parent)
    from visattn.seeing import save
    from visattn.tasks.checkpoints import read_model

    model = read_model(asked.checkpoint)
    save(model, asked.out)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    print(f"{asked.out}\t{type(model).__name__}, {parameters:,} parameters")
    return 0
