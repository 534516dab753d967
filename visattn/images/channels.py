"""Images of any number of channels: their values, and the rendering that stands for them."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from jaxtyping import Float32, Shaped, UInt8

Display = Literal["auto"] | int | Sequence[int]
"""Channels that a rendering shows: one in gray, three as red, green and blue, or the first ones."""
_ENDS = (2, 98)  # percentiles between which a channel is shown
_FULL = {"b": 1.0, "u1": 255.0, "u2": 65535.0}  # values that count as 1


def is_photo(array: Shaped[np.ndarray, "..."]) -> bool:
    """Return whether an array holds gray values or colors: 1 to 4 channels, 0 to 1 or unsigned.

    Example:
        >>> is_photo(np.zeros((2, 3, 4), np.uint16)), is_photo(np.zeros((2, 3, 5), np.uint8))
        (True, False)
    """
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] > 4) or 0 in array.shape:
        return False
    if array.dtype.kind == "f":
        return bool(array.min() >= 0 and array.max() <= 1)  # NaN fails too
    return array.dtype.kind == "b" or array.dtype in (np.uint8, np.uint16)


def channel_values(array: Shaped[np.ndarray, "..."]) -> Float32[np.ndarray, "y x c"]:
    """Return the values of the channels of an array.

    Args:
        array: `[y, x]` or `[y, x, c]`. Of uint8 and uint16 the largest number becomes 1, as in
            photos; signed and wider integers and floats are taken as they are.

    Raises:
        ValueError: If it has another shape or type.

    Example:
        >>> channel_values(np.array([[0, 65535]], np.uint16))[..., 0]
        array([[0., 1.]], dtype=float32)
    """
    if array.ndim not in (2, 3) or 0 in array.shape or array.dtype.kind not in "buif":
        raise ValueError(
            f"an image of channels must be numbers [y, x] or [y, x, c], got {array.dtype} of shape "
            f"{list(array.shape)}; volumes and batches are passed image by image"
        )
    array = array[:, :, None] if array.ndim == 2 else array
    full = _FULL.get(array.dtype.kind) or _FULL.get(array.dtype.str[1:], 1.0)
    return (array.astype(np.float64) / full).astype(np.float32)


def draw_channels(
    values: Float32[np.ndarray, "y x c"], display: Display = "auto"
) -> tuple[UInt8[np.ndarray, "y x 3"], str]:
    """Return a rendering of some channels, and how it was made, in words.

    Channels with values from 0 to 1 are shown as they are; others are stretched, each from its 2nd
    to its 98th percentile.

    Args:
        values: Values of the channels.
        display: Index of a channel, which is shown in gray; or three for red, green and blue;
            `auto` for the first three, or the first in gray if there are fewer.

    Raises:
        ValueError: If there is no such channel, or their number is neither 1 nor 3.

    Example:
        >>> draw_channels(np.ones((1, 1, 5), np.float32), (4, 2, 0))
        (array([[[255, 255, 255]]], dtype=uint8), 'channels 4, 2, 0 as red, green, blue')
    """
    count = values.shape[2]
    chosen = _chosen_channels(display, count)
    shown = values[:, :, chosen]
    is_gray = len(chosen) == 1
    text = f"channel {chosen[0]}" if is_gray else f"channels {', '.join(map(str, chosen))}"
    text += " in gray" if is_gray else " as red, green, blue"
    finite = np.isfinite(shown)
    if not (finite.all() and shown.min() >= 0 and shown.max() <= 1):
        shown = np.dstack([_stretched(shown[:, :, index]) for index in range(len(chosen))])
        text += ", each" if len(chosen) > 1 else ","
        text += f" from its {_ENDS[0]}nd to its {_ENDS[1]}th percentile"
    pixels = np.rint(shown * 255).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(pixels, (*pixels.shape[:2], 3))), text


def _chosen_channels(display: Display, count: int) -> list[int]:
    if display == "auto":
        return [0, 1, 2] if count >= 3 else [0]
    chosen = [display] if isinstance(display, int) else list(display)
    if len(chosen) not in (1, 3) or not all(index in range(count) for index in chosen):
        raise ValueError(
            f"display must be the index of a channel, or three of them, from 0 to {count - 1}; "
            f"got {display!r}"
        )
    return chosen


def _stretched(channel: Float32[np.ndarray, "y x"]) -> Float32[np.ndarray, "y x"]:
    """Return a channel from 0 to 1 between two percentiles; NaN and infinity are black."""
    finite = np.isfinite(channel)
    if not finite.any():
        return np.zeros_like(channel)
    low, high = np.percentile(channel[finite], _ENDS)
    scaled = np.where(finite, channel, low) - low
    return np.clip(scaled / max(high - low, np.finfo(np.float32).tiny), 0, 1).astype(np.float32)
