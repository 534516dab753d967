"""Analysis of any model for attribution: input size, normalization, layers, classes."""

from dataclasses import dataclass, replace
from typing import Any, cast, get_args
from weakref import WeakKeyDictionary

from torch import nn

from visattn.attribution.layer_weights import NO_ATTENTION
from visattn.recording.feature_layers import resizes_images
from visattn.recording.feature_pooling import PooledFeatures
from visattn.recording.internal_resize import internal_transform
from visattn.recording.model_config import (
    ClassNames,
    configured_image_size,
    input_size_hint,
    parse_class_names,
    parse_image_size,
    takes_clips,
    vision_config,
    vision_tower,
)
from visattn.recording.model_info import ExplainedModel, Library, ModelInfo, Pooling, TextScorer
from visattn.recording.model_outputs import OutputLayout
from visattn.recording.operations import model_operations
from visattn.recording.probe import ProbeResult
from visattn.recording.probe_cache import (
    NormalizingClassifier,
    forward_function,
    probe_model,
    probe_pooled_features,
)
from visattn.recording.recorder import check_supports_hooks
from visattn.recording.score_evidence import declared_class_counts

_IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
_HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_OPENAI = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
_OPENAI_TYPES = ("blip", "align", "metaclip")
_HALVES_TYPES = ("vit", "siglip", "beit", "data2vec", "vilt")
_DEFAULT_SIZE = (224, 224)
_POOLING_NAMES: dict[str, Pooling] = {
    "class": "class", "token": "class", "mean": "mean", "avg": "mean", "map": "attention",
    "attention": "attention", "sequence": "attention", "prr": "attention",
}  # fmt: skip
_CACHE: WeakKeyDictionary[nn.Module, dict[Any, tuple[ProbeResult, ModelInfo]]] = WeakKeyDictionary()


def analyze_model(
    model: nn.Module,
    input_size: int | tuple[int, int] | None = None,
    class_names: ClassNames | None = None,
) -> ExplainedModel:
    """Return a model with the metadata that attribution methods need.

    The model runs on probe images in evaluation mode, and is restored afterwards. The result is
    cached as long as the model lives and its modules do not change.

    Args:
        model: A classifier of visattn, a model of timm, torchvision or Hugging Face, or any other
            module from images to scores.
        input_size: Height and width of its images, or one number for both; by default the size in
            its configuration.
        class_names: In the order of their indices, or by index; by default those of the model.

    Raises:
        ValueError: If the model does not run on images of that size, is compiled or scripted, or
            there is not one name for each class.

    Example:
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Conv2d(3, 5, 2, 2), nn.ReLU(), nn.Flatten(), nn.Linear(75, 2))
        >>> print(analyze_model(model, (6, 10)).info)
        Sequential (other)
          input      6 x 10, mean 0.485 0.456 0.406, std 0.229 0.224 0.225
          pooling    none
          attention  not supported: it has no attention among tokens
          features   1 layer
            1  3 x 5, [b c y x]
    """
    check_supports_hooks(model)
    if takes_clips(model):
        raise ValueError(
            f"the model must take images, but {type(model).__name__} takes clips of several "
            "frames: use visattn.pipelines.VideoExplainer, or visattn overlay with a video file"
        )
    defaults = _model_defaults(model)
    size = parse_image_size(input_size) if input_size is not None else defaults.size
    channels = len(defaults.mean)
    result = probe_model(model, size, channels)
    if result.error:
        hint = input_size_hint(model, defaults.size, channels, result.error)
        raise ValueError(
            f"the model must run on images of {size[0]} x {size[1]} pixels, but {defaults.name} "
            f"raised an error ({result.error}); {hint}"
        )
    names = defaults.class_names
    if class_names is not None:
        names = parse_class_names(class_names, None)
    info = _cached_info(model, defaults, size, result, None)
    output = info.output
    other = output.unnamed and output.num_classes != len(names)
    if names and (output.error or output.assumed or other):  # names tell which tensor has classes
        info = _cached_info(model, defaults, size, result, len(names))
    if class_names is not None:
        parse_class_names(class_names, info.output.num_classes)
    return ExplainedModel(model, info, forward_function(model), names)


def _cached_info(
    model: nn.Module,
    defaults: "_ModelDefaults",
    size: tuple[int, int],
    result: ProbeResult,
    num_classes: int | None,
) -> ModelInfo:
    """Return the metadata of a model that was probed; cached as long as the model lives."""
    cache = _CACHE.setdefault(model, {})
    key = (size, defaults, num_classes)
    if key not in cache or cache[key][0] is not result:
        pooled = probe_pooled_features(model, size, len(defaults.mean), num_classes)
        info = _model_info(model, defaults, size, result, pooled)
        output = _output_layout(model, defaults, pooled.output or result.output, num_classes)
        cache[key] = (result, replace(info, output=output))
    return cache[key][1]


def describe_model(
    model: nn.Module,
    input_size: int | tuple[int, int] | None = None,
    class_names: ClassNames | None = None,
) -> ExplainedModel:
    """Return a model with the metadata that is known without running it, for dense targets.

    It has no attention layers, and no feature layers.

    Args:
        model: A segmentation or detection model, or any other module.
        input_size: Height and width of its images, or one number for both; by default the size in
            its configuration.
        class_names: In the order of their indices, or by index; by default those of the model.

    Raises:
        ValueError: If the model is compiled or scripted, or class names are repeated.

    Example:
        >>> describe_model(nn.Conv2d(3, 2, 1), 64, ("cat", "dog")).info.input_size
        (64, 64)
    """
    check_supports_hooks(model)
    defaults = _model_defaults(model)
    size = parse_image_size(input_size) if input_size is not None else defaults.size
    names = defaults.class_names
    if class_names is not None:
        names = parse_class_names(class_names, None)
    info = ModelInfo(
        defaults.name,
        defaults.library,
        size,
        defaults.mean,
        defaults.std,
        "none",
        attention_error="a dense model is not probed for attention",
        output=OutputLayout(
            error="its output is dense: a pixel, region, box or query is explained"
        ),
        mean_color=defaults.mean_color,
    )
    return ExplainedModel(model, info, forward_function(model), names)


@dataclass(frozen=True)
class _ModelDefaults:
    """Metadata that is known without running a model."""

    name: str
    library: Library
    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...] = ()
    mean_color: tuple[float, ...] = ()


def _model_info(
    model: nn.Module,
    defaults: _ModelDefaults,
    size: tuple[int, int],
    result: ProbeResult,
    pooled: PooledFeatures,
) -> ModelInfo:
    layers, unsupported = tuple(result.attention_layers), tuple(result.unsupported_layers)
    attention_error = ""
    if not layers:
        attention_error = NO_ATTENTION
        if unsupported:
            attention_error = f"{unsupported[0][0] or 'the model'}: {unsupported[0][1]}"
    return ModelInfo(
        defaults.name,
        defaults.library,
        size,
        defaults.mean,
        defaults.std,
        _pooling(model, result, pooled.read_tokens),
        layers,
        () if resizes_images(model) else pooled.layers,
        attention_error,
        unsupported,
        features_error=pooled.error,
        has_texts=isinstance(model, TextScorer),
        operations=model_operations(model, forward_function(model), size, len(defaults.mean)),
        mean_color=defaults.mean_color,
    )


def _output_layout(
    model: nn.Module, defaults: _ModelDefaults, output: OutputLayout, num_classes: int | None
) -> OutputLayout:
    """Return the location of the class scores, for a model that has a classifier.

    Args:
        model: The model.
        defaults: Its metadata.
        output: Location of tensors that may be class scores.
        num_classes: Number of the class names that were passed.
    """
    if output.error or output.num_classes == num_classes:
        return output
    headless = defaults.library == "timm" and getattr(model, "num_classes", None) == 0
    if defaults.library == "transformers":
        headless = output.key != "logits" and "Classification" not in type(model).__name__
    declared = output.num_classes in declared_class_counts(model.modules())
    if not headless and (defaults.library == "visattn" or declared):
        return replace(output, features="", assumed=False)
    if not headless and not output.features:
        return output
    evidence = f" ({output.features})" if output.features else ""
    return OutputLayout(
        error=f"it has no classifier, and returns {output.num_classes} features instead of class "
        f"scores{evidence}; pass a function of the output, such as target=lambda output: "
        f"{output.example}, or the names of its classes if they are scores after all"
    )


def _pooling(model: nn.Module, result: ProbeResult, read_tokens: tuple[int, ...] | None) -> Pooling:
    if not result.attention_layers:
        return "none"
    prefix_tokens = result.prefix_tokens
    for module in (model, getattr(model, "backbone", None)):
        name = getattr(module, "global_pool", None) or getattr(module, "pool", None)
        if isinstance(name, str) and name in _POOLING_NAMES:
            pooling = _POOLING_NAMES[name]
            distilled = pooling == "class" and "distillation" in prefix_tokens
            return "distilled" if distilled else pooling
    if any(
        layer.single_query and "class" not in layer.prefix_tokens
        for layer in result.attention_layers
    ):
        return "attention"
    if "class" not in prefix_tokens or (read_tokens and min(read_tokens) >= len(prefix_tokens)):
        return "mean"
    class_only = type(model).__name__ == "DeiTForImageClassification"
    return "class" if class_only or "distillation" not in prefix_tokens else "distilled"


def _model_defaults(model: nn.Module) -> _ModelDefaults:
    if isinstance(model, NormalizingClassifier):
        classifier = cast("NormalizingClassifier", model)
        name = str(getattr(model, "name", None) or type(model).__name__)
        return _ModelDefaults(
            name,
            "visattn",
            classifier.img_size,
            classifier.mean,
            classifier.std,
            classifier.class_names,
        )
    package = type(model).__module__.split(".")[0]
    if package == "visattn" and hasattr(model, "class_names") and hasattr(model, "mean"):
        dense = cast("Any", model)  # a dense model of visattn
        return _ModelDefaults(
            type(model).__name__,
            "visattn",
            dense.img_size,
            dense.mean,
            dense.std,
            dense.class_names,
        )
    library: Library = cast("Library", package) if package in get_args(Library) else "other"
    if library == "timm" and isinstance(getattr(model, "pretrained_cfg", None), dict):
        return _timm_defaults(model)
    if library == "transformers" or _is_transformers_subclass(model):
        return _transformers_defaults(model)
    default_size = (299, 299) if type(model).__name__ == "Inception3" else _DEFAULT_SIZE
    size = configured_image_size(model) or default_size
    channels = _input_channels(model)
    mean_std = _IMAGENET if channels == 3 else ((0.5,) * channels, (0.5,) * channels)
    if (transform := internal_transform(model)) is not None:  # it normalizes images, too
        unchanged = ((0.0,) * channels, (1.0,) * channels)
        color = tuple(map(float, transform.image_mean))
        return _ModelDefaults(type(model).__name__, library, size, *unchanged, mean_color=color)
    return _ModelDefaults(type(model).__name__, library, size, *mean_std)


def _is_transformers_subclass(model: nn.Module) -> bool:
    """Whether a user's class is derived from a Hugging Face model."""
    packages = (base.__module__.split(".")[0] for base in type(model).__mro__)
    return "transformers" in packages and hasattr(getattr(model, "config", None), "model_type")


def _input_channels(model: nn.Module) -> int:
    """Return the number of image channels, from the first convolution."""
    convolutions = (module for module in model.modules() if isinstance(module, nn.Conv2d))
    channels = next((convolution.in_channels for convolution in convolutions), 3)
    return channels if channels in (1, 3) else 3


def _timm_defaults(model: nn.Module) -> _ModelDefaults:
    config = cast("dict[str, Any]", model.pretrained_cfg)
    name = str(config.get("architecture") or type(model).__name__)
    sizes = (getattr(module, "img_size", None) for module in model.modules())
    size = next((size for size in sizes if size), None)
    size = size or tuple(config.get("input_size") or (3, *_DEFAULT_SIZE))[1:]
    size = (size, size) if isinstance(size, int) else size
    mean = tuple(config.get("mean") or _IMAGENET[0])
    std = tuple(config.get("std") or _IMAGENET[1])
    channels = _input_channels(model)
    if channels != len(mean):
        mean, std = mean[:channels], std[:channels]
    return _ModelDefaults(name, "timm", (int(size[0]), int(size[1])), mean, std)


def _transformers_defaults(model: nn.Module) -> _ModelDefaults:
    if tower := vision_tower(model):
        raise ValueError(
            f"the model must take only images, but {type(model).__name__} takes more; use its "
            f"vision tower, model.{tower[0]}, or compare images with texts: text=[...]"
        )
    config = cast("Any", model.config)
    vision = vision_config(config)
    size = getattr(vision, "image_size", None) or _DEFAULT_SIZE
    size = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    mean, std = default_mean_std(str(vision.model_type))
    channels = int(getattr(vision, "num_channels", 3))
    id2label = getattr(config, "id2label", None) or {}
    names = tuple(str(id2label[index]) for index in sorted(id2label))
    named = all(not name.startswith("LABEL_") for name in names)
    return _ModelDefaults(
        config.model_type,
        "transformers",
        size,
        mean[:channels],
        std[:channels],
        names if named else (),
    )


def default_mean_std(model_type: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std of the image processor of a Hugging Face model type.

    Args:
        model_type: `config.model_type`.

    Example:
        >>> default_mean_std("siglip_vision_model")[0], default_mean_std("dinov2")[0]
        ((0.5, 0.5, 0.5), (0.485, 0.456, 0.406))
    """
    if "clip" in model_type or model_type.startswith(_OPENAI_TYPES):
        return _OPENAI
    return _HALVES if model_type.startswith(_HALVES_TYPES) else _IMAGENET
