"""Input size, normalization and class names of a model, without running it on images."""

from dataclasses import dataclass, field, replace
from typing import Any, cast, get_args

from torch import nn

from visattn.recording.frozen import internal_transform
from visattn.recording.model_config import (
    COMMON_SIZES,
    NormalizingClassifier,
    configured_image_size,
    runs,
    vision_config,
    vision_tower,
)
from visattn.recording.model_info import Library

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
OPENAI = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
UNCHANGED = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
# Mean and std that the published weights of a model type were trained with. The defaults of image
# processors of transformers say something else for many: Swin, DINOv2 or ResNet, for example.
_OPENAI_TYPES = (
    "aimv2", "blip", "bridgetower", "flava", "git", "groupvit", "kosmos-2", "metaclip", "mlcd",
    "owlv",
)  # fmt: skip
_HALVES_TYPES = (
    "align", "beit", "bit", "data2vec", "donut", "dpt", "layoutlmv3", "mobilenet_v", "siglip",
    "vilt", "vit_hybrid", "vitmatte",
)  # fmt: skip
_UNCHANGED_TYPES = ("glpn", "pp_doclayout")
_BGR_TYPES = ("mobilevit", "pp_lcnet", "pp_ocr")
_CLIP_WITH_IMAGENET = ("clipseg", "xclip")
_DEFAULT_SIZE = (224, 224)


@dataclass(frozen=True)
class ModelDefaults:
    """Metadata that is known without running a model on images.

    Args:
        mean_color: Mean color of images that the model normalizes itself; () if `mean` is it.
        source: Where mean and std come from.
        size_source: Where the size comes from, `assumed` if the model does not tell.
        preprocessing_error: Why images cannot be prepared without a transform; "" if they can.
    """

    name: str
    library: Library
    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    class_names: tuple[str, ...] = ()
    mean_color: tuple[float, ...] = ()
    source: str = ""
    preprocessing_error: str = ""
    size_source: str = field(default="", compare=False)

    def with_channels(self, channels: int) -> "ModelDefaults":
        """Return the metadata for images of so many channels, with assumed mean and std."""
        if channels == len(self.mean):
            return self
        mean, std, source = _assumed_colors(channels)
        return replace(self, mean=mean, std=std, source=source, mean_color=())


def _assumed_colors(channels: int) -> tuple[tuple[float, ...], tuple[float, ...], str]:
    """Return mean and std of images of which nothing is known, and what was assumed."""
    if channels == 3:
        return *IMAGENET, "assumed: mean and std of ImageNet"
    if channels == 1:
        return (0.5,), (0.5,), "assumed: photos are converted to gray, mean and std 0.5"
    unchanged = ((0.0,) * channels, (1.0,) * channels)
    return *unchanged, f"assumed: {channels} channels without mean and std"


def model_defaults(
    model: nn.Module, size: tuple[int, int] | None = None, channels: int | None = None
) -> ModelDefaults:
    """Return the metadata of a model that is known without running it on images.

    Args:
        model: The model.
        size: Height and width of its images; by default what it states.
        channels: Their number of channels; by default that of its first convolution.

    Raises:
        ValueError: If it is a Hugging Face model that takes more than images.
    """
    defaults = _known_defaults(model) or _other_defaults(model, size, channels)
    if size is not None:
        defaults = replace(defaults, size=size, size_source="argument")
    return defaults if channels is None else defaults.with_channels(channels)


def _other_defaults(
    model: nn.Module, size: tuple[int, int] | None, channels: int | None
) -> ModelDefaults:
    """Return the metadata of a model whose library defines none, by convention."""
    package = type(model).__module__.split(".")[0]
    name = type(model).__name__
    library: Library = cast("Library", package) if package in get_args(Library) else "other"
    configured = configured_image_size(model)
    usual = configured or ((299, 299) if name == "Inception3" else _DEFAULT_SIZE)
    channels = channels or input_channels(model, size or usual)
    if (transform := internal_transform(model)) is not None:  # it normalizes images, too
        unchanged = ((0.0,) * channels, (1.0,) * channels)
        color = tuple(map(float, transform.image_mean))
        return ModelDefaults(
            name, library, usual, *unchanged, mean_color=color, source="the model normalizes images"
        )
    mean, std, source = _assumed_colors(channels)
    # A torchvision classifier has the size of its published weights.
    known = configured or library == "torchvision"
    return ModelDefaults(
        name, library, usual, mean, std, source=source, size_source="model" if known else "assumed"
    )


def _known_defaults(model: nn.Module) -> ModelDefaults | None:
    """Return the metadata that the library of a model defines; None for another network."""
    package = type(model).__module__.split(".")[0]
    dense = package == "visattn" and hasattr(model, "class_names") and hasattr(model, "mean")
    if dense or isinstance(model, NormalizingClassifier):
        own: Any = model
        return ModelDefaults(
            str(getattr(own, "name", None) or type(model).__name__),
            "visattn",
            own.img_size,
            own.mean,
            own.std,
            own.class_names,
            source="visattn model",
        )
    if package == "timm" and isinstance(getattr(model, "pretrained_cfg", None), dict):
        return _timm_defaults(model)
    if package == "transformers" or _is_transformers_subclass(model):
        return _transformers_defaults(model)
    return None


def _is_transformers_subclass(model: nn.Module) -> bool:
    """Whether a user's class is derived from a Hugging Face model."""
    packages = (base.__module__.split(".")[0] for base in type(model).__mro__)
    return "transformers" in packages and hasattr(getattr(model, "config", None), "model_type")


def input_channels(model: nn.Module, size: tuple[int, int] = _DEFAULT_SIZE) -> int:
    """Return the number of image channels: three if the model runs on them, else by a convolution.

    A network may add channels to a photo, or make it gray itself, before its first convolution.

    Example:
        >>> input_channels(nn.Conv2d(5, 2, 1), (4, 4))
        5
    """
    convolutions = (module for module in model.modules() if isinstance(module, nn.Conv2d))
    channels = next((convolution.in_channels for convolution in convolutions), 3)
    if channels == 3:
        return channels
    sizes = dict.fromkeys([size, *((side, side) for side in COMMON_SIZES)])
    tried = ((count, each) for each in sizes for count in (3, channels))
    return next((count for count, each in tried if runs(model, count, each)), 3)


def _timm_defaults(model: nn.Module) -> ModelDefaults:
    config = cast("dict[str, Any]", model.pretrained_cfg)
    name = str(config.get("architecture") or type(model).__name__)
    sizes = (getattr(module, "img_size", None) for module in model.modules())
    size = next((size for size in sizes if size), None)
    size = size or tuple(config.get("input_size") or (3, *_DEFAULT_SIZE))[1:]
    size = (size, size) if isinstance(size, int) else size
    mean = tuple(config.get("mean") or IMAGENET[0])
    std = tuple(config.get("std") or IMAGENET[1])
    size = (int(size[0]), int(size[1]))
    channels = input_channels(model, size)
    source = "timm pretrained_cfg"
    defaults = ModelDefaults(name, "timm", size, mean[:channels], std[:channels], source=source)
    return defaults.with_channels(channels)


def _transformers_defaults(model: nn.Module) -> ModelDefaults:
    if tower := vision_tower(model):
        raise ValueError(
            f"the model must take only images, but {type(model).__name__} takes more; use its "
            f"vision tower, model.{tower[0]}, or compare images with texts: text=[...]"
        )
    config = cast("Any", model.config)
    vision = vision_config(config)
    size = getattr(vision, "image_size", None) or _DEFAULT_SIZE
    size = (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))
    kind = str(vision.model_type)
    mean, std = default_mean_std(kind)
    source = f"assumed: mean and std of published {kind} weights"
    error = ""
    wrapped = getattr(config, "pretrained_cfg", None)
    wrapped = wrapped or getattr(getattr(model, "timm_model", None), "pretrained_cfg", None)
    if isinstance(wrapped, dict):
        mean, std = (tuple(wrapped.get(key) or ()) for key in ("mean", "std"))
        mean, std, source = mean or IMAGENET[0], std or IMAGENET[1], "timm pretrained_cfg"
        size = configured_image_size(model) or size
    if kind.startswith(_BGR_TYPES):
        error = f"the weights of {kind} take blue, green and red, not normalized by mean and std"
    channels = int(getattr(vision, "num_channels", 3))
    id2label = getattr(config, "id2label", None) or {}
    names = tuple(str(id2label[index]) for index in sorted(id2label))
    named = all(not name.startswith("LABEL_") for name in names)
    defaults = ModelDefaults(
        config.model_type,
        "transformers",
        size,
        mean[:channels],
        std[:channels],
        names if named else (),
        source=source,
        preprocessing_error=error,
    )
    return defaults.with_channels(channels)


def default_mean_std(model_type: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std that published weights of a Hugging Face model type were trained with.

    Example:
        >>> default_mean_std("siglip_vision_model")[0], default_mean_std("dinov2")[0]
        ((0.5, 0.5, 0.5), (0.485, 0.456, 0.406))
    """
    if model_type.startswith(_CLIP_WITH_IMAGENET):
        return IMAGENET
    if "clip" in model_type or model_type.startswith(_OPENAI_TYPES):
        return OPENAI
    if model_type.startswith(_UNCHANGED_TYPES):
        return UNCHANGED
    return HALVES if model_type == "vit" or model_type.startswith(_HALVES_TYPES) else IMAGENET
