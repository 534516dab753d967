"""Where single steps of other people's preprocessing carry a picture.

The steps are those of torchvision, both versions, and of timm, by the names of their classes.
"""

from collections.abc import Callable, Sequence
from typing import Any, cast

from visattn.maps.geometries import Geometry

Size = tuple[int, int]
Sides = int | Sequence[int]

STILL_STEPS = frozenset((
    # torchvision's: kinds of numbers
    "ConvertImageDtype", "Identity", "ObjectDetection", "PILToTensor", "ToDtype", "ToImage",
    "ToPILImage", "ToPureTensor", "ToTensor",
    # colours and noise
    "ColorJitter", "GaussianBlur", "GaussianNoise", "Grayscale", "JPEG", "Normalize", "RGB",
    "RandomAdjustSharpness", "RandomAutocontrast", "RandomChannelPermutation", "RandomEqualize",
    "RandomErasing", "RandomGrayscale", "RandomInvert", "RandomPhotometricDistort",
    "RandomPosterize", "RandomSolarize",
    # timm's
    "MaybePILToTensor", "MaybeToTensor",
))  # fmt: skip
"""Those that leave everything where it is."""

FLIPS = {"RandomHorizontalFlip": False, "RandomVerticalFlip": True}
"""Those that may mirror a picture, and whether upside down."""


def windowed(geometry: Geometry, top: int, left: int, size: Size) -> Geometry:
    """Return the geometry of a window that may reach beyond the input, where there are bars.

    Args:
        geometry: So far.
        top: Row of the input at which the window begins; below 0 if there are bars.
        left: Column at which it begins.
        size: Height and width of the window.

    Example:
        >>> windowed(Geometry.identity((5, 7)), -1, 2, (7, 3)).seen()
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


def _centred(geometry: Geometry, size: Sides) -> Geometry:
    (y, x), (height, width) = geometry.input_size, _pair(size)
    return windowed(geometry, _margin(y, height), _margin(x, width), (height, width))


def _margin(have: int, want: int) -> int:
    """Return where the middle begins: half pixels go to even, those of bars to the far side."""
    return round((have - want) / 2) if have >= want else -((want - have) // 2)


def _barred(geometry: Geometry, padding: Sides) -> Geometry:
    left, top, right, bottom = _bars(padding)
    y, x = geometry.input_size
    return windowed(geometry, -top, -left, (y + top + bottom, x + left + right))


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
    return _centred(resized, step.crop_size) if hasattr(step, "crop_size") else resized


SURE_STEPS: dict[str, Callable[[Any, Geometry], Geometry]] = {
    "Resize": lambda step, geometry: _by_shorter(geometry, step.size, step.max_size),
    "CenterCrop": lambda step, geometry: _centred(geometry, step.size),
    "CenterCropOrPad": lambda step, geometry: _centred(geometry, step.size),
    "Pad": lambda step, geometry: _barred(geometry, step.padding),
    "TrimBorder": _trimmed,
    "ResizeKeepRatio": _kept_ratio,
    "ImageClassification": _preset,
    "SemanticSegmentation": _preset,
}
"""Those that move every picture of a size alike: from the step and the geometry before it."""


def _random_crop(step: Any, geometry: Geometry, drawn: Any) -> Geometry:
    """Follow a window on a canvas with bars; only the second version says their widths."""
    if isinstance(drawn, dict):
        left, top = drawn["padding"][:2]
        return windowed(geometry, drawn["top"] - top, drawn["left"] - left, _pair(step.size))
    (y, x), (height, width) = geometry.input_size, _pair(step.size)
    left, top, right, bottom = _bars(step.padding or 0)
    if step.pad_if_needed:
        left += max(width - x - left - right, 0)
        top += max(height - y - top - bottom, 0)
    return windowed(geometry, drawn[0] - top, drawn[1] - left, (height, width))


def _resized_crop(step: Any, geometry: Geometry, drawn: Any) -> Geometry:
    sides = ("top", "left", "height", "width")
    window = [drawn[side] for side in sides] if isinstance(drawn, dict) else drawn
    top, left, height, width = window
    return geometry.cropped(top, left, (height, width)).resized(_pair(step.size))


DRAWN_STEPS: dict[str, Callable[[Any, Geometry, Any], Geometry]] = {
    "RandomCrop": _random_crop,
    "RandomResizedCrop": _resized_crop,
    "RandomResizedCropAndInterpolation": _resized_crop,
    "RandomCropOrPad": lambda step, geometry, drawn: windowed(
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
