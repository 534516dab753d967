"""Any model that a command line names, as methods take it."""

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from visattn.commands.options.devices import move_to_device
from visattn.commands.options.output_streams import print_remark
from visattn.commands.options.runs import run_model
from visattn.commands.options.values import named_value, sides

if TYPE_CHECKING:  # torch is loaded when a command runs, not for its help
    from visattn.models.backbones.pretrained import NamedModel
    from visattn.recording.model_info import ExplainedModel

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
    parser.add_argument(
        "--input-size",
        type=sides,
        metavar="N|YxX",
        help="height and width of the images that the network takes (what the model says)",
    )
    parser.add_argument(
        "--classes",
        type=Path,
        metavar="FILE",
        help="names of the classes, one a line; or as JSON, a list or names by number",
    )
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps (cpu)")


def chosen_model(asked: argparse.Namespace) -> "tuple[NamedModel, ExplainedModel]":
    """Return the model that was named, on its device, and how methods see it.

    Args:
        asked: Options of `add_model_options`.

    Raises:
        FileNotFoundError: If a file, directory or run does not exist.
        ValueError: If the name, an argument, the weights or the device cannot be used, or the model
            is a captioner.
    """
    from visattn.attribution.explained_model import subject_of
    from visattn.models.captioner import Captioner

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
    given = None if asked.classes is None else read_classes(asked.classes)
    subject = subject_of(named.model, asked.input_size, given)
    if asked.input_size:  # which the library's own preprocessing would not give
        named = replace(named, transform=None)
    return named, subject if subject.classes else replace(subject, classes=named.classes)


def read_classes(file: Path) -> "list[str] | dict[str, str]":
    """Return names of classes from a file.

    Args:
        file: One name a line; or JSON, a list of names or a mapping from numbers to names.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it holds something else.

    Example:
        >>> file = getfixture("tmp_path") / "classes.txt"
        >>> file.write_text('["cat", "dog"]')
        14
        >>> read_classes(file)
        ['cat', 'dog']
    """
    if not file.is_file():
        raise FileNotFoundError(f"--classes {file} does not exist, or is no file")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"--classes {file} is no text in UTF-8: {error}") from error
    if text.lstrip()[:1] not in ("[", "{"):
        return [name for line in text.splitlines() if (name := line.strip())]
    try:
        held = json.loads(text)
    except ValueError as error:
        raise ValueError(f"--classes {file} is no JSON: {error}") from error
    names = list(held.values()) if isinstance(held, dict) else held
    numbered = not isinstance(held, dict) or all(key.isdecimal() for key in held)
    if not numbered or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"--classes {file} must be a list of names, or names by number as in "
            '{"0": "cat", "1": "dog"}'
        )
    return held


def _named(asked: argparse.Namespace) -> "NamedModel":
    from visattn.models.backbones.pretrained import NamedModel
    from visattn.pipelines.model_spec import named_model

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
    """Return an argument of a constructor; of colors one number for each channel."""
    name, value = named_value(text)
    if name in _CHANNELS and isinstance(value, int | float):
        value = (value,) * 3
    if name in _CHANNELS and isinstance(value, str):
        raise argparse.ArgumentTypeError(
            f"{name} must be a number, or one for each channel as in 0.5,0.5,0.5; got {value!r}"
        )
    return name, tuple(value) if isinstance(value, list) else value
