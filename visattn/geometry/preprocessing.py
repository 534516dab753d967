"""Geometry of preprocessing: how transforms of torchvision (v1, v2) and timm move an image.

Transforms are recognized by the names of their classes.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from torch import Tensor, nn

from visattn.geometry.affine import Geometry

Size = tuple[int, int]
Sides = int | Sequence[int]

IDENTITY_TRANSFORMS = frozenset((
    # torchvision's: kinds of numbers
    "ConvertImageDtype", "Identity", "ObjectDetection", "PILToTensor", "ToDtype", "ToImage",
    "ToPILImage", "ToPureTensor", "ToTensor",
    # colors and noise
    "ColorJitter", "GaussianBlur", "GaussianNoise", "Grayscale", "JPEG", "Normalize", "RGB",
    "RandomAdjustSharpness", "RandomAutocontrast", "RandomChannelPermutation", "RandomEqualize",
    "RandomErasing", "RandomGrayscale", "RandomInvert", "RandomPhotometricDistort",
    "RandomPosterize", "RandomSolarize",
    # timm's
    "MaybePILToTensor", "MaybeToTensor",
))  # fmt: skip
"""Those that leave everything where it is."""

FLIPS = {"RandomHorizontalFlip": False, "RandomVerticalFlip": True}
"""Those that may mirror an image, and whether upside down."""


def crop_or_pad(geometry: Geometry, top: int, left: int, size: Size) -> Geometry:
    """Return the geometry of a window that may reach beyond the input, where there are bars.

    Args:
        geometry: So far.
        top: Row of the input at which the window begins; below 0 if there are bars.
        left: Column at which it begins.
        size: Height and width of the window.

    Example:
        >>> crop_or_pad(Geometry.identity((5, 7)), -1, 2, (7, 3)).seen()
        (2.0, 0.0, 5.0, 5.0)
    """
    (y, x), (height, width) = geometry.input_size, size
    above, before = max(-top, 0), max(-left, 0)
    canvas = (y + above + max(top + height - y, 0), x + before + max(left + width - x, 0))
    if canvas != geometry.input_size:
        geometry = geometry.padded(above, before, canvas)
    return geometry if canvas == size else geometry.cropped(top + above, left + before, size)


def _pair(size: Sides) -> Size:
    """Return height and width as torchvision takes them: one number is both."""
    sides = [size] if isinstance(size, int) else list(size)
    return int(sides[0]), int(sides[-1])


def _by_shorter(geometry: Geometry, size: Sides | None, most: int | None = None) -> Geometry:
    """Resize to a pair, or the shorter side to a length; the longer one has at most another."""
    y, x = geometry.input_size
    wanted = [size] if isinstance(size, int) else size
    if wanted is not None and len(wanted) == 2:
        return geometry.resized(_pair(wanted))
    short, long = min(y, x), max(y, x)
    if wanted is None:
        sides = (int(cast("int", most) * short / long), cast("int", most))
    else:
        sides = (int(wanted[0]), int(wanted[0] * long / short))  # cut off, not rounded
        if most is not None and sides[1] > most:
            sides = (int(most * sides[0] / sides[1]), most)
    return geometry.resized(sides if y <= x else (sides[1], sides[0]))


def _center_crop(geometry: Geometry, size: Sides) -> Geometry:
    (y, x), (height, width) = geometry.input_size, _pair(size)
    return crop_or_pad(geometry, _margin(y, height), _margin(x, width), (height, width))


def _margin(have: int, want: int) -> int:
    """Return where the middle begins: half pixels go to even, those of bars to the far side."""
    return round((have - want) / 2) if have >= want else -((want - have) // 2)


def _barred(geometry: Geometry, padding: Sides) -> Geometry:
    left, top, right, bottom = _bars(padding)
    y, x = geometry.input_size
    return crop_or_pad(geometry, -top, -left, (y + top + bottom, x + left + right))


def _bars(padding: Sides) -> tuple[int, int, int, int]:
    """Return left, top, right, bottom, of which torchvision takes one, two or four."""
    given = [padding] if isinstance(padding, int) else list(padding)
    left, top, right, bottom = (given * 4)[:4]
    return left, top, right, bottom


def _trimmed(step: Any, geometry: Geometry) -> Geometry:
    (y, x), border = geometry.input_size, step.border_size
    return geometry.cropped(border, border, (y - 2 * border, x - 2 * border))


def _kept_ratio(step: Any, geometry: Geometry) -> Geometry:
    """Resize so that the longer side fits, or the shorter, or what lies between."""
    ratios = [have / want for have, want in zip(geometry.input_size, step.size, strict=True)]
    ratio = max(ratios) * step.longest + min(ratios) * (1 - step.longest)
    y, x = geometry.input_size
    return geometry.resized((round(y / ratio), round(x / ratio)))


def _preset(step: Any, geometry: Geometry) -> Geometry:
    """Follow what comes with torchvision's weights."""
    resized = _by_shorter(geometry, step.resize_size) if step.resize_size else geometry
    return _center_crop(resized, step.crop_size) if hasattr(step, "crop_size") else resized


DETERMINISTIC_TRANSFORMS: dict[str, Callable[[Any, Geometry], Geometry]] = {
    "Resize": lambda step, geometry: _by_shorter(geometry, step.size, step.max_size),
    "CenterCrop": lambda step, geometry: _center_crop(geometry, step.size),
    "CenterCropOrPad": lambda step, geometry: _center_crop(geometry, step.size),
    "Pad": lambda step, geometry: _barred(geometry, step.padding),
    "TrimBorder": _trimmed,
    "ResizeKeepRatio": _kept_ratio,
    "ImageClassification": _preset,
    "SemanticSegmentation": _preset,
}
"""Those that move every image of a size alike: from the step and the geometry before it."""


def _random_crop(step: Any, geometry: Geometry, drawn: Any) -> Geometry:
    """Follow a window on a canvas with bars; only the second version says their widths."""
    if isinstance(drawn, dict):
        left, top = drawn["padding"][:2]
        return crop_or_pad(geometry, drawn["top"] - top, drawn["left"] - left, _pair(step.size))
    (y, x), (height, width) = geometry.input_size, _pair(step.size)
    left, top, right, bottom = _bars(step.padding or 0)
    if step.pad_if_needed:
        left += max(width - x - left - right, 0)
        top += max(height - y - top - bottom, 0)
    return crop_or_pad(geometry, drawn[0] - top, drawn[1] - left, (height, width))


def _resized_crop(step: Any, geometry: Geometry, drawn: Any) -> Geometry:
    sides = ("top", "left", "height", "width")
    window = [drawn[side] for side in sides] if isinstance(drawn, dict) else drawn
    top, left, height, width = window
    return geometry.cropped(top, left, (height, width)).resized(_pair(step.size))


RANDOM_TRANSFORMS: dict[str, Callable[[Any, Geometry, Any], Geometry]] = {
    "RandomCrop": _random_crop,
    "RandomResizedCrop": _resized_crop,
    "RandomResizedCropAndInterpolation": _resized_crop,
    "RandomCropOrPad": lambda step, geometry, drawn: crop_or_pad(
        geometry, drawn[0], drawn[1], _pair(step.size)
    ),
    "RandomPad": lambda _, geometry, drawn: _barred(geometry, drawn),
    "RandomZoomOut": lambda _, geometry, drawn: _barred(geometry, drawn["padding"]),
    "ResizeKeepRatio": lambda _, geometry, drawn: geometry.resized(_pair(drawn)),
    "RandomResize": lambda _, geometry, drawn: _by_shorter(geometry, drawn["size"]),
    "RandomShortestSize": lambda _, geometry, drawn: geometry.resized(_pair(drawn["size"])),
    "ScaleJitter": lambda _, geometry, drawn: geometry.resized(_pair(drawn["size"])),
}
"""Those that draw at random: from the step, the geometry before it and what was drawn."""


_HOMES = ("torchvision.transforms.", "timm.data.")  # elsewhere the same names may mean other things
_CHOICES = ("RandomApply", "RandomChoice", "RandomOrder")
_WAY_OUT = (
    "leave it out, or name the steps yourself, as in "
    "Geometry.identity(size).resized(...).cropped(...), and lay the map by placed(geometry)"
)


def geometry_of_transform(transform: object, size: Size, orientation: int = 1) -> Geometry:
    """Return the geometry of an image under a deterministic transform of torchvision or timm.

    Args:
        transform: A transform, or several as `Compose`, `nn.Sequential` or list. Transforms that
            change colors only are ignored.
        size: Height and width of the upright image.
        orientation: EXIF orientation of the file.

    Raises:
        ValueError: If a transform is unknown or random; for random transforms use
            `transform_with_geometry`.

    Example:
        >>> from torchvision.transforms import v2
        >>> geometry_of_transform(v2.Resize((5, 10)), (10, 20)).input_size
        (5, 10)
    """
    geometry = Geometry.identity(size, orientation)
    for step in _steps(transform):
        geometry = _moved(step, geometry)
    return geometry


def transform_with_geometry(
    transform: object, image: Any, orientation: int = 1
) -> tuple[Any, Geometry]:
    """Run a transform, and return what came out and where the image went, chance included.

    The numbers that are drawn are those that the transform alone would have drawn, and are read
    off its steps while they run. Tensors that are resized by `nearest` may lie up to half a pixel
    of the network's input beside their place.

    Args:
        transform: Of torchvision or timm: a step, or several as `Compose`, `nn.Sequential` or list.
        image: Upright: an image of Pillow, or a tensor that ends in rows and columns.
        orientation: EXIF code of the image's file.

    Returns:
        What the transform gives, and its geometry.

    Raises:
        TypeError: If the image, or what a step gives, is neither.
        ValueError: If a step is unknown, or gives another size than it should.

    Example:
        >>> from torchvision.transforms import v2
        >>> flip = v2.RandomHorizontalFlip(p=1.0)
        >>> _, geometry = transform_with_geometry(flip, torch.zeros(3, 5, 7))
        >>> geometry.to_image(torch.tensor([[0.0, 0.0]]))
        tensor([[7., 0.]])
    """
    geometry = Geometry.identity(_size_of(image, "the image"), orientation)
    for step in _steps(transform):
        image, geometry = _run(step, image, geometry)
        if (size := _size_of(image, f"what {_title(step)} gives")) != geometry.input_size:
            raise ValueError(
                f"{_title(step)} must give {geometry.input_size} (height, width), gave {size}: "
                f"it is of a version that works otherwise; {_WAY_OUT}"
            )
    return image, geometry


def _steps(transform: Any) -> Iterator[Any]:
    """Go over the single steps of a transform, in their order."""
    inner = transform.transforms if _known(transform) == "Compose" else transform
    if isinstance(inner, (list, tuple)) or type(inner) is nn.Sequential:
        for step in cast("Sequence[Any]", inner):
            yield from _steps(step)
    else:
        yield transform


def _known(step: object) -> str:
    """Return the name of a step of torchvision or timm, "" for others."""
    kind = type(step)
    if kind is nn.Identity:
        return "Identity"
    return kind.__name__ if kind.__module__.startswith(_HOMES) else ""


def _title(step: object) -> str:
    return str(getattr(step, "__qualname__", type(step).__name__))


def _size_of(image: Any, source: str) -> Size:
    """Return height and width."""
    if isinstance(image, Tensor) and image.ndim >= 2:
        return int(image.shape[-2]), int(image.shape[-1])
    if not isinstance(image, Tensor) and isinstance(size := getattr(image, "size", 0), tuple):
        width, height = cast("Size", size)
        return height, width
    raise TypeError(
        f"{source} must be an image of Pillow or a tensor [..., y, x], got {type(image).__name__}"
    )


def _run(step: Any, image: Any, geometry: Geometry) -> tuple[Any, Geometry]:
    """Run one step on an image, and return both afterwards."""
    name = _known(step)
    if name in FLIPS:
        after = step(image)  # it hands on the very same object if it does not flip
        return after, geometry if after is image else geometry.flipped(vertical=FLIPS[name])
    if name in RANDOM_TRANSFORMS:
        after, drawn = _drawn(step, image)
        return after, geometry if drawn is None else RANDOM_TRANSFORMS[name](step, geometry, drawn)
    moved = _moved(step, geometry)
    return step(image), moved


def _drawn(step: Any, image: Any) -> tuple[Any, Any]:
    """Return what a random step gives, and what it drew; None if it drew not to act."""
    name = "make_params" if hasattr(step, "make_params") else "get_params"
    twin = copy.copy(step)  # the caller's step stays as it is
    draw, drawn = getattr(step, name), list[Any]()

    def noted(*inputs: Any, **options: Any) -> Any:
        drawn.append(draw(*inputs, **options))
        return drawn[-1]

    vars(twin)[name] = noted
    after = twin(image)
    return after, drawn[-1] if drawn else None


def _moved(step: Any, geometry: Geometry) -> Geometry:
    """Return the geometry after a step that leaves nothing to chance."""
    name = _known(step)
    if name in IDENTITY_TRANSFORMS or (name in _CHOICES and _all_still(step)):
        return geometry
    if name in FLIPS and step.p in (0, 1):
        return geometry.flipped(vertical=FLIPS[name]) if step.p else geometry
    if name in DETERMINISTIC_TRANSFORMS and not _jitters(step):
        return DETERMINISTIC_TRANSFORMS[name](step, geometry)
    if name in FLIPS or name in RANDOM_TRANSFORMS:
        raise ValueError(
            f"{name} is random, so its geometry is unknown before it runs; use the evaluation "
            "transform, or run it with visattn.geometry.transform_with_geometry"
        )
    raise ValueError(f"unsupported transform {_title(step)}; {_WAY_OUT}")


def _jitters(step: Any) -> bool:
    """Whether a step of timm that can be sure draws at random."""
    return any(getattr(step, f"random_{what}_prob", 0) for what in ("scale", "aspect"))


def _all_still(choice: Any) -> bool:
    return all(_known(step) in IDENTITY_TRANSFORMS for step in _steps(list(choice.transforms)))
