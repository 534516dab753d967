"""Any model that a command line names, as methods take it."""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.devices import move_to_device
from visattn.commands.run_models import run_model
from visattn.commands.streams import print_remark
from visattn.commands.values import named_value

if TYPE_CHECKING:  # torch is loaded when a command runs, not for its help
    from visattn.maps.model_cards import Subject
    from visattn.models.library_models import NamedModel

_CHANNELS = ("mean", "std")


def add_model_options(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add what names a model and says how it is to be built.

    Args:
        parser: Of the command.
        required: Whether there must be a model.
    """
    parser.add_argument(
        "--model",
        required=required,
        metavar="SPEC",
        help="timm:NAME, torchvision:NAME, hf:DIRECTORY, run:FOLDER as visattn fit left it, a file "
        "that visattn export wrote, or your own code as FILE.py:NAME or package.module:NAME, with "
        "a class or function that builds the model: that code is run",
    )
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="of the model: safetensors, its shards' index or folder, .pth, .pt, .ckpt or .bin "
        "(as plain weights; nothing in them is run)",
    )
    parser.add_argument(
        "--pretrained", action="store_true", help="the library's own weights, by download"
    )
    parser.add_argument(
        "--argument",
        action="append",
        default=[],
        type=_argument,
        metavar="NAME=VALUE",
        help="of the constructor, such as pad_type=same; for timm also mean=, std=",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps (cpu)")


def chosen_model(asked: argparse.Namespace) -> "tuple[NamedModel, Subject]":
    """Return the model that was named, on its device, and how methods see it.

    Args:
        asked: Options of `add_model_options`.

    Raises:
        FileNotFoundError: If a file, directory or run does not exist.
        ValueError: If the name, an argument, the weights or the device cannot be used, or the model
            is a captioner.
    """
    from visattn.maps.subjects import subject_of
    from visattn.models.captioners import Captioner

    named = _named(asked)
    if isinstance(named.model, Captioner):
        kind = type(named.model).__name__
        raise ValueError(  # noqa: TRY004 (a file's fault)
            f"{asked.model} holds a {kind}, which has no classes: visattn caption shows where its "
            "words looked"
        )
    for note in named.notes:
        print_remark(note)
    move_to_device(named.model, asked.device)
    subject = subject_of(named.model)
    return named, subject if subject.classes else replace(subject, classes=named.classes)


def _named(asked: argparse.Namespace) -> "NamedModel":
    from visattn.models.library_models import NamedModel
    from visattn.seeing.named_models import named_model

    arguments = dict(asked.argument) or None
    if not asked.model.startswith("run:") or asked.weights or asked.pretrained or arguments:
        return named_model(
            asked.model,
            weights=asked.weights,
            pretrained=asked.pretrained,
            arguments=arguments,
        )
    model, file = run_model(Path(asked.model.removeprefix("run:")).expanduser())
    return NamedModel(model, None, tuple(map(str, getattr(model, "classes", ()))), str(file))


def _argument(text: str) -> tuple[str, Any]:
    """Return an argument of a constructor; of colours one number for each channel."""
    name, value = named_value(text)
    if name in _CHANNELS and isinstance(value, int | float):
        value = (value,) * 3
    if name in _CHANNELS and isinstance(value, str):
        raise argparse.ArgumentTypeError(
            f"{name} must be a number, or one for each channel as in 0.5,0.5,0.5; got {value!r}"
        )
    return name, tuple(value) if isinstance(value, list) else value
