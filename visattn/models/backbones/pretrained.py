"""Whole models of timm and torchvision by name, with their preprocessing and their classes."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

import torchvision
from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset
from torch import nn
from torchvision.models import ResNet18_Weights, get_model, get_model_weights, list_models

from visattn.models.backbones.timm_weights import load_timm_weights, load_weights, timm_backbone


@dataclass(frozen=True, eq=False)
class NamedModel:
    """A model that somebody named, ready to look.

    Args:
        model: In evaluation mode, on the CPU.
        transform: From an image of Pillow to what the model takes, if its library says so; None
            where the model's own sizes and colors say all.
        classes: Names of the classes, each only once, or () if nobody said.
        weights: `random`, `pretrained`, or the file that they come from.
        notes: What was removed, converted or assumed while the model was loaded, in sentences.
    """

    model: nn.Module
    transform: Callable[..., Any] | None
    classes: tuple[str, ...]
    weights: str
    notes: tuple[str, ...] = ()


def timm_model(
    name: str,
    *,
    weights: Path | None = None,
    pretrained: bool = False,
    arguments: Mapping[str, Any] | None = None,
) -> NamedModel:
    """Return a model of timm's.

    Args:
        name: A name that `timm.list_models()` knows.
        weights: A file or folder to fill it with, as `read_state_dict` takes it, its classifier
            included; also under the names of the repository that they were first published in.
        pretrained: Whether to fill it with timm's own weights, which are downloaded.
        arguments: More arguments of `timm.create_model`; and `mean` and `std`, a number or one for
            each channel, if the weights were made for other colors than timm's.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the name or an argument is unknown, if weights are asked for twice, or if the
            file does not fit.

    Example:
        >>> named = timm_model("test_resnet", arguments={"mean": 0.5, "num_classes": 5})
        >>> named.model.pretrained_cfg["mean"], named.weights, named.classes
        ((0.5, 0.5, 0.5), 'random', ())
    """
    _check_once(weights, pretrained=pretrained)
    given = dict(arguments or {})
    colors = {key: given.pop(key) for key in ("mean", "std") if key in given}
    # None, and not the number of classes that we would choose: timm knows it for each model
    model: Any = timm_backbone(name, {"num_classes": None, **given}, pretrained=pretrained)
    notes: tuple[str, ...] = ()
    if weights:
        notes = load_timm_weights(model, name, weights, given)
    channels = int(model.pretrained_cfg["input_size"][0])
    told = {key: _channelwise(key, value, channels) for key, value in colors.items()}
    model.pretrained_cfg = {**model.pretrained_cfg, **told}
    origin = _origin(weights, pretrained)
    return NamedModel(model.eval(), None, _timm_classes(model), origin, notes)


def torchvision_model(
    name: str,
    *,
    weights: Path | None = None,
    pretrained: bool = False,
    arguments: Mapping[str, Any] | None = None,
) -> NamedModel:
    """Return a classifier of torchvision's, with the preprocessing of its default weights.

    Args:
        name: A name that `torchvision.models.list_models(torchvision.models)` knows.
        weights: A file or folder to fill it with, as `read_state_dict` takes it.
        pretrained: Whether to fill it with torchvision's default weights, which are downloaded.
        arguments: More arguments of the function of this name.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the name or an argument is unknown, if weights are asked for twice, or if the
            file does not fit.

    Example:
        >>> named = torchvision_model("squeezenet1_1")
        >>> len(named.classes), named.classes[:2]
        (1000, ('tench', 'goldfish'))
    """
    _check_once(weights, pretrained=pretrained)
    names = list_models(torchvision.models)
    if name not in names:
        raise ValueError(f"torchvision knows no classifier {name!r}{close_matches(name, names)}")
    given = dict(arguments or {})
    default = cast("Any", get_model_weights(name)).DEFAULT
    try:
        model = get_model(name, weights=default if pretrained else None, **given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} does not take these arguments: {error}") from error
    notes = load_weights(model, weights) if weights else ()
    classes = default.meta["categories"]
    known = given.get("num_classes", len(classes)) == len(classes)
    transform = None if "image_size" in given else default.transforms()
    return NamedModel(
        model.eval(),
        transform,
        unique_names(classes) if known else (),
        _origin(weights, pretrained),
        notes,
    )


def close_matches(name: str, names: Sequence[str]) -> str:
    """Return a hint at names that are written alike, to stand at the end of a sentence.

    Example:
        >>> close_matches("resnet81", ["resnet18", "vit_b_16"])
        '; did you mean resnet18?'
    """
    close = get_close_matches(name, names, n=3)
    return f"; did you mean {', '.join(close)}?" if close else ""


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return names of classes of which none stands twice: those that did get their number.

    Example:
        >>> unique_names(["crane", "cat", "crane"])
        ('crane (0)', 'cat', 'crane (2)')
    """
    often = Counter(names)
    return tuple(
        f"{name} ({index})" if often[name] > 1 else name for index, name in enumerate(names)
    )


def _check_once(weights: Path | None, *, pretrained: bool) -> None:
    if weights and pretrained:
        raise ValueError("weights come from the library or from a file, not both: drop one of them")


def _origin(weights: Path | None, pretrained: bool) -> str:
    return str(weights) if weights else "pretrained" if pretrained else "random"


def _channelwise(key: str, value: float | Sequence[float], channels: int) -> tuple[float, ...]:
    values = (value,) * channels if isinstance(value, (int, float)) else tuple(map(float, value))
    if len(values) != channels or (key == "std" and min(values) <= 0):
        raise ValueError(
            f"{key} must be one number, or one for each of {channels} channels, and std above 0; "
            f"got {value}"
        )
    return tuple(map(float, values))


def _timm_classes(model: nn.Module) -> tuple[str, ...]:
    """Return the classes of ImageNet, in that one of its forms that has as many."""
    subset = infer_imagenet_subset({"num_classes": getattr(model, "num_classes", 0)})
    if subset == "imagenet-1k":  # in the words of torchvision: the shorter ones
        return unique_names(ResNet18_Weights.DEFAULT.meta["categories"])
    if subset is None:
        return ()
    told = ImageNetInfo(subset).label_descriptions()
    return unique_names([str(name).split(",")[0] for name in told])
