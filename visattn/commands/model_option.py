"""Option `--model`, and the provenance of results: digests of images, weights and code."""

import argparse
import hashlib
import re
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from visattn.commands.options import (
    MODEL,
    CommandParser,
    add_options,
    height_width,
    named_value,
    quoted,
)
from visattn.io.safe_text import parse_json, print_message, short_repr
from visattn.io.sources import Source
from visattn.models.model_files import bundled_models, find_model

if TYPE_CHECKING:
    from torch import nn

    from visattn.pipelines.explainer import Explainer


_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".json")  # files of a Hugging Face directory
DIGEST_LENGTH = 16  # hexadecimal digits


def file_digest(path: Source) -> str:
    """Return the first 16 hexadecimal digits of the SHA-256 of a file.

    Raises:
        OSError: If it cannot be read.

    Example:
        >>> file = getfixture("tmp_path") / "a"
        >>> file.write_bytes(b"abc")
        3
        >>> file_digest(file)
        'ba7816bf8f01cfea'
    """
    from visattn.io.safe_text import open_regular_file

    if not isinstance(path, Path):
        return path.digest()[:DIGEST_LENGTH]
    with open_regular_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:DIGEST_LENGTH]


def weights_origin(weights: str) -> str | dict[str, str]:
    """Return the origin of the weights of a model, for records of results.

    Args:
        weights: As `Loaded.weights` names them.

    Returns:
        `random` or `pretrained`; for a file, a folder, a model that comes with visattn or one of
        the hub its name and digests of its content.

    Raises:
        OSError: If the file cannot be read.

    Example:
        >>> file = getfixture("tmp_path") / "a.safetensors"
        >>> file.write_bytes(b"abc")
        3
        >>> weights_origin("random"), weights_origin(str(file))
        ('random', {'file': 'a.safetensors', 'sha256': 'ba7816bf8f01cfea'})
    """
    path = Path(weights)
    name = path.name
    if weights.startswith("hf://"):
        path, name = find_model(weights), weights
    elif not path.exists() and weights in bundled_models():
        path = find_model(weights)
        name = path.name
    if path.is_dir():
        files = (
            file
            for file in sorted(path.iterdir())
            if file.suffix in _WEIGHT_SUFFIXES and file.is_file()
        )
        return {"folder": name, **{file.name: file_digest(file) for file in files}}
    if weights in ("random", "pretrained") or not path.is_file():
        return weights
    return {"file": name, "sha256": file_digest(path)}


def user_code_digest(model: str) -> str:
    """Return a digest of the user code that builds a model, and of the modules beside it.

    Of modules in the folder of the code, or in its package, those count that are loaded: call it
    when the model was built.

    Args:
        model: Value of `--model`, such as `my_net.py:Net`; "" is returned for library models.

    Raises:
        OSError: If a file cannot be read.

    Example:
        >>> file = getfixture("tmp_path") / "net.py"
        >>> file.write_text("abc")
        3
        >>> user_code_digest(f"{file}:Net"), user_code_digest("timm:resnet18")
        ('ba7816bf8f01cfea', '')
    """
    from visattn.models.backbones.names import user_code_file

    file = user_code_file(model)
    if file is None:
        return ""
    file = file.resolve()
    folder = file.parent
    while (folder / "__init__.py").is_file():  # the root of a package
        folder = folder.parent
    others = sorted(path for path in _loaded_files(folder) if path != file)
    digests = [file_digest(path) for path in (file, *others)]
    if len(digests) == 1:
        return digests[0]
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:DIGEST_LENGTH]


def _loaded_files(folder: Path) -> set[Path]:
    """Return the files of loaded modules in a folder, without those of installed packages."""
    files: set[Path] = set()
    own = Path(__file__).parents[1]
    for module in list(sys.modules.values()):
        name = getattr(module, "__file__", None)
        if not isinstance(name, str):
            continue
        path = Path(name)
        installed = {"site-packages", "dist-packages"} & {*path.parts}
        if path.is_relative_to(folder) and not path.is_relative_to(own) and not installed:
            files.add(path.resolve())
    return {path for path in files if path.is_file()}


# As in "0, cat" or "0 cat", which would become names with numbers in them.
_NUMBERED = re.compile(r"\d+(\s*[,;:\t]\s*|\s+)\w")
ModelT = TypeVar("ModelT", bound="nn.Module")


def add_model(parser: CommandParser, *, builds: bool = False, required: bool = False) -> None:
    """Add `--model` with its aliases `--weights` and `--run`, and `--device`.

    A model is named in the same way in all commands; `resolve_model` reads the options.

    Args:
        parser: Parser of the command.
        builds: Whether the command takes models of other libraries, too: adds the options that say
            how they are built, and what their input and classes are.
        required: Whether the command line needs `--model` itself.
    """
    group = parser.group(MODEL)
    group.add_argument(
        "--model",
        required=required,
        metavar="SPEC",
        help="a file of visattn export, a run directory of visattn fit (its best checkpoint) or a "
        "checkpoint, a name of visattn models, hf://USER/NAME[@REVISION], timm:NAME, "
        "torchvision:NAME, hf:DIRECTORY of transformers, or your own code: FILE.py:NAME or "
        "package.module:NAME, a class or function that builds the model (this code is executed)",
    )
    group.add_argument(
        "--weights",
        metavar="FILE",
        help="weights of timm:NAME, torchvision:NAME or your own code: .safetensors, .pth, .pt, "
        ".ckpt or .bin, loaded as plain tensors, nothing in the file is executed; without --model "
        "the same as --model FILE",
    )
    group.add_argument(
        "--run",
        type=Path,
        metavar="FOLDER",
        help="the same as --model FOLDER, for a run directory of visattn fit",
    )
    if builds:
        group.add_argument(
            "--pretrained",
            action="store_true",
            help="download the pretrained weights of timm or torchvision",
        )
        group.add_argument(
            "--model-arg",
            nargs="+",
            default=[],
            dest="model_args",
            type=_model_argument,
            metavar="NAME=VALUE",
            help="constructor arguments of the model, such as pad_type=same drop_rate=0.1",
        )
        _add_input_options(group)
    add_options(parser, "device")


def resolve_model(
    parser: argparse.ArgumentParser, args: argparse.Namespace, missing: str = ""
) -> None:
    """Set `args.model` to the selected model and `args.weights` to its weights, or exit.

    torch is not imported: a missing run is reported at once.

    Args:
        parser: Parser of the command.
        args: Options of `add_model`.
        missing: Message if no model is selected; "" if the command needs none.

    Raises:
        FileNotFoundError: If there is no such run, or it has no checkpoint.
        ValueError: If the folder holds several runs.
    """
    if args.run is not None and (args.model is not None or args.weights is not None):
        parser.error("--run cannot be combined with --model or --weights: pass one model")
    is_run = args.run is not None
    if is_run:
        args.model = str(args.run)
        args.run = None
    elif args.model is None:
        args.model = args.weights
        args.weights = None
    args.weights = None if args.weights is None else Path(args.weights)
    if args.model is None:
        if missing:
            parser.error(missing)
        return
    if args.weights is not None and is_transformers(args.model):
        parser.error(f"--weights has no use beside --model {args.model}: pass one model")
    if is_run or Path(args.model).expanduser().is_dir():
        find_model(args.model)


def is_transformers(model: str) -> bool:
    """Return whether a model is a directory of transformers, `hf:DIRECTORY`.

    Args:
        model: Value of `--model`.

    Example:
        >>> [is_transformers(model) for model in ("hf:blip", "hf://user/name", "timm:resnet18")]
        [True, False, False]
    """
    return model.startswith("hf:") and not model.startswith("hf://")


def _add_input_options(group: "argparse._ArgumentGroup") -> None:
    group.add_argument(
        "--input-size",
        type=height_width,
        metavar="N|HxW",
        help="input height and width in pixels (default: those of the model)",
    )
    group.add_argument(
        "--classes",
        type=Path,
        metavar="FILE",
        help="class names: a text file with one name per line, a JSON list, or a JSON object that "
        "maps class numbers to names",
    )
    for name, what in (("mean", "mean"), ("std", "standard deviation")):
        group.add_argument(
            f"--{name}",
            type=channel_numbers,
            metavar="N,N,...",
            help=f"{what} that images are normalized with, of all channels or of each, where "
            "pixels are 0 to 1 (default: that of the model, or what is said to be assumed)",
        )
    group.add_argument(
        "--transform",
        metavar="FILE.py:NAME",
        help="preprocessing in place of that of the model: FILE.py:NAME or package.module:NAME, a "
        "transform of torchvision or timm, or a function that returns one (this code is executed)",
    )


def load_trained_model(
    args: argparse.Namespace, kind: type[ModelT], name: str
) -> tuple[ModelT, str]:
    """Return the selected model on the device of `--device`.

    Args:
        args: Options of `add_model`, after `resolve_model`.
        kind: Class of models that the command takes.
        name: What the command calls them, with its article.

    Returns:
        The model, and the origin of its weights.

    Raises:
        FileNotFoundError: If the file or run does not exist.
        ValueError: If the file is damaged, holds no visattn model or one of another kind, or the
            device is not available.
    """
    from visattn.models.loaded import loaded_with
    from visattn.models.saving import load

    model = load(args.model, weights=args.weights)
    _report_notes(model, args)
    weights = loaded_with(model).weights
    if not isinstance(model, kind):
        origin = args.model if weights == "random" else weights
        raise ValueError(  # noqa: TRY004 (the file is wrong, not a type in the code)
            f"{origin} holds a {type(model).__name__}, which is not {name}"
        )
    move_to_device(model, args.device)
    return model, weights


def _report_notes(model: "nn.Module", args: argparse.Namespace) -> None:
    """Print what the user of a model must know, unless it does not matter for these images."""
    from visattn.models.loaded import loaded_with

    loaded = loaded_with(model)
    # The models that come with visattn are trained on scenes that it draws.
    if loaded.weights in bundled_models() and _are_drawn_scenes(args):
        return
    for note in loaded.notes:
        print_message(note)


def _are_drawn_scenes(args: argparse.Namespace) -> bool:
    """Whether all images of a command are scenes that visattn has drawn."""
    from visattn.commands.data import drawn_files

    if str(getattr(args, "data", "")).startswith("scenes:"):
        return True
    images = getattr(args, "images", None)
    paths = images if isinstance(images, list) else []
    if not all(isinstance(path, Path) for path in paths):
        return False  # on the web, where photos are anyone's
    folders = {path if path.is_dir() else path.parent for path in paths}
    lists = [drawn_files(folder)[:1] for folder in folders]
    return bool(lists) and all(each and each != ["digits.jsonl"] for each in lists)


def model_settings(args: argparse.Namespace, weights: str) -> dict[str, Any]:
    """Return what identifies a loaded model, by the content of its files, for records of results.

    Args:
        args: Options of `add_model`, after `resolve_model`.
        weights: Origin of its weights, as `Loaded.weights` names it.

    Raises:
        OSError: If a file cannot be read.
    """
    spec = args.model
    is_file = Path(spec).expanduser().exists()
    return {
        "model": Path(spec).name if is_file else spec,
        "code": user_code_digest(spec),
        "weights": weights_origin(weights),
        "pretrained": getattr(args, "pretrained", False),
        "model_args": dict(getattr(args, "model_args", ())),
        **_passed_preprocessing(args),
    }


def input_settings(args: argparse.Namespace) -> dict[str, Any]:
    """Return what else decides on inputs and places of maps, for records of results.

    Args:
        args: Options of `add_model` and `--resize-mode`.
    """
    return {
        "input_size": args.input_size,
        "classes": args.classes and file_digest(args.classes),
        "resize_mode": args.resize_mode,
    }


def _passed_preprocessing(args: argparse.Namespace) -> dict[str, Any]:
    """Return mean, std and transform of the command line, where they are set."""
    values = {name: getattr(args, name, None) for name in ("mean", "std", "transform")}
    if values["transform"]:
        values["transform_code"] = user_code_digest(values["transform"])
    return {name: value for name, value in values.items() if value is not None}


class Explained(NamedTuple):
    """The model of `--model`, as attribution methods see it."""

    explainer: "Explainer"
    weights: str
    """Origin of the weights."""


def load_explained_model(args: argparse.Namespace, *, dense: bool = False) -> Explained:
    """Return the model of `--model` on its device, to be explained by attribution methods.

    Args:
        args: Options of `add_model`.
        dense: Whether a pixel, region, box or query is explained; the model is then not run.

    Raises:
        FileNotFoundError: If a file, directory or run does not exist.
        ValueError: If the name, an argument, the weights or the device cannot be used, or the model
            is a captioner.
    """
    from visattn.models.backbones.names import load_object
    from visattn.models.captioning.captioner import Captioner
    from visattn.models.loaded import loaded_with
    from visattn.models.saving import load
    from visattn.pipelines.explainer import Explainer

    resize_mode = getattr(args, "resize_mode", None)
    if (args.input_size or resize_mode) and args.transform:
        raise ValueError("--transform resizes images: --input-size and --resize-mode have no use")
    texts = getattr(args, "text", None)
    if texts and args.classes is not None:
        raise ValueError("the texts are the classes of the model: --classes has no use")
    kwargs = dict(args.model_args)
    model = load(args.model, weights=args.weights, pretrained=args.pretrained, model_kwargs=kwargs)
    _report_notes(model, args)
    if isinstance(model, Captioner):
        raise ValueError(  # noqa: TRY004 (the file is wrong, not a type in the code)
            f"{args.model} holds a {type(model).__name__}, which has no class scores: use "
            "visattn caption to show the attention of its words"
        )
    explainer = Explainer(
        model,
        img_size=args.input_size,
        class_names=None if args.classes is None else read_class_names(args.classes),
        transform=None if args.transform is None else load_object(args.transform),
        resize_mode=resize_mode,
        dense=dense,
        text=texts or None,
        mean=args.mean,
        std=args.std,
    )
    if not texts and explainer.model is not model:
        print_message(f"only the vision tower of {type(model).__name__} is used")
    move_to_device(explainer.model, args.device)
    explainer.analyze()
    return Explained(explainer, loaded_with(model).weights)


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


def autocast(args: argparse.Namespace) -> "AbstractContextManager[Any]":
    """Return the autocast context of `--autocast` and `--device`, or a null context.

    Args:
        args: Options of the command.

    Example:
        >>> with autocast(argparse.Namespace(autocast="bfloat16", device="cpu")):
        ...     (torch.ones(2, 3) @ torch.ones(3, 2)).dtype
        torch.bfloat16
    """
    if getattr(args, "autocast", None) is None:
        return nullcontext()
    import torch

    return torch.autocast(torch.device(args.device).type, getattr(torch, args.autocast))


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
    """Return name and value of a constructor argument."""
    name, value = named_value(text)
    return name, tuple(value) if isinstance(value, list) else value


def channel_numbers(text: str) -> float | tuple[float, ...]:
    """Return a number for all channels, or one for each.

    Raises:
        argparse.ArgumentTypeError: If the text has another form.

    Example:
        >>> channel_numbers("0.5"), channel_numbers("0.5,0.4,0.1")
        (0.5, (0.5, 0.4, 0.1))
    """
    try:
        # `float` takes 1_0, and digits of other scripts.
        parts = text.split(",") if text.isascii() and "_" not in text else ()
        numbers = tuple(map(float, parts))
    except ValueError:
        numbers = ()
    if not numbers or not all(abs(number) < 1e9 for number in numbers):
        raise argparse.ArgumentTypeError(
            f"must be a number, or one per channel as in 0.5,0.5,0.5; got {quoted(text)}"
        )
    return numbers[0] if len(numbers) == 1 else numbers
