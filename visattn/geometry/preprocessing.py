"""Geometry of the preprocessing transforms of torchvision (v1, v2) and timm.

Transforms are recognized by their class names.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from torch import Tensor, nn

from visattn.geometry.affine import Geometry

Size = tuple[int, int]
Sides = int | Sequence[int]

_COLORS = frozenset((
    # types and layouts of torchvision
    "ConvertImageDtype", "Identity", "ObjectDetection", "PILToTensor", "ToDtype", "ToImage",
    "ToPILImage", "ToPureTensor", "ToTensor",
    # colors and noise
    "ColorJitter", "GaussianBlur", "GaussianNoise", "Grayscale", "JPEG", "Normalize", "RGB",
    "RandomAdjustSharpness", "RandomAutocontrast", "RandomChannelPermutation", "RandomEqualize",
    "RandomErasing", "RandomGrayscale", "RandomInvert", "RandomPhotometricDistort",
    "RandomPosterize", "RandomSolarize",
    # from timm
    "MaybePILToTensor", "MaybeToTensor",
))  # fmt: skip
"""Transforms that do not move pixels."""

_FLIPS = {"RandomHorizontalFlip": False, "RandomVerticalFlip": True}
"""Transforms that may flip an image, and whether vertically."""


class UnsupportedTransform:
    """The preprocessing of a model that cannot be followed; whoever uses it gets the reason.

    Raises:
        ValueError: The reason, when it is called or its geometry is needed.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __call__(self, image: object) -> Any:  # noqa: ARG002
        """Raise the reason."""
        raise ValueError(self.reason)


def _pair(size: Sides) -> Size:
    """Return height and width from a size of torchvision, in which one number means a square."""
    sides = [size] if isinstance(size, int) else list(size)
    return int(sides[0]), int(sides[-1])


def _resize(geometry: Geometry, size: Sides | None, max_size: int | None = None) -> Geometry:
    """Resize to a height and width, or the shorter side to `size` and the longer to `max_size`."""
    y, x = geometry.input_size
    target = [size] if isinstance(size, int) else size
    if target is not None and len(target) == 2:
        return geometry.resized(_pair(target))
    short = min(y, x)
    long = max(y, x)
    if target is None:
        sides = (int(cast("int", max_size) * short / long), cast("int", max_size))
    else:
        sides = (int(target[0]), int(target[0] * long / short))  # truncated, not rounded
        if max_size is not None and sides[1] > max_size:
            sides = (int(max_size * sides[0] / sides[1]), max_size)
    return geometry.resized(sides if y <= x else (sides[1], sides[0]))


def center_crop(geometry: Geometry, size: Sides) -> Geometry:
    """Return the geometry after a center crop of torchvision, which pads what is smaller.

    Example:
        >>> center_crop(Geometry.identity((5, 7)), (6, 3)).region
        (2.0, 0.0, 5.0, 5.0)
    """
    target = _pair(size)
    top, left = map(crop_offset, geometry.input_size, target)
    return geometry.cropped(top, left, target)


def crop_offset(length: int, target: int) -> int:
    """Return the start of a center crop, rounded half to even; negative for padding.

    Example:
        >>> crop_offset(8, 5), crop_offset(5, 8)  # of an odd padding the larger part comes last
        (2, -1)
    """
    return round((length - target) / 2) if length >= target else -((target - length) // 2)


def _pad(geometry: Geometry, padding: Sides) -> Geometry:
    """Pad by one, two or four widths of torchvision: left, top, right, bottom."""
    widths = [padding] if isinstance(padding, int) else list(padding)
    left, top, right, bottom = (widths * 4)[:4]
    y, x = geometry.input_size
    return geometry.padded(top, left, (y + top + bottom, x + left + right))


def _trim_border(step: Any, geometry: Geometry) -> Geometry:
    y, x = geometry.input_size
    border = step.border_size
    return geometry.cropped(border, border, (y - 2 * border, x - 2 * border))


def _resize_keep_ratio(step: Any, geometry: Geometry) -> Geometry:
    """Resize by the ratio of the longer side, of the shorter side, or an interpolation of both."""
    ratios = [side / target for side, target in zip(geometry.input_size, step.size, strict=True)]
    ratio = max(ratios) * step.longest + min(ratios) * (1 - step.longest)
    y, x = geometry.input_size
    return geometry.resized((round(y / ratio), round(x / ratio)))


def _weights_preset(step: Any, geometry: Geometry) -> Geometry:
    """Apply the preset transform of pretrained torchvision weights: resize and center crop."""
    resized = _resize(geometry, step.resize_size) if step.resize_size else geometry
    return center_crop(resized, step.crop_size) if hasattr(step, "crop_size") else resized


_MOVES: dict[str, Callable[[Any, Geometry], Geometry]] = {
    "Resize": lambda step, geometry: _resize(geometry, step.size, step.max_size),
    "CenterCrop": lambda step, geometry: center_crop(geometry, step.size),
    "CenterCropOrPad": lambda step, geometry: center_crop(geometry, step.size),
    "Pad": lambda step, geometry: _pad(geometry, step.padding),
    "TrimBorder": _trim_border,
    "ResizeKeepRatio": _resize_keep_ratio,
    "ImageClassification": _weights_preset,
    "SemanticSegmentation": _weights_preset,
}
"""Transforms that move pixels: functions of the step and the geometry before it."""


# Classes with the same names in other packages may work differently.
_PACKAGES = ("torchvision.transforms.", "timm.data.", "visattn.geometry.")
_MANUAL_GEOMETRY = (
    "use the evaluation transform, or describe the steps, as in "
    "Geometry.identity(size).resized(...).cropped(...), and pass the geometry to the map: "
    "attention_map.with_geometry(geometry)"
)


def geometry_of_transform(transform: object, size: Size) -> Geometry:
    """Return the geometry of an image under a deterministic transform of torchvision or timm.

    Args:
        transform: A transform, or several in a `Compose`, `nn.Sequential` or list. Transforms
            that only change colors are ignored.
        size: Height and width of the upright image.

    Raises:
        ValueError: If a transform is unknown or random.

    Example:
        >>> from torchvision.transforms import v2
        >>> geometry_of_transform(v2.Resize((5, 10)), (10, 20)).input_size
        (5, 10)
    """
    geometry = Geometry.identity(size)
    for step in steps_of(transform):
        geometry = _after(step, geometry)
    return geometry


def transform_with_geometry(transform: object, image: Any) -> tuple[Any, Geometry]:
    """Apply a deterministic transform, and return its output and geometry.

    Args:
        transform: As for `geometry_of_transform`.
        image: Upright image: a Pillow image, or a tensor whose last axes are rows and columns.

    Raises:
        ValueError: If a step is unknown or random, or its output has an unexpected size.

    Example:
        >>> from torchvision.transforms import v2
        >>> flip = v2.RandomHorizontalFlip(p=1.0)
        >>> _, geometry = transform_with_geometry(flip, torch.zeros(3, 5, 7))
        >>> geometry.to_image(torch.tensor([[0.0, 0.0]]))
        tensor([[7., 0.]])
    """
    geometry = Geometry.identity(_size_of(image))
    for step in steps_of(transform):
        # Before the step runs, so that an unsupported one is refused with its reason.
        geometry = _after(step, geometry)
        image = step(image)
        if (size := _size_of(image)) != geometry.input_size:
            raise ValueError(
                f"{_class_name(step)} must give {geometry.input_size} (height, width), "
                f"gave {size}: its version is not supported; {_MANUAL_GEOMETRY}"
            )
    return image, geometry


def steps_of(transform: Any) -> Iterator[Any]:
    """Yield the steps of a transform in their order, from nested containers too.

    Raises:
        ValueError: If it is the preprocessing of a model that cannot be followed.

    Example:
        >>> len(list(steps_of([nn.Identity(), [nn.Identity()]])))
        2
    """
    if isinstance(transform, UnsupportedTransform):
        raise ValueError(transform.reason)  # noqa: TRY004 - it was passed as a transform
    steps = transform.transforms if _known_name(transform) == "Compose" else transform
    # Exactly this class: a subclass may do more than call its children in their order.
    if isinstance(steps, (list, tuple)) or type(steps) is nn.Sequential:
        for step in cast("Sequence[Any]", steps):
            yield from steps_of(step)
    else:
        yield transform


def _known_name(step: object) -> str:
    """Return the class name of a transform of torchvision or timm, "" for others."""
    cls = type(step)
    if cls is nn.Identity:
        return "Identity"
    return cls.__name__ if cls.__module__.startswith(_PACKAGES) else ""


def _class_name(step: object) -> str:
    return str(getattr(step, "__qualname__", type(step).__name__))


def _size_of(image: Any) -> Size:
    """Return the height and width of a tensor or a Pillow image."""
    if isinstance(image, Tensor):
        return int(image.shape[-2]), int(image.shape[-1])
    width, height = image.size
    return height, width


def _after(step: Any, geometry: Geometry) -> Geometry:
    """Return the geometry after a step."""
    name = _known_name(step)
    if name in _COLORS:
        return geometry
    if name in _FLIPS and step.p in (0, 1):
        return geometry.flipped(vertical=_FLIPS[name]) if step.p else geometry
    # A resize of timm may sample a scale or an aspect ratio.
    random = [getattr(step, f"random_{kind}_prob", 0) for kind in ("scale", "aspect")]
    if name in _MOVES and not any(random):
        return _MOVES[name](step, geometry)
    reason = "unsupported" if name == "" or not name.startswith("Random") else "random"
    raise ValueError(f"the transform {_class_name(step)} is {reason}; {_MANUAL_GEOMETRY}")
