"""Geometry of the preprocessing transforms of torchvision (v1, v2) and timm.

Transforms are recognized by their class names.
"""

from collections.abc import Iterator, Sequence
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


class UnsupportedTransform:
    """Placeholder for preprocessing of unknown geometry; using it raises the reason.

    Raises:
        ValueError: The reason, when it is called or its geometry is needed.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason

    def __call__(self, image: object) -> Any:  # noqa: ARG002
        """Raise the reason."""
        raise ValueError(self.reason)


def center_crop(geometry: Geometry, size: Sides) -> Geometry:
    """Return the geometry after torchvision's center crop, which pads smaller images.

    Example:
        >>> center_crop(Geometry.identity((5, 7)), (6, 3)).region
        (2.0, 0.0, 5.0, 5.0)
    """
    height, width = (size, size) if isinstance(size, int) else (size[0], size[-1])
    y, x = geometry.input_size
    return geometry.cropped(crop_offset(y, height), crop_offset(x, width), (height, width))


def crop_offset(length: int, target: int) -> int:
    """Return the start of a center crop, rounded half to even; negative for padding.

    Example:
        >>> crop_offset(8, 5), crop_offset(5, 8)  # the larger part of odd padding comes last
        (2, -1)
    """
    return round((length - target) / 2) if length >= target else -((target - length) // 2)


def _resize(geometry: Geometry, size: Sides | None, max_size: int | None = None) -> Geometry:
    """Resize to a height and width, or the shorter side to `size` and the longer to `max_size`."""
    y, x = geometry.input_size
    target = [size] if isinstance(size, int) else size
    if target is not None and len(target) == 2:
        return geometry.resized((int(target[0]), int(target[1])))
    short = min(y, x)
    long = max(y, x)
    if target is None:
        sides = (int(cast("int", max_size) * short / long), cast("int", max_size))
    else:
        sides = (int(target[0]), int(target[0] * long / short))  # truncated, not rounded
        if max_size is not None and sides[1] > max_size:
            sides = (int(max_size * sides[0] / sides[1]), max_size)
    return geometry.resized(sides if y <= x else (sides[1], sides[0]))


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
    height, width = image.shape[-2:] if isinstance(image, Tensor) else image.size[::-1]
    geometry = Geometry.identity((height, width))
    for step in steps_of(transform):
        # Before the step runs, so that an unsupported one raises with its reason.
        geometry = _after(step, geometry)
        image = step(image)
        size = tuple(image.shape[-2:]) if isinstance(image, Tensor) else image.size[::-1]
        if size != geometry.input_size:
            raise ValueError(
                f"{type(step).__name__} must return {geometry.input_size} (height, width), "
                f"got {size}: its version is not supported; {_MANUAL_GEOMETRY}"
            )
    return image, geometry


def steps_of(transform: Any) -> Iterator[Any]:
    """Yield the steps of a transform in order, also from nested containers.

    Raises:
        ValueError: If it is an `UnsupportedTransform`.

    Example:
        >>> len(list(steps_of([nn.Identity(), [nn.Identity()]])))
        2
    """
    if isinstance(transform, UnsupportedTransform):
        raise ValueError(transform.reason)  # noqa: TRY004 - it was passed as a transform
    kind = type(transform)
    composes = kind.__name__ == "Compose" and kind.__module__.startswith(_PACKAGES)
    steps = transform.transforms if composes else transform
    # Exactly this class: a subclass may do more than call its children in their order.
    if isinstance(steps, (list, tuple)) or kind is nn.Sequential:
        for step in cast("Sequence[Any]", steps):
            yield from steps_of(step)
    else:
        yield transform


def _after(step: Any, geometry: Geometry) -> Geometry:
    """Return the geometry after a step."""
    kind = type(step)
    known = kind is nn.Identity or kind.__module__.startswith(_PACKAGES)
    name = kind.__name__ if known else ""
    y, x = geometry.input_size
    match name:
        case _ if name in _COLORS:
            return geometry
        case "Resize":
            return _resize(geometry, step.size, step.max_size)
        case "CenterCrop" | "CenterCropOrPad":
            return center_crop(geometry, step.size)
        case "ImageClassification" | "SemanticSegmentation":  # presets of torchvision weights
            resized = _resize(geometry, step.resize_size) if step.resize_size else geometry
            return center_crop(resized, step.crop_size) if hasattr(step, "crop_size") else resized
        case "Pad":  # by one, two or four widths: left, top, right, bottom
            widths = [step.padding] if isinstance(step.padding, int) else list(step.padding)
            left, top, right, bottom = (widths * 4)[:4]
            return geometry.padded(top, left, (y + top + bottom, x + left + right))
        case "ResizeKeepRatio" if not (step.random_scale_prob or step.random_aspect_prob):
            # By the ratio of the longer side, of the shorter side, or between both.
            ratios = y / step.size[0], x / step.size[1]
            ratio = max(ratios) * step.longest + min(ratios) * (1 - step.longest)
            return geometry.resized((round(y / ratio), round(x / ratio)))
        case "RandomHorizontalFlip" if step.p in (0, 1):
            return geometry.flipped() if step.p else geometry
        case _:
            random = name.startswith("Random") or name == "ResizeKeepRatio"
            title = getattr(step, "__qualname__", type(step).__name__)
            raise ValueError(
                f"the transform {title} is {'random' if random else 'unsupported'}; "
                f"{_MANUAL_GEOMETRY}"
            )
