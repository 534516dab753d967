"""Model options of the commands, and the models that they select."""

import argparse
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from visattn.commands.options.arguments import add_device, height_width, named_value
from visattn.io.run_directory import find_run, run_checkpoint
from visattn.io.safe_text import parse_json, short_repr
from visattn.io.terminal import print_message

if TYPE_CHECKING:  # torch is imported when a command runs, not for its help
    from torch import nn

    from visattn.models.backbones.loaded_model import LoadedModel
    from visattn.recording.model_info import ExplainedModel

_NUMBERED = re.compile(r"\d+(\s*[,;:\t]\s*|\s+)\w")
ModelT = TypeVar("ModelT", bound="nn.Module")


def add_weights(parser: argparse.ArgumentParser) -> None:
    """Add `--weights`, `--run` (one of them) and `--device`: a trained visattn model."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--weights",
        metavar="FILE",
        help="model file of visattn export; a name of visattn models; or hf://USER/NAME[@REVISION]",
    )
    add_run(source, "run directory of visattn fit: the model of its best checkpoint")
    add_device(parser)


def add_run(parser: "argparse._ActionsContainer", help_text: str) -> None:
    """Add `--run`.

    Args:
        parser: Parser or argument group.
        help_text: Help of the option.
    """
    parser.add_argument("--run", type=Path, metavar="FOLDER", help=help_text)


def add_model(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """Add `--model` and the options that say how this model is built.

    Args:
        parser: Parser of the command.
        required: Whether the command needs a model.
    """
    parser.add_argument(
        "--model",
        required=required,
        metavar="SPEC",
        help="timm:NAME, torchvision:NAME, hf:DIRECTORY, open_clip:NAME (with --text), run:FOLDER "
        "of visattn fit, a file of visattn export, a name of visattn models, hf://USER/NAME, or "
        "your own code: FILE.py:NAME or package.module:NAME, a class or function that builds "
        "the model (this code is executed)",
    )
    parser.add_argument(
        "--weights",
        type=Path,
        metavar="FILE",
        help="weights of the model: safetensors (file, folder or index of shards), .pth, .pt, "
        ".ckpt or .bin; loaded as plain tensors, nothing in the file is executed",
    )
    parser.add_argument(
        "--pretrained",
        action="store_true",
        help="download the pretrained weights of timm or torchvision",
    )
    parser.add_argument(
        "--model-arg",
        action="append",
        default=[],
        dest="model_args",
        type=_model_argument,
        metavar="NAME=VALUE",
        help="constructor argument of the model, such as pad_type=same; for timm also mean=, std= "
        "(can be repeated)",
    )
    _add_input_options(parser)


def _add_input_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--input-size",
        type=height_width,
        metavar="N|HxW",
        help="input height and width in pixels (default: those of the model)",
    )
    parser.add_argument(
        "--classes",
        type=Path,
        metavar="FILE",
        help="class names: a text file with one name per line, a JSON list, or a JSON object that "
        "maps class numbers to names",
    )
    add_device(parser)


def check_weights(args: argparse.Namespace) -> Path | str:
    """Return file or name of the model of `--weights` or `--run`, without importing torch.

    Args:
        args: Options of `add_weights`, one of the two set.

    Raises:
        FileNotFoundError: If there is no such run, or it has no checkpoint.
        ValueError: If the folder holds several runs, or the file cannot be an exported model.
    """
    if args.run is not None:
        return run_checkpoint(find_run(args.run))
    file = Path(args.weights)
    if file.is_dir():
        raise ValueError(
            f"--weights {args.weights} is a folder; load the folder of a run with --run"
        )
    if file.suffix == ".ckpt":
        raise ValueError(
            f"{args.weights} is a training checkpoint: pass the folder of its run with --run, or "
            "convert it with visattn export"
        )
    return args.weights if args.weights.startswith("hf://") else file


def load_trained_model(
    args: argparse.Namespace, kind: type[ModelT], name: str
) -> tuple[ModelT, str]:
    """Return the model that `--weights` or `--run` selects, on the device of `--device`.

    Args:
        args: Options of `add_weights`, one of the two set.
        kind: Class of models that the command takes.
        name: What the command calls them, with its article.

    Returns:
        The model, and its file.

    Raises:
        FileNotFoundError: If the file or run does not exist.
        ValueError: If the file is damaged, holds no visattn model or one of another kind, or the
            device is not available.
    """
    from visattn.pipelines.model_io import load_model

    weights = check_weights(args)
    loaded = load_model(weights if args.run is None else args.run)
    for note in loaded.notes:
        print_message(note)
    model = loaded.model
    if not isinstance(model, kind):
        raise ValueError(  # noqa: TRY004 (the file is wrong, not a type in the code)
            f"{loaded.weights} holds a {type(model).__name__}, which is not {name}"
        )
    move_to_device(model, args.device)
    return model, loaded.weights


def load_explained_model(
    args: argparse.Namespace, *, dense: bool = False
) -> "tuple[LoadedModel, ExplainedModel]":
    """Return the model of `--model` on its device, and its analysis for attribution methods.

    Args:
        args: Options of `add_model`.
        dense: Whether a pixel, region, box or query is explained; the model is then not run.

    Raises:
        FileNotFoundError: If a file, directory or run does not exist.
        ValueError: If the name, an argument, the weights or the device cannot be used, or the model
            is a captioner.
    """
    from visattn.attribution.explained_model import analyze_model, describe_model
    from visattn.models.captioner import Captioner
    from visattn.pipelines.inputs import transform_colors, with_colors
    from visattn.pipelines.model_io import load_model

    loaded = load_model(
        args.model,
        weights=args.weights,
        pretrained=args.pretrained,
        model_kwargs=dict(args.model_args) or None,
        text=getattr(args, "text", None),
    )
    if isinstance(loaded.model, Captioner):
        raise ValueError(  # noqa: TRY004 (the file is wrong, not a type in the code)
            f"{args.model} holds a {type(loaded.model).__name__}, which has no class scores: use "
            "visattn caption to show the attention of its words"
        )
    for note in loaded.notes:
        print_message(note)
    move_to_device(loaded.model, args.device)
    class_names = None if args.classes is None else read_class_names(args.classes)
    analyze = describe_model if dense else analyze_model
    explained = analyze(loaded.model, args.input_size, class_names)
    resized = args.input_size or getattr(args, "resize_mode", None)
    if resized and loaded.transform is not None:  # only its colors are kept
        explained = with_colors(explained, *transform_colors(loaded.transform))
        loaded = replace(loaded, transform=None)
    if not explained.class_names:
        explained = replace(explained, class_names=loaded.class_names)
    return loaded, explained


def move_to_device(model: "nn.Module", device: str) -> None:
    """Set a model to evaluation mode and move it to a device.

    Args:
        model: Modified in place.
        device: Name of a torch device: `cpu`, `cuda`, `cuda:1`, `mps`.

    Raises:
        ValueError: If the device is not available.
    """
    import torch

    try:
        target = torch.device(device)
        torch.ones((), device=target).add(1).item()  # fails on meta, which has no values
        model.eval().to(target)
    except (RuntimeError, AssertionError, ImportError) as error:  # torch asserts CUDA support
        reason = str(error).splitlines()[0]
        if "Expected one of" in reason:  # followed by every backend torch has ever had
            reason = "expected cpu, cuda, cuda:N or mps"
        raise ValueError(f"--device {device:.40} is not available: {reason:.200}") from error


def read_class_names(file: Path) -> "list[str] | dict[str, str]":
    """Return class names from a file.

    Args:
        file: One name per line; or JSON, a list of names or an object from numbers to names.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file has another form.

    Example:
        >>> file = getfixture("tmp_path") / "classes.txt"
        >>> file.write_text('["cat", "dog"]')
        14
        >>> read_class_names(file)
        ['cat', 'dog']
    """
    if not file.is_file():
        raise FileNotFoundError(f"--classes {file} does not exist, or is not a file")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"--classes {file} is not UTF-8 text: {error}") from error
    if text.lstrip()[:1] not in ("[", "{"):
        names = [name for line in text.splitlines() if (name := line.strip())]
        if len(names) > 1 and all(_NUMBERED.match(name) for name in names):
            raise ValueError(
                f"--classes {file} has a number before each name, such as {short_repr(names[0])}: "
                'write the names alone, or a JSON object as in {"0": "cat", "1": "dog"}'
            )
        return names
    try:
        content = parse_json(text)
    except ValueError as error:
        raise ValueError(f"--classes {file}: {error}") from error
    names = list(content.values()) if isinstance(content, dict) else content
    numbered = not isinstance(content, dict) or all(key.isdecimal() for key in content)
    if not numbered or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"--classes {file} must be a list of names, or an object from numbers to names as in "
            '{"0": "cat", "1": "dog"}'
        )
    return content


def _model_argument(text: str) -> tuple[str, Any]:
    """Return name and value of a constructor argument; mean and std as one number per channel."""
    name, value = named_value(text)
    if name in ("mean", "std"):
        if isinstance(value, int | float):
            value = (value,) * 3
        if isinstance(value, str):
            raise argparse.ArgumentTypeError(
                f"{name} must be a number, or one per channel as in 0.5,0.5,0.5; got {value!r}"
            )
    return name, tuple(value) if isinstance(value, list) else value
