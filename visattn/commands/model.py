"""Option `--model`: loads a model by name, with the values that identify it in records."""

import hashlib
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TypeVar

from tyro.conf import arg

from visattn.commands.arguments import File, Numbers, Values, Word
from visattn.commands.files import DIGEST_LENGTH, file_digest
from visattn.commands.streams import activity
from visattn.io.messages import format_names
from visattn.io.safe_text import (
    decode_utf8,
    parse_json,
    print_message,
    read_bytes_bounded,
    reading,
    short_repr,
)
from visattn.models.model_files import bundled_models, find_model

if TYPE_CHECKING:  # imported when the command runs, so that --help is fast
    from torch import nn

    from visattn.pipelines.explainer import Explainer

# "0, cat" and "0 cat": the number would become part of the name.
_NUMBERED = re.compile(r"\d+(\s*[,;:\t]\s*|\s+)\w")
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".json")  # files of a Hugging Face directory
ModelT = TypeVar("ModelT")
DEFAULTS = {
    "caption": "photo-captioner",
    "overlay": "imagenet-classifier",
    "score maps": "imagenet-classifier",
    "glimpse": "ram_scenes",
    "ask": "sort_of_clevr_cross",
    "detect": "scenes_detr",
    "segment": "scenes_unet",
}
"""Default models of the commands: a bundled model, or the config that trains one."""


@dataclass(frozen=True)
class ModelOptions:
    """The model to use.

    Args:
        model: a name of visattn models, a file of visattn export, a run of visattn fit (its best
            checkpoint), a checkpoint, hf://USER/NAME[@REVISION], timm:NAME, torchvision:NAME,
            hf:DIRECTORY of transformers, or your own code, which is executed: FILE.py:NAME or
            package.module:NAME (default: imagenet-classifier for overlay and score maps)
        weights: weights for timm:NAME, torchvision:NAME or your own code; no code in the file is
            executed
        device: torch device: cpu, cuda, cuda:1, mps
    """

    model: Annotated[Word, arg(metavar="SPEC")] = ""
    weights: File = None
    device: str = "cpu"

    def named(self, command: str) -> Self:
        """Return these options, with the default model of a command if `model` is empty.

        Raises:
            ValueError: If no bundled model fits the command.
        """
        default = DEFAULTS[command]
        if not self.model and default in bundled_models() and (others := cached_models()):
            print_message(
                f"using {default}; other models on this machine, for --model: "
                f"{format_names(others, 5)}"
            )
        if self.model or default in bundled_models():
            return replace(self, model=self.model or default)
        raise ValueError(
            f"--model is missing: train one with visattn fit --config {default}, then pass --model "
            f"runs/{default}/1; visattn models lists those that come with visattn"
        )

    def load(self, kind: type[ModelT], noun: str, command: str) -> tuple[ModelT, dict[str, Any]]:
        """Return the model on its device, and values that identify it, with digests of its files.

        Args:
            kind: Model class that the command supports.
            noun: Name of these models in messages, with its article.
            command: Command whose default model is used if `model` is empty.

        Raises:
            FileNotFoundError: If the file or run does not exist.
            ValueError: If there is no model, it is of another class, or the device is not
                available.
        """
        if not self.model:
            return self.named(command).load(kind, noun, command)
        model, made = self._load()
        if not isinstance(model, kind):
            raise ValueError(  # noqa: TRY004 (the file is wrong, not a type in the code)
                f"{self.model} holds a {type(model).__name__}, which is not {noun}"
            )
        move_to_device(model, self.device)
        return model, made

    def load_captioner(self) -> "tuple[nn.Module, dict[str, Any]]":
        """Return a captioner of visattn, or a model of transformers that generates text.

        Raises:
            FileNotFoundError: If the file or run does not exist.
            ValueError: If there is no model, or it is not a captioner.
        """
        from visattn.models.captioning.captioner import Captioner

        if not (self.model.startswith("hf:") and not self.model.startswith("hf://")):
            return self.load(Captioner, "a captioner", "caption")
        from visattn.models.loaded import loaded_with
        from visattn.pipelines.words.language_model import as_captioner

        model, made = self._load()
        try:
            as_captioner(model)
        except TypeError as error:
            raise ValueError(f"{self.model} cannot caption photos: {error}") from error
        if loaded_with(model).processor is None:
            raise ValueError(f"{self.model} cannot caption photos without its processor")
        move_to_device(model, self.device)
        return model, made

    def _load(self, **options: Any) -> "tuple[nn.Module, dict[str, Any]]":
        from visattn.models.loaded import loaded_with
        from visattn.models.saving import load

        with activity("loading the model"):
            model = load(self.model, weights=self.weights, **options)
        loaded = loaded_with(model)
        for note in loaded.notes:
            print_message(note)
        is_file = Path(self.model).expanduser().exists()
        return model, {
            "model": Path(self.model).name if is_file else self.model,
            "code": user_code_digest(self.model),
            "weights": weights_origin(loaded.weights),
        }


@dataclass(frozen=True)
class BuildOptions(ModelOptions):
    """The model to use, from any library, and how to build it.

    Args:
        model_args: constructor arguments, such as drop_rate=0.1; pretrained=false for random
            weights of timm or torchvision
        input_size: input height and width in pixels (default: those of the model)
        class_names: class names: one per line, a JSON list, or a JSON object from numbers to names
        mean: mean for the normalization of pixels from 0 to 1, one value or one per channel
        std: standard deviation, likewise
    """

    model_args: Values = ()
    input_size: Annotated[Word, arg(metavar="N|HxW")] = ""
    class_names: File = None
    mean: Numbers = ()
    std: Numbers = ()

    def explainer(
        self, *, text: Sequence[str], resize_mode: Any, dense: bool
    ) -> "tuple[Explainer, dict[str, Any]]":
        """Return an explainer of the model on its device, and values that identify the model.

        Args:
            text: Texts to compare photos with.
            resize_mode: How photos get the shape of the input.
            dense: Whether a pixel, region, box or query is explained.

        Raises:
            FileNotFoundError: If a file or run does not exist.
            ValueError: If an option does not fit the model.
        """
        import torch

        from visattn.models.captioning.captioner import Captioner
        from visattn.pipelines.explainer import Explainer

        torch.manual_seed(0)  # equal random weights in every run
        kwargs: dict[str, Any] = dict(map(parse_value, self.model_args))
        of_library = self.model.startswith(("timm:", "torchvision:"))
        pretrained = bool(kwargs.pop("pretrained", of_library and self.weights is None))
        model, made = self._load(pretrained=pretrained, model_kwargs=kwargs)
        if isinstance(model, Captioner):
            raise ValueError(  # noqa: TRY004 (the file is wrong, not a type in the code)
                f"{self.model} holds a {type(model).__name__}, which has no class scores: use "
                "visattn caption to show the attention of its words"
            )
        if made["weights"] == "random":
            print_message("the weights are random: the maps have no meaning")
        explainer = Explainer(
            model,
            input_size=_size(self.input_size),
            class_names=None if self.class_names is None else read_class_names(self.class_names),
            resize_mode=resize_mode,
            dense=dense,
            text=text or None,
            mean=_numbers(self.mean),
            std=_numbers(self.std),
        )
        if not text and explainer.model is not model:
            print_message(f"only the vision tower of {type(model).__name__} is used")
        move_to_device(explainer.model, self.device)
        explainer.analyze()
        names = self.class_names and file_digest(self.class_names)
        made |= {"model_args": self.model_args, "input_size": self.input_size, "classes": names}
        return explainer, made | {"mean": self.mean, "std": self.std}


def cached_models() -> list[str]:
    """Return names for `--model` of models in the caches of timm, torchvision, Hugging Face."""
    import torch
    from huggingface_hub.constants import HF_HUB_CACHE

    hub, checkpoints = Path(HF_HUB_CACHE), Path(torch.hub.get_dir(), "checkpoints")
    timm = [each.name.split("--", 2)[2] for each in sorted(hub.glob("models--timm--*"))]
    files = sorted(checkpoints.glob("*.pth"))
    others = sorted(hub.glob("models--*/snapshots/*/config.json"))
    return [
        *(f"timm:{name}" for name in timm),
        *(f"torchvision:{file.stem.partition('-')[0]}" for file in files),
        *(f"hf:{file.parent}" for file in others if "models--timm--" not in str(file)),
    ]


def parse_value(text: str) -> tuple[str, Any]:
    """Return name and value of NAME=VALUE; the value is JSON, a comma-separated list, or a text.

    Raises:
        ValueError: If the name is missing.

    Example:
        >>> parse_value("mean=0.5,0.5"), parse_value("pad_type=same")
        (('mean', (0.5, 0.5)), ('pad_type', 'same'))
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(f"must be NAME=VALUE, got {text!r}")
    for literal in (value, f"[{value}]") if "," in value else (value,):
        try:
            parsed = parse_json(literal)
        except ValueError:
            continue
        return name, tuple(parsed) if isinstance(parsed, list) else parsed
    return name, value


def _size(text: str) -> tuple[int, int] | None:
    """Return height and width of N or HxW; None for ""."""
    if not text:
        return None
    found = re.fullmatch("([1-9][0-9]*)(?:x([1-9][0-9]*))?", text)
    if found is None:
        raise ValueError(f"--input-size must be N or HEIGHTxWIDTH, got {text!r}")
    return int(found[1]), int(found[2] or found[1])


def _numbers(values: Sequence[float]) -> Any:
    return None if not values else values[0] if len(values) == 1 else tuple(values)


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
        if "Expected one of" in reason:  # followed by a long list of backends
            reason = "expected cpu, cuda, cuda:N or mps"
        raise ValueError(f"--device {device:.40} is not available: {reason:.200}") from error


def read_class_names(file: Path) -> "list[str] | dict[str, str]":
    """Return class names from a file.

    Args:
        file: One name per line, a JSON list of names, or a JSON object from numbers to names.

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
    with reading(file):
        text = decode_utf8(read_bytes_bounded(file))
        if text.lstrip()[:1] not in ("[", "{"):
            names = [name for line in text.splitlines() if (name := line.strip())]
            if len(names) > 1 and all(_NUMBERED.match(name) for name in names):
                raise ValueError(
                    f"it has a number before each name, such as {short_repr(names[0])}: write the "
                    'names alone, or a JSON object as in {"0": "cat", "1": "dog"}'
                )
            return names
        content = parse_json(text)
        names = list(content.values()) if isinstance(content, dict) else content
        numbered = not isinstance(content, dict) or all(key.isdecimal() for key in content)
        if not numbered or not all(isinstance(name, str) for name in names):
            raise ValueError(
                "class names are a list, or an object from numbers to names as in "
                '{"0": "cat", "1": "dog"}'
            )
        return content


def weights_origin(weights: str) -> str | dict[str, str]:
    """Return the origin of the weights of a model, for records of results.

    Args:
        weights: As `Loaded.weights` names them.

    Returns:
        `random` or `pretrained`; for a file, a folder, a bundled model or a model of the hub, its
        name and digests of its content.

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
    """Return a digest of the user code that builds a model, and of the modules it imports.

    Loaded modules in the folder of the code, or in its package, are included: call it after the
    model was built.

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
