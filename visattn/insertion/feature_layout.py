"""On which axis features carry their channels, in a model that was not written here."""

import math
from typing import Any, cast

Grid = tuple[int, int]

_FIRST = frozenset({"conv2d", "conv_transpose2d", "batch_norm", "group_norm", "instance_norm"})
_LAST = frozenset({"linear"})
_SHUFFLES = frozenset(
    {"reshape", "view", "flatten", "unflatten", "transpose", "swapaxes", "movedim", "unfold"}
)


def last_after(name: str, args: tuple[Any, ...], last: bool | None) -> bool | None:
    """Return whether channels are on the last axis after a function of torch; None if unknown.

    Args:
        name: Of the function.
        args: What it took.
        last: Whether they were before.

    Example:
        >>> last_after("permute", (None, 0, 2, 3, 1), last=False), last_after("relu", (), last=True)
        (True, True)
    """
    if name in _FIRST or name in _LAST:
        return name in _LAST
    if name == "permute":
        axes = cast("tuple[int, ...]", args[1] if isinstance(args[1], (tuple, list)) else args[1:])
        return (
            True if tuple(axes) == (0, 2, 3, 1) else False if tuple(axes) == (0, 3, 1, 2) else None
        )
    return None if name in _SHUFFLES else last


def last_by_shape(shape: tuple[int, ...], image: Grid | None) -> bool | None:
    """Return whether features of a shape are [b, y, x, c] rather than [b, c, y, x].

    Features keep the proportions of the image; that of the two readings which keeps them better
    is right. None if both are as good. Without an image, channels come first.

    Example:
        >>> last_by_shape((1, 14, 14, 384), (224, 224)), last_by_shape((1, 8, 8, 8), (64, 64))
        (True, None)
    """
    if image is None:
        return False
    first, last = (_stretch(grid, image) for grid in (shape[2:], shape[1:3]))
    return None if math.isclose(first, last, abs_tol=1e-9) else last < first


def grid_of(shape: tuple[int, ...], *, last: bool | None) -> Grid:
    """Return height and width of features; if nothing tells, their channels come first.

    Example:
        >>> grid_of((1, 5, 7, 3), last=True)
        (5, 7)
    """
    return (shape[1], shape[2]) if last else (shape[2], shape[3])


def _stretch(grid: tuple[int, ...], image: Grid) -> float:
    """Return by how much the proportions differ, as the size of a logarithm."""
    return abs(math.log(grid[0] / grid[1]) - math.log(image[0] / image[1]))
