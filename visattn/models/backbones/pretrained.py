"""Pretrained models of timm and torchvision, with their preprocessing and class names."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from torch import nn

from visattn.io.messages import did_you_mean
from visattn.models.backbones.timm_classifier import (
    check_single_source,
    classes_of_weights,
    convert_with_timm,
    create_timm_backbone,
    load_timm_weights,
    load_weights,
)
from visattn.models.saving.hub import plain_download_errors
from visattn.recording.model_config import ClassNames


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A loaded model with its preprocessing and class names.

    Args:
        model: The model, in evaluation mode, on the CPU.
        transform: Preprocessing of PIL images, if the library defines it; None if the input size,
            mean and std of the model suffice.
        class_names: Unique names of the classes, or () if unknown.
        weights: `random`, `pretrained`, or the file that they come from.
        notes: What was removed, converted or assumed during loading, in sentences.
        mean: Mean of each channel, or of all, in place of that of the model; with `std`.
        std: Standard deviation.
    """

    model: nn.Module
    transform: Callable[..., Any] | None
    class_names: tuple[str, ...]
    weights: str
    notes: tuple[str, ...] = ()
    mean: float | Sequence[float] | None = None
    std: float | Sequence[float] | None = None


def load_timm_model(
    name: str,
    *,
    weights: Path | None = None,
    pretrained: bool = False,
    timm_kwargs: Mapping[str, Any] | None = None,
    class_names: ClassNames | None = None,
) -> LoadedModel:
    """Load a timm model; see `load_model`.

    Keys of weights are converted from the repository that first published them.

    Example:
        >>> loaded = load_timm_model("test_resnet", timm_kwargs={"num_classes": 5})
        >>> loaded.model.num_classes, loaded.weights, loaded.class_names
        (5, 'random', ())
    """
    check_single_source(weights, pretrained=pretrained)
    kwargs = dict(timm_kwargs or {})
    if {"mean", "std"} & {*kwargs}:
        raise ValueError(
            "mean and std are no arguments of timm: pass load_model(..., mean=, std=), or --mean "
            "and --std"
        )
    if class_names and not (weights or pretrained):
        kwargs.setdefault("num_classes", len(class_names))
    # None: timm uses the number of classes of the pretrained model.
    model: Any = create_timm_backbone(name, {"num_classes": None, **kwargs}, pretrained=pretrained)
    if weights and "num_classes" not in kwargs:
        convert = partial(convert_with_timm, name, kwargs)
        if count := classes_of_weights(model, weights, convert):
            kwargs["num_classes"] = count
            model = create_timm_backbone(name, kwargs, pretrained=False)
    notes = load_timm_weights(model, name, weights, kwargs) if weights else ()
    source = _source(weights, pretrained=pretrained)
    return LoadedModel(model.eval(), None, _timm_classes(model), source, notes)


def load_torchvision_model(
    name: str,
    *,
    weights: Path | None = None,
    pretrained: bool = False,
    model_kwargs: Mapping[str, Any] | None = None,
    class_names: ClassNames | None = None,
) -> LoadedModel:
    """Load a torchvision model, with the preprocessing and class names of its default weights.

    It is a classifier, or a segmentation or detection model. For the arguments see `load_model`.

    Example:
        >>> loaded = load_torchvision_model("squeezenet1_1")
        >>> len(loaded.class_names), loaded.class_names[:2]
        (1000, ('tench', 'goldfish'))
    """
    from torchvision import models as zoo  # slow to import

    check_single_source(weights, pretrained=pretrained)
    dense = [*zoo.list_models(zoo.segmentation), *zoo.list_models(zoo.detection)]
    names = [*zoo.list_models(zoo), *dense]
    if name not in names:
        hint = did_you_mean(name, names, otherwise="torchvision.models.list_models() lists all")
        raise ValueError(f"unknown torchvision model {name!r}; {hint}")
    kwargs = dict(model_kwargs or {})
    if name in dense and not pretrained:
        kwargs.setdefault("weights_backbone", None)  # nothing is downloaded
    default = cast("Any", zoo.get_model_weights(name)).DEFAULT
    if class_names and not (weights or pretrained):
        kwargs.setdefault("num_classes", len(class_names))
    model = _build_torchvision(name, default if pretrained else None, kwargs)
    if weights and "num_classes" not in kwargs and (count := classes_of_weights(model, weights)):
        kwargs["num_classes"] = count
        model = _build_torchvision(name, None, kwargs)
    notes = load_weights(model, weights) if weights else ()
    names = default.meta["categories"]
    same_classes = kwargs.get("num_classes", len(names)) == len(names)
    transform = None if "image_size" in kwargs else default.transforms()
    return LoadedModel(
        model.eval(),
        transform,
        unique_names(names) if same_classes else (),
        _source(weights, pretrained=pretrained),
        notes,
    )


def _build_torchvision(name: str, weights: Any, arguments: Mapping[str, Any]) -> nn.Module:
    from torchvision.models import get_model  # slow to import

    try:
        with plain_download_errors(f"torchvision:{name}"):
            return get_model(name, weights=weights, **arguments)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} does not take these arguments: {error}") from error


def unique_names(names: Sequence[str]) -> tuple[str, ...]:
    """Return unique class names: repeated names get their index appended.

    Example:
        >>> unique_names(["crane", "cat", "crane"])
        ('crane (0)', 'cat', 'crane (2)')
    """
    counts = Counter(names)
    return tuple(
        f"{name} ({index})" if counts[name] > 1 else name for index, name in enumerate(names)
    )


def _source(weights: Path | None, *, pretrained: bool) -> str:
    if weights:
        return str(weights)
    return "pretrained" if pretrained else "random"


def _timm_classes(model: nn.Module) -> tuple[str, ...]:
    """Return the class names of the ImageNet variant with this number of classes."""
    from timm.data.imagenet_info import ImageNetInfo, infer_imagenet_subset  # slow to import
    from torchvision.models import ResNet18_Weights

    subset = infer_imagenet_subset({"num_classes": getattr(model, "num_classes", 0)})
    if subset == "imagenet-1k":  # torchvision's names are shorter
        return unique_names(ResNet18_Weights.DEFAULT.meta["categories"])
    if subset is None:
        return ()
    descriptions = ImageNetInfo(subset).label_descriptions()
    return unique_names([str(name).split(",")[0] for name in descriptions])
