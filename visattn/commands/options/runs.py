"""A trained model on a command line: a file that was exported, or a run as training left it."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch is loaded when a command runs, not for its help
    from torch.nn import Module


def add_model_source(parser: argparse.ArgumentParser) -> None:
    """Add `--weights` and `--run`, of which one is given.

    Args:
        parser: Of the command.
    """
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--weights", type=Path, metavar="FILE", help="model, as visattn export writes it"
    )
    add_run(source, "a run of visattn fit: the model of its best checkpoint")


def add_run(parser: "argparse._ActionsContainer", told: str) -> None:
    """Add `--run`.

    Args:
        parser: Of the command, or a group of it.
        told: What it is for.
    """
    parser.add_argument("--run", type=Path, metavar="FOLDER", help=told)


def model_file(asked: argparse.Namespace) -> Path:
    """Return the file that holds the model that is asked for.

    Args:
        asked: Options of `add_model_source`, one of them given.

    Raises:
        FileNotFoundError: If there is no such run, or no checkpoint in it.
        ValueError: If there are several runs where one was named, or the file is none to load.
    """
    from visattn.training.run_dir.find import finished_run, run_checkpoint

    if asked.run is not None:
        return run_checkpoint(finished_run(asked.run))
    if asked.weights.is_dir():
        raise ValueError(f"--weights {asked.weights} is a folder; if it is a run's, say --run")
    if asked.weights.suffix == ".ckpt":
        raise ValueError(
            f"{asked.weights} is a checkpoint of training: say --run with the folder of the run, "
            "or visattn export it"
        )
    return asked.weights


def trained_model(asked: argparse.Namespace) -> "tuple[Module, Path]":
    """Return the model that is asked for, and the file that it is from.

    Args:
        asked: Options of `add_model_source`, one of them given.

    Raises:
        FileNotFoundError: If there is no such file or run.
        ValueError: If the file is damaged, or holds no model of ours.
    """
    if asked.run is not None:
        return run_model(asked.run)
    from visattn.pipelines.save_load import load

    file = model_file(asked)
    return load(file), file


def run_model(folder: Path) -> "tuple[Module, Path]":
    """Return the model of a run's best checkpoint, and that file.

    Args:
        folder: The run, or the folder of a config that holds this run alone.

    Raises:
        FileNotFoundError: If there is no such run, or no checkpoint in it.
        ValueError: If there are several runs, or the checkpoint is damaged.
    """
    from visattn.training.checkpoint.reader import read_model
    from visattn.training.run_dir.find import finished_run, run_checkpoint

    file = run_checkpoint(finished_run(folder))
    return read_model(file), file
