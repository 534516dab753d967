"""What a model states about its images and classes: image size, mean and std, and class names."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any, Protocol, cast, get_args, runtime_checkable

from torch import Tensor, nn

from visattn.recording.frozen import first_weight, internal_transform, without_grad
from visattn.recording.model_info import Library, ModelInfo

ClassNames = Sequence[str] | Mapping[int, str] | Mapping[str, str]
Colors = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and standard deviation of each channel."""
IMAGENET: Colors = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALVES: Colors = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
OPENAI: Colors = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
UNCHANGED: Colors = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
# Mean and std that the published weights of a model type were trained with. The defaults of the
# image processors of transformers differ for many, such as Swin, DINOv2 or ResNet.
_COLORS_OF_TYPES: dict[tuple[str, ...], Colors] = {
    ("clipseg", "xclip"): IMAGENET,
    (
        "aimv2", "blip", "bridgetower", "clip", "flava", "git", "groupvit", "kosmos-2", "metaclip",
        "mlcd", "owlv",
    ): OPENAI,
    ("glpn", "pp_doclayout"): UNCHANGED,
    (
        "align", "beit", "bit", "data2vec", "donut", "dpt", "layoutlmv3", "mobilenet_v", "siglip",
        "vilt", "vit_hybrid", "vitmatte",
    ): HALVES,
}  # fmt: skip
_BGR_TYPES = ("mobilevit", "pp_lcnet", "pp_ocr")
_SIZES = (28, 32, 64, 96, 128, 224, 256, 299, 384)  # of images, tried for the hint in an error
_SIZE_NAMES = ("image_size", "img_size", "input_size")
_CONFIGS = ("default_cfg", "pretrained_cfg", "config")
_VISION_CONFIGS = ("vision_config", "image_config", "encoder")
_USUAL = (224, 224)
_OF_TIMM = "timm pretrained_cfg"
_LONGEST_SIDE = 100_000  # pixels; larger tensors cannot be allocated


@runtime_checkable
class NormalizingClassifier(Protocol):
    """A classifier that normalizes images itself, as the classifiers of visattn do."""

    class_names: tuple[str, ...]
    img_size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalize(self, images: Tensor) -> Tensor:
        """Return images normalized with mean and std."""
        ...

    def classify(self, images: Tensor) -> Tensor:
        """Return the class scores of normalized images."""
        ...


def forward_function(model: nn.Module) -> Callable[..., Any]:
    """Return the function of a model that takes normalized images."""
    return model.classify if isinstance(model, NormalizingClassifier) else model


def stated_info(
    model: nn.Module, size: tuple[int, int] | None = None, channels: int | None = None
) -> tuple[ModelInfo, tuple[str, ...]]:
    """Return what a model, or its library, states about its images, and its class names.

    Args:
        model: The model.
        size: Height and width of its images; by default as it states.
        channels: Number of image channels; by default that of its first convolution.

    Raises:
        ValueError: If it is a Hugging Face model that takes other inputs besides images.
    """
    package, own = type(model).__module__.split(".")[0], cast("Any", model)
    stated = configured_image_size(model)
    names: tuple[str, ...] = ()
    count = channels or 0
    if isinstance(model, NormalizingClassifier) or (
        package == "visattn" and hasattr(model, "class_names") and hasattr(model, "mean")
    ):
        name = str(getattr(model, "name", None) or type(model).__name__)
        info = ModelInfo(name, "visattn", own.img_size, own.mean, own.std, colors="visattn model")
        names, count = own.class_names, count or len(own.mean)
    elif package == "timm" and isinstance(getattr(model, "pretrained_cfg", None), dict):
        name = str(own.pretrained_cfg.get("architecture") or type(model).__name__)
        colors = _timm_colors(own.pretrained_cfg)
        info = ModelInfo(name, "timm", stated or _USUAL, *colors, colors=_OF_TIMM)
    elif hasattr(getattr(model, "config", None), "model_type") and any(
        base.__module__.startswith("transformers.") for base in type(model).__mro__
    ):
        info, names = _of_transformers(model, stated or _USUAL)
    else:
        info = _of_others(model, package, stated)
    if size is not None:
        info = replace(info, input_size=size, size_source="argument")
    count = count or input_channels(model, info.input_size)
    mean, std = info.mean[:count], info.std[:count]
    if len(mean) == count:
        return replace(info, mean=mean, std=std), names
    (mean, std), source = _assumed_colors(count)
    return replace(info, mean=mean, std=std, colors=source, mean_color=()), names


def _timm_colors(config: Mapping[str, Any]) -> Colors:
    return tuple(config.get("mean") or IMAGENET[0]), tuple(config.get("std") or IMAGENET[1])


def _assumed_colors(channels: int) -> tuple[Colors, str]:
    """Return the mean and std to assume for unknown images, and a description of them."""
    if channels == 3:
        return IMAGENET, "assumed: mean and std of ImageNet"
    if channels == 1:
        return ((0.5,), (0.5,)), "assumed: photos are converted to gray, mean and std 0.5"
    unchanged = ((0.0,) * channels, (1.0,) * channels)
    return unchanged, f"assumed: {channels} channels without mean and std"


def _of_others(model: nn.Module, package: str, size: tuple[int, int] | None) -> ModelInfo:
    """Return the metadata of a model whose library states no mean and std."""
    name = type(model).__name__
    library: Library = cast("Library", package) if package in get_args(Library) else "other"
    # A torchvision classifier has the size of its published weights.
    source = "model" if size or library == "torchvision" else "assumed"
    size = size or ((299, 299) if name == "Inception3" else _USUAL)
    if (transform := internal_transform(model)) is None:
        return ModelInfo(name, library, size, (), (), size_source=source)
    color = tuple(map(float, transform.image_mean))
    of_model, colors = (0.0,) * len(color), "the model normalizes images"
    ones = (1.0,) * len(color)
    return ModelInfo(name, library, size, of_model, ones, mean_color=color, colors=colors)


def input_channels(model: nn.Module, size: tuple[int, int] = (224, 224)) -> int:
    """Return the number of image channels: 3 if the model takes RGB, else by its first convolution.

    A network may add channels to a photo, or convert it to gray, before its first convolution.

    Example:
        >>> input_channels(nn.Conv2d(5, 2, 1), (4, 4))
        5
    """
    convolutions = (module for module in model.modules() if isinstance(module, nn.Conv2d))
    channels = next((convolution.in_channels for convolution in convolutions), 3)
    if channels == 3:
        return channels
    tried = ((count, each) for each in _tried_sizes(size) for count in (3, channels))
    return next((count for count, each in tried if runs(model, count, each)), 3)


def _tried_sizes(first: tuple[int, int]) -> dict[tuple[int, int], None]:
    return dict.fromkeys([first, *((side, side) for side in _SIZES)])


def _of_transformers(model: nn.Module, size: tuple[int, int]) -> tuple[ModelInfo, tuple[str, ...]]:
    if tower := vision_tower(model):
        raise ValueError(
            f"the model must take only images, but {type(model).__name__} takes text too; use its "
            f"vision tower, model.{tower[0]}, or compare images with texts: text=[...]"
        )
    config = cast("Any", model.config)
    vision = vision_config(config)
    kind = str(vision.model_type)
    (mean, std), source = (
        default_mean_std(kind),
        f"assumed: mean and std of published {kind} weights",
    )
    wrapped = getattr(config, "pretrained_cfg", None)
    wrapped = wrapped or getattr(getattr(model, "timm_model", None), "pretrained_cfg", None)
    if isinstance(wrapped, dict):
        (mean, std), source = _timm_colors(wrapped), _OF_TIMM
    else:  # the vision part's own size comes before that of another part, such as a decoder
        size = _parse_sides(getattr(vision, "image_size", None)) or size
    error = ""
    if kind.startswith(_BGR_TYPES):
        error = f"the weights of {kind} expect BGR images that are not normalized by mean and std"
    info = ModelInfo(
        config.model_type, "transformers", size, mean, std, colors=source, preprocessing_error=error
    )
    id2label = getattr(config, "id2label", None) or {}
    names = tuple(str(id2label[index]) for index in sorted(id2label))
    unnamed = any(name.startswith("LABEL_") for name in names)
    return info, () if unnamed else names


def default_mean_std(model_type: str) -> Colors:
    """Return mean and std that published weights of a Hugging Face model type were trained with.

    Example:
        >>> default_mean_std("siglip_vision_model")[0], default_mean_std("dinov2")[0]
        ((0.5, 0.5, 0.5), (0.485, 0.456, 0.406))
    """
    if model_type == "vit":
        return HALVES
    types = _COLORS_OF_TYPES.items()
    found = (colors for kinds, colors in types if model_type.startswith(kinds))
    return next(found, OPENAI if "clip" in model_type else IMAGENET)


def parse_image_size(size: Any) -> tuple[int, int]:
    """Return height and width from one number or a pair.

    Raises:
        ValueError: If it is neither.

    Example:
        >>> parse_image_size(32), parse_image_size((48, 64))
        ((32, 32), (48, 64))
    """
    sides = _parse_sides(size)
    if sides is None or (isinstance(size, Sequence) and len(size) != 2):
        raise ValueError(
            f"size must be a positive integer or (height, width) of the images, got {size!r}"
        )
    return sides


def configured_image_size(model: nn.Module) -> tuple[int, int] | None:
    """Return the image size in the configuration of a model or its modules; None without one.

    It is an attribute `image_size`, `img_size` or `input_size`, or else an entry of a
    `default_cfg`, `pretrained_cfg` or `config`, which may be that of other weights. The model comes
    before its submodules.

    Example:
        >>> model = nn.Sequential(nn.Flatten())
        >>> configured_image_size(model)
        >>> model[0].img_size = 32
        >>> configured_image_size(model)
        (32, 32)
    """
    modules = list(model.modules())
    attributes = map(vars, modules)  # without properties, which may run any code
    configs = (getattr(module, name, None) for module in modules for name in _CONFIGS)
    for config in chain(attributes, configs):
        of_mapping = isinstance(config, Mapping)
        recurrent = of_mapping and "hidden_size" in config  # input_size is a number of features
        for name in _SIZE_NAMES[: 2 if recurrent else 3] if config is not None else ():
            value = config.get(name) if of_mapping else getattr(config, name, None)
            if (size := _parse_sides(value)) is not None:
                return size
    return None


def _parse_sides(size: Any) -> tuple[int, int] | None:
    """Return height and width from one number, (height, width) or (channels, height, width)."""
    sides = (size, size) if isinstance(size, int) else size
    if not isinstance(sides, Sequence) or len(sides) not in (2, 3):
        return None
    valid = all(type(side) is int and 0 < side <= _LONGEST_SIDE for side in sides)
    return (sides[-2], sides[-1]) if valid else None


def input_hint(model: nn.Module, default_size: tuple[int, int], channels: int) -> str:
    """Return a hint for a model that does not run on images of the given size."""
    working = [size for size in _tried_sizes(default_size) if runs(model, channels, size)]
    if not working:
        return (
            "set the size of its images with input_size=(height, width) or --input-size "
            "HEIGHTxWIDTH, or wrap it in a module that takes only a batch of images with "
            f"{channels} channels"
        )
    listed = " and ".join(f"{height} x {width}" for height, width in working)
    height, width = working[0]
    return f"it runs on {listed}: input_size=({height}, {width}), or --input-size {height}x{width}"


def runs(model: nn.Module, channels: int, size: tuple[int, int]) -> bool:
    """Whether a model runs on an image of this size and number of channels.

    Example:
        >>> runs(nn.Conv2d(5, 2, 1), 5, (4, 4)), runs(nn.Conv2d(5, 2, 1), 3, (4, 4))
        (True, False)
    """
    zeros = first_weight(model).new_zeros(1, channels, *size)
    with without_grad(model):
        try:
            forward_function(model)(zeros)
        except Exception:  # noqa: BLE001 - any exception of the user's model means no
            return False
    return True


def parse_class_names(class_names: ClassNames, num_classes: int | None) -> tuple[str, ...]:
    """Return class names in the order of their indices.

    They are given in this order, or as a mapping from indices, such as `id2label`.

    Raises:
        TypeError: If they are a single string.
        ValueError: If their number is wrong, an index is missing, or a name is duplicated.

    Example:
        >>> parse_class_names({"1": "dog", "0": "cat"}, 2)
        ('cat', 'dog')
    """
    if isinstance(class_names, str):
        raise TypeError(f"classes must be a sequence of names, got the string {class_names!r}")
    names = tuple(map(str, class_names))
    if isinstance(class_names, Mapping):
        by_index = {int(index): str(name) for index, name in class_names.items()}
        if sorted(by_index) != list(range(len(by_index))):
            raise ValueError(
                f"class indices must be 0 to {len(by_index) - 1}, got {sorted(by_index)[:5]} ..."
            )
        names = tuple(by_index[index] for index in sorted(by_index))
    if num_classes is not None and len(names) != num_classes:
        raise ValueError(
            f"there must be a name for each of {num_classes} classes, got {len(names)} names"
        )
    if duplicates := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"class names must be unique, got {duplicates[0]!r} more than once")
    return names


def vision_tower(model: nn.Module) -> tuple[str, nn.Module] | None:
    """Return name and module of the vision tower of a Hugging Face model that also takes text.

    Returns None for a model that takes only images: a classifier, a backbone or a vision tower.

    Example:
        >>> from types import SimpleNamespace
        >>> class Config: model_type = "vision"
        >>> tower, model = nn.Identity(), nn.Module()
        >>> tower.config, model.config = Config(), SimpleNamespace(vision_config=Config())
        >>> model.vision_model = tower
        >>> vision_tower(model)
        ('vision_model', Identity())
    """
    whole = getattr(model, "config", None)
    config = vision_config(whole)
    if config is whole or "ForImageClassification" in type(model).__name__:
        return None
    kind = type(config)
    modules = (each for each in model.named_modules() if each[0])
    return next((each for each in modules if type(getattr(each[1], "config", None)) is kind), None)


def vision_config(config: Any) -> Any:
    """Return the vision part of a Hugging Face configuration; all of it if it has no parts."""
    parts = (getattr(config, name, None) for name in _VISION_CONFIGS)
    return next((inner for inner in parts if hasattr(inner, "model_type")), config)
