"""Image size, class names and vision tower, read from the attributes and configs of a model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import Tensor, nn

from visattn.recording.frozen import first_weight, without_grad
from visattn.recording.interception import in_this_run

ClassNames = Sequence[str] | Mapping[int, str] | Mapping[str, str]
COMMON_SIZES = (28, 32, 64, 96, 128, 224, 256, 299, 384)
_SIZE_ATTRIBUTES = ("image_size", "img_size", "input_size")
_CONFIGS = ("default_cfg", "pretrained_cfg", "config")
_VISION_CONFIGS = ("vision_config", "image_config", "encoder")
_LONGEST_SIDE = 100_000  # pixels, beyond which no tensor can be made


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

    It is an attribute `image_size`, `img_size` or `input_size`, or an entry of a `default_cfg`,
    `pretrained_cfg` or `config`; the model itself comes before its modules.

    Example:
        >>> model = nn.Sequential(nn.Flatten())
        >>> configured_image_size(model)
        >>> model[0].img_size = 32
        >>> configured_image_size(model)
        (32, 32)
    """
    values = (value for module in model.modules() for value in _size_values(module))
    return next((size for size in map(_parse_sides, values) if size is not None), None)


def input_size_hint(
    model: nn.Module, default_size: tuple[int, int], channels: int, error: str
) -> str:
    """Return advice for a model that does not run on images of the given size.

    The error is the exception that it raised, with its type first.
    """
    if error.startswith("TypeError"):
        return (
            "a model must take a batch of images as its only argument; wrap it in a module that "
            "does"
        )
    if reason := channels_error(model, default_size, channels):
        return reason
    sizes = dict.fromkeys([default_size, *((size, size) for size in COMMON_SIZES)])
    working = [size for size in sizes if runs(model, channels, size)]
    if not working:
        return (
            "give the size of its images: visattn.explain(model, images, img_size=(height, "
            "width)), or --input-size HEIGHTxWIDTH"
        )
    listed = " and ".join(f"{height} x {width}" for height, width in working)
    height, width = working[0]
    square = height == width
    argument, option = (height, f"{height}") if square else (working[0], f"{height}x{width}")
    return (
        f"it runs on {listed}: visattn.explain(model, images, img_size={argument}), or "
        f"--input-size {option}"
    )


def channels_error(model: nn.Module, size: tuple[int, int], channels: int) -> str:
    """Return why a model cannot take images, by the convolution at which it fails; "" if it can."""
    entered: list[tuple[str, nn.Module, torch.Size]] = []

    def hook(site: str) -> Callable[..., None]:
        def store(module: nn.Module, args: tuple[Any, ...]) -> None:
            if args and isinstance(args[0], torch.Tensor):
                entered.append((site, module, args[0].shape))

        return store

    with ExitStack() as stack:
        for site, module in model.named_modules():
            if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
                stack.callback(module.register_forward_pre_hook(in_this_run(hook(site))).remove)
        # Without a batch axis, a volume network takes a batch of one for the channels of a volume.
        works = runs(model, channels, size)
    if works and not any(isinstance(module, nn.Conv3d) for _, module, _ in entered):
        return ""
    if not entered:  # it checks the number itself
        convolutions = (
            (site, module)
            for site, module in model.named_modules()
            if isinstance(module, nn.Conv2d) and module.in_channels not in (1, 3)
        )
        first = next(convolutions, None)
        fits = first is not None and runs(model, first[1].in_channels, size)
        entered += [(*first, torch.Size((1, channels, *size)))] if first and fits else []
    if len(entered) != 1:
        return ""
    [(site, module, shape)] = entered
    site = site or "the model"
    if not isinstance(module, nn.Conv2d):
        kind = "volumes" if isinstance(module, nn.Conv3d) else "sequences"
        return (
            f"images have rows and columns, but {site}, its first convolution, takes {kind} "
            f"({type(module).__name__}): wrap the model in a module that makes {kind} of images"
        )
    if len(shape) == 4 and shape[1] != module.in_channels:
        return (
            f"its images have {shape[1]} channels, but {site}, its first convolution, takes "
            f"{module.in_channels}: pass images of as many channels, or wrap the model in a module "
            "that adds the others, as in self.model(torch.cat([images, others], 1))"
        )
    return ""


def parse_class_names(class_names: ClassNames, num_classes: int | None) -> tuple[str, ...]:
    """Return class names in the order of their indices.

    They are given in this order, or by index, such as `id2label`.

    Raises:
        TypeError: If they are a single string.
        ValueError: If their number is wrong, an index is missing, or a name is duplicated.

    Example:
        >>> parse_class_names({"1": "dog", "0": "cat"}, 2)
        ('cat', 'dog')
    """
    if isinstance(class_names, str):
        raise TypeError(f"classes must be a sequence of names, got the string {class_names!r}")
    if isinstance(class_names, Mapping):
        if not all(str(index).isdecimal() for index in class_names):
            raise ValueError(f"class_names must map numbers to names, got {class_names!r:.80}")
        by_index = {int(index): str(name) for index, name in class_names.items()}
        if sorted(by_index) != list(range(len(by_index))):
            raise ValueError(
                f"class indices must be 0 to {len(by_index) - 1}, got {sorted(by_index)[:5]} ..."
            )
        names = tuple(by_index[index] for index in range(len(by_index)))
    else:
        names = tuple(map(str, class_names))
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
    if "ForImageClassification" in type(model).__name__:
        return None
    config = vision_config(getattr(model, "config", None))
    if config is getattr(model, "config", None):
        return None
    return next(
        (
            (name, module)
            for name, module in model.named_modules()
            if name and type(getattr(module, "config", None)) is type(config)
        ),
        None,
    )


def vision_config(config: Any) -> Any:
    """Return the vision part of a Hugging Face configuration; the whole one if it has no parts."""
    parts = (getattr(config, name, None) for name in _VISION_CONFIGS)
    return next((inner for inner in parts if hasattr(inner, "model_type")), config)


def _size_values(module: nn.Module) -> Iterator[Any]:
    own = vars(module)
    for name in _SIZE_ATTRIBUTES:
        yield own.get(name)  # no properties, which may run any code
    for name in _CONFIGS:
        config = own[name] if name in own else _looked_up(module, name)
        if config is not None:
            for key in _SIZE_ATTRIBUTES:
                yield config.get(key) if isinstance(config, Mapping) else getattr(config, key, None)


def _looked_up(module: nn.Module, name: str) -> Any:
    """Return what a class has of that name, or finds by a `__getattr__` of its own.

    That of `nn.Module` knows weights and modules alone, and takes long to say that it has none.
    """
    own = type(module).__getattr__ is not nn.Module.__getattr__
    return getattr(module, name, None) if own or hasattr(type(module), name) else None


def _parse_sides(size: Any) -> tuple[int, int] | None:
    """Return height and width from one number, (height, width) or (channels, height, width)."""
    if isinstance(size, int) and not isinstance(size, bool):
        return (size, size) if 0 < size <= _LONGEST_SIDE else None
    if not isinstance(size, Sequence) or isinstance(size, str):
        return None
    sides = cast("Sequence[Any]", size)
    valid = all(isinstance(side, int) and 0 < side <= _LONGEST_SIDE for side in sides)
    return (sides[-2], sides[-1]) if valid and len(sides) in (2, 3) else None


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
