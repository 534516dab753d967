"""Channel axis and spatial size of features in models that mix NCHW and NHWC layouts."""

import math
from typing import Any, cast

Grid = tuple[int, int]

_CHANNELS_FIRST = frozenset(
    {"conv2d", "conv_transpose2d", "batch_norm", "group_norm", "instance_norm"}
)
_CHANNELS_LAST = frozenset({"linear"})
_LAYOUT_CHANGES = frozenset(
    {"reshape", "view", "flatten", "unflatten", "transpose", "swapaxes", "movedim", "unfold"}
)


def channels_last_after(
    name: str, args: tuple[Any, ...], channels_last: bool | None
) -> bool | None:
    """Return whether features are channels-last after a torch function; None if unknown.

    Args:
        name: Name of the function.
        args: Its arguments.
        channels_last: Whether they were channels-last before.

    Example:
        >>> channels_last_after("permute", (None, 0, 2, 3, 1), False)
        True
        >>> channels_last_after("relu", (), True)
        True
    """
    if name in _CHANNELS_FIRST or name in _CHANNELS_LAST:
        return name in _CHANNELS_LAST
    if name == "permute":
        axes = cast("tuple[int, ...]", args[1] if isinstance(args[1], (tuple, list)) else args[1:])
        return (
            True if tuple(axes) == (0, 2, 3, 1) else False if tuple(axes) == (0, 3, 1, 2) else None
        )
    return None if name in _LAYOUT_CHANGES else channels_last


def infer_channels_last(shape: tuple[int, ...], image: Grid | None) -> bool | None:
    """Return whether features of a shape are [b, y, x, c] rather than [b, c, y, x].

    Features keep the aspect ratio of the image, so the layout that preserves it better is chosen;
    None if both preserve it equally well. Without an image, channels-first is assumed.

    Example:
        >>> infer_channels_last((1, 14, 14, 384), (224, 224))
        True
        >>> print(infer_channels_last((1, 8, 8, 8), (64, 64)))
        None
    """
    if image is None:
        return False
    first, last = (_aspect_ratio_error(grid, image) for grid in (shape[2:], shape[1:3]))
    return None if math.isclose(first, last, abs_tol=1e-9) else last < first


def spatial_size(shape: tuple[int, ...], *, channels_last: bool | None) -> Grid:
    """Return height and width of features; channels-first if the layout is unknown.

    Example:
        >>> spatial_size((1, 5, 7, 3), channels_last=True)
        (5, 7)
    """
    return (shape[1], shape[2]) if channels_last else (shape[2], shape[3])


def _aspect_ratio_error(grid: tuple[int, ...], image: Grid) -> float:
    """Return the absolute difference of the logarithmic aspect ratios."""
    return abs(math.log(grid[0] / grid[1]) - math.log(image[0] / image[1]))
