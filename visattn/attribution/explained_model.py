"""Any model, as the methods see it."""

from dataclasses import dataclass
from typing import Any, cast, get_args
from weakref import WeakKeyDictionary

from torch import nn

from visattn.recording.feature_layers import resizes_images
from visattn.recording.feature_pooling import PooledFeatures
from visattn.recording.input_size import Classes, checked_size, class_names, own_size, size_hint
from visattn.recording.model_info import ExplainedModel, ModelInfo, Pooling, Source
from visattn.recording.model_outputs import OutputLayout
from visattn.recording.probe import ProbeResult
from visattn.recording.probe_cache import Classifying, features_of, forward_of, reading_of
from visattn.recording.select import check_runs_hooks
from visattn.recording.vision_tower import vision_config, vision_tower

_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_OPENAI = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_OPENAI_TYPES = ("blip", "align", "metaclip")
_HALVES_TYPES = ("vit", "siglip", "beit", "data2vec", "vilt")
_USUAL = (224, 224)
_POOLS: dict[str, Pooling] = {
    "class": "class", "token": "class", "mean": "mean", "avg": "mean", "map": "attention",
    "attention": "attention", "sequence": "attention", "prr": "attention",
}  # fmt: skip
_CARDS: WeakKeyDictionary[nn.Module, dict[Any, tuple[ProbeResult, ModelInfo]]] = WeakKeyDictionary()


def subject_of(
    model: nn.Module,
    size: int | tuple[int, int] | None = None,
    classes: Classes | None = None,
) -> ExplainedModel:
    """Return a model with all that can be found out about it.

    The model runs once on images of zeros, in evaluation mode, and comes back as it was; what was
    found out is kept as long as the model lives and its parts stay the same.

    Args:
        model: A classifier of this package, or a network of timm, torchvision or Hugging Face, or
            any other that takes images and gives scores.
        size: Height and width of its images, or both in one number; None for what it is made
            for, as far as it says so.
        classes: Names of the classes, in their order or by their numbers; None for those that the
            model knows.

    Raises:
        ValueError: If it cannot be run on images of that size, its attention runs where nobody
            can listen, or there are not as many names as classes.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Conv2d(3, 5, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(75, 2))
        >>> print(subject_of(model, (6, 10)).card)
        Sequential (other)
          input      6 x 10, mean 0.485 0.456 0.406, std 0.229 0.224 0.225
          pooling    none
          attention  not shown: it has no attention among tokens
          features   1 layer
            1  3 x 5, [b c y x]
    """
    check_runs_hooks(model)
    family = _family(model)
    asked = checked_size(size) if size is not None else family.size
    reading = reading_of(model, asked, len(family.mean))
    if reading.failure:
        hint = size_hint(model, family.size, len(family.mean), reading.failure)
        raise ValueError(
            f"{family.name} could not be run on images of {asked[0]} x {asked[1]} pixels "
            f"({reading.failure}); {hint}"
        )
    kept = _CARDS.setdefault(model, {})
    key = (asked, family)
    if key not in kept or kept[key][0] is not reading:
        pooled = features_of(model, asked, len(family.mean))
        kept[key] = (reading, _card(model, family, asked, reading, pooled))
    card = kept[key][1]
    names = family.classes if classes is None else class_names(classes, card.output.classes)
    return ExplainedModel(model, card, forward_of(model), names)


@dataclass(frozen=True)
class _Family:
    """What is known of a model without running it."""

    name: str
    source: Source
    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    classes: tuple[str, ...] = ()


def _card(
    model: nn.Module,
    family: _Family,
    size: tuple[int, int],
    reading: ProbeResult,
    pooled: PooledFeatures,
) -> ModelInfo:
    layers, refused = tuple(reading.layers), tuple(reading.refused)
    refusal = ""
    if not layers:
        refusal = "it has no attention among tokens"
        if refused:
            refusal = f"{refused[0][0] or 'the model'}: {refused[0][1]}"
    pooling = _pooling(model, reading, pooled.read)
    return ModelInfo(
        family.name,
        family.source,
        size,
        family.mean,
        family.std,
        pooling,
        layers,
        () if resizes_images(model) else pooled.sites,
        refusal,
        refused,
        _output(model, family, reading.output),
        pooled.refusal,
    )


def _output(model: nn.Module, family: _Family, output: OutputLayout) -> OutputLayout:
    """Return where the class scores are, of a model that has a classifier."""
    bare = family.source == "timm" and getattr(model, "num_classes", None) == 0
    if family.source == "transformers":
        bare = output.scores != "logits" and "Classification" not in type(model).__name__
    if output.refusal or not bare:
        return output
    return OutputLayout(
        refusal=f"it has no classifier, and returns features ({output.classes} numbers) instead of "
        "class scores; pass a function of its output, as in target=lambda output: output[:, 3]"
    )


def _pooling(model: nn.Module, reading: ProbeResult, read: tuple[int, ...] | None) -> Pooling:
    """Return what the scores are made of."""
    if not reading.layers:
        return "none"
    roles = reading.roles
    for part in (model, getattr(model, "backbone", None)):
        told = getattr(part, "global_pool", None) or getattr(part, "pool", None)
        if isinstance(told, str) and told in _POOLS:
            found = _POOLS[told]
            return "distilled" if found == "class" and "distillation" in roles else found
    if any(layer.lone and "class" not in layer.roles for layer in reading.layers):
        return "attention"
    if "class" not in roles or (read and min(read) >= len(roles)):
        return "mean"
    told = type(model).__name__
    plain = "distillation" not in roles or told == "DeiTForImageClassification"
    return "class" if plain else "distilled"


def _family(model: nn.Module) -> _Family:
    if isinstance(model, Classifying):
        told = cast("Classifying", model)
        name = str(getattr(model, "name", None) or type(model).__name__)
        return _Family(name, "visattn", told.size, told.mean, told.std, told.classes)
    room = type(model).__module__.split(".")[0]
    source: Source = cast("Source", room) if room in get_args(Source) else "other"
    if source == "timm" and isinstance(getattr(model, "pretrained_cfg", None), dict):
        return _of_timm(model)
    if source == "transformers" or _of_a_transformers_class(model):
        return _of_transformers(model)
    size = own_size(model) or ((299, 299) if _is_inception(model) else _USUAL)
    channels = _channels(model)
    colors = _IMAGENET if channels == 3 else ((0.5,) * channels, (0.5,) * channels)
    if resizes_images(model):  # and normalizes them
        colors = ((0.0,) * channels, (1.0,) * channels)
    return _Family(type(model).__name__, source, size, *colors)


def _of_a_transformers_class(model: nn.Module) -> bool:
    """Whether a class of somebody's own is derived from one of transformers."""
    rooms = (kind.__module__.split(".")[0] for kind in type(model).__mro__)
    return "transformers" in rooms and hasattr(getattr(model, "config", None), "model_type")


def _is_inception(model: nn.Module) -> bool:
    return type(model).__name__ == "Inception3"


def _channels(model: nn.Module) -> int:
    """Return how many channels the images have, by the first convolution."""
    first = (part.in_channels for part in model.modules() if isinstance(part, nn.Conv2d))
    found = next(first, 3)
    return found if found in (1, 3) else 3


def _of_timm(model: nn.Module) -> _Family:
    config = cast("dict[str, Any]", model.pretrained_cfg)
    name = str(config.get("architecture") or type(model).__name__)
    told = (getattr(part, "img_size", None) for part in model.modules())
    made_for = next((size for size in told if size), None)
    size = made_for or tuple(config.get("input_size") or (3, *_USUAL))[1:]
    size = (size, size) if isinstance(size, int) else size
    mean, std = (tuple(config.get(key) or _IMAGENET[at]) for at, key in enumerate(("mean", "std")))
    channels = _channels(model)
    if channels != len(mean):
        mean, std = mean[:channels], std[:channels]
    return _Family(name, "timm", (int(size[0]), int(size[1])), mean, std)


def _of_transformers(model: nn.Module) -> _Family:
    if tower := vision_tower(model):
        raise ValueError(
            f"{type(model).__name__} takes more than images; take its vision tower, "
            f"model.{tower[0]}"
        )
    config = cast("Any", model.config)
    seen = vision_config(config)
    size = getattr(seen, "image_size", None) or _USUAL
    size = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    mean, std = usual_colors(str(seen.model_type))
    channels = int(getattr(seen, "num_channels", 3))
    labels = getattr(config, "id2label", None) or {}
    names = tuple(str(labels[number]) for number in sorted(labels))
    told = all(not name.startswith("LABEL_") for name in names)
    return _Family(
        config.model_type, "transformers", size, mean[:channels], std[:channels],
        names if told else (),
    )  # fmt: skip


def usual_colors(model_type: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std of the image processors that come with a kind of transformers' models.

    Args:
        model_type: As its configuration says.

    Example:
        >>> usual_colors("siglip_vision_model")[0], usual_colors("dinov2")[0]
        ((0.5, 0.5, 0.5), (0.485, 0.456, 0.406))
    """
    if "clip" in model_type or model_type.startswith(_OPENAI_TYPES):
        return _OPENAI
    return _HALVES if model_type.startswith(_HALVES_TYPES) else _IMAGENET
