"""Images of any number of channels: their values, and the rendering that stands for them."""

import numpy as np
from jaxtyping import Float32, Shaped, UInt8

_ENDS = (2, 98)  # percentiles between which a channel is shown
_ENOUGH = 10_000  # values for these
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
    return array.dtype in (np.bool_, np.uint8, np.uint16)


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
    full = _FULL.get(array.dtype.kind) or _FULL.get(array.dtype.str[1:], 1.0)
    values = (array.astype(np.float64) / full).astype(np.float32)
    return values.reshape(*array.shape[:2], -1)


def draw_channels(
    values: Float32[np.ndarray, "y x c"],
) -> tuple[UInt8[np.ndarray, "y x 3"], str]:
    """Return a rendering of the first three channels, or of the first in gray; and what it shows.

    Channels with values from 0 to 1 are shown as they are; others are stretched, each from its 2nd
    to its 98th percentile.

    Example:
        >>> draw_channels(np.ones((1, 1, 5), np.float32))
        (array([[[255, 255, 255]]], dtype=uint8), 'channels 0, 1, 2 as red, green, blue')
    """
    colored = values.shape[2] >= 3
    text = "channels 0, 1, 2 as red, green, blue" if colored else "channel 0 in gray"
    shown = values[:, :, :3] if colored else values[:, :, :1]
    stretched = not (shown.min() >= 0 and shown.max() <= 1)  # also with NaN
    if stretched:
        each = ", each from its" if colored else " from its"
        text += f"{each} {_ENDS[0]}nd to its {_ENDS[1]}th percentile"
    pixels = np.empty((*shown.shape[:2], 3), np.uint8)
    for number, channel in enumerate(np.moveaxis(shown, 2, 0)):
        channel = _stretched(channel) if stretched else channel
        pixels[:, :, number:] = np.rint(channel * np.float32(255))[:, :, None]
    return pixels, text


def _stretched(channel: Float32[np.ndarray, "y x"]) -> Float32[np.ndarray, "y x"]:
    """Return a channel from 0 to 1 between two percentiles; NaN and infinity are black."""
    finite = np.isfinite(channel)
    values = channel[finite]
    if not values.size:
        return np.zeros_like(channel)
    # of evenly spaced values: all of them take as long as the other steps of a map together
    low, high = np.percentile(values[:: max(1, values.size // _ENOUGH)], _ENDS)
    scaled = np.where(finite, channel, np.float32(low))
    scaled -= np.float32(low)
    with np.errstate(over="ignore"):  # where both percentiles are one value
        scaled /= max(np.float32(high - low), np.finfo(np.float32).tiny)
    return np.clip(scaled, 0, 1, out=scaled)
