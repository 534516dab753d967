"""Conversion of images and arrays of any depth, mode and number of channels to 8-bit RGB."""

import numpy as np
from jaxtyping import Float32, Shaped, UInt8
from PIL import Image

_UNIT = (0.0, 1.0)
_ENDS = (2, 98)  # percentiles between which a channel is shown
_ENOUGH = 10_000  # values to compute them from
_FULL = {"b": 1.0, "u1": 255.0, "u2": 65535.0}  # values that map to 1


def to_rgb(image: Image.Image, value_range: tuple[float, float] | None = None) -> Image.Image:
    """Convert a PIL image to 8-bit RGB, with transparent pixels composited on white.

    16-bit grays are scaled by 255/65535; wider integers and floats by their own range, with NaN
    as black. The input is not modified; an RGB image is returned as is.

    Args:
        image: The image.
        value_range: Values of floats and of integers wider than 8 bits that map to black and white
            instead; values beyond are clipped. (0, 1) keeps the scaling of 16 bits, and raises for
            other values beyond.

    Raises:
        ValueError: If `value_range` is (0, 1) and other values than 16 bits are outside.

    Example:
        >>> half_black = Image.new("LA", (1, 1), (0, 128))
        >>> to_rgb(half_black).getpixel((0, 0))
        (127, 127, 127)
    """
    if image.mode.startswith(("I", "F")):
        values, transparent = np.asarray(image), image.info.get("transparency")
        return _gray(values, transparent, value_range).convert("RGB")
    if image.has_transparency_data:
        straight = {"La": "LA", "RGBa": "RGBA"}.get(image.mode, image.mode)  # undo premultiplying
        colors = image.convert(straight).convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, colors).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")


def from_array(array: Shaped[np.ndarray, "..."]) -> Image.Image:
    r"""Convert an array to a PIL image with 8 bits per channel.

    Args:
        array: `[y, x]` or `[y, x, c]`: gray (1 channel), gray and alpha (2), RGB (3) or RGBA (4),
            as bool, uint8, uint16, or floats between 0 and 1.

    Raises:
        ValueError: If the shape, the dtype or the range is not supported.

    Example:
        >>> from_array(np.array([[0.0, 0.5, 1.0]])).tobytes()
        b'\x00\x80\xff'
    """
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    is_image = array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (2, 3, 4))
    if not is_image or 0 in array.shape:
        raise ValueError(f"an array must be [y, x] or [y, x, 1 to 4], got shape {array.shape}")
    return Image.fromarray(np.ascontiguousarray(_to_uint8(array)))


def _to_uint8(array: Shaped[np.ndarray, "..."]) -> UInt8[np.ndarray, "..."]:
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.uint16:
        return _uint16_to_uint8(array)
    if array.dtype.kind not in "bf":
        raise ValueError(f"pixels must be bool, uint8, uint16 or floats, got {array.dtype}")
    if not (array.min() >= 0 and array.max() <= 1):  # NaN fails too
        raise ValueError(
            "float pixels must be between 0 and 1, "
            f"got {array.min():g} to {array.max():g}; divide by 255, or convert to uint8"
        )
    return np.rint(array * 255.0).astype(np.uint8)


def _gray(
    values: Shaped[np.ndarray, "y x"],
    transparent: object,
    value_range: tuple[float, float] | None,
) -> Image.Image:
    # Pillow opens 16-bit PGM as 32-bit integers; only their range differs from a 32-bit TIFF.
    wide = values.dtype.kind == "f" or values.min() < 0 or values.max() > 65535
    if not wide and value_range in (None, _UNIT):
        gray = _uint16_to_uint8(values)
        # Compare before scaling, which maps up to 257 neighboring values to one gray.
        return Image.fromarray(np.where(values == transparent, np.uint8(255), gray))
    with np.errstate(invalid="ignore"):  # copying a signaling NaN warns
        values = values.astype(np.float64)
    finite = values[np.isfinite(values)]
    ends = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    if value_range == _UNIT and not 0 <= ends[0] <= ends[1] <= 1:
        raise ValueError(
            f"values must be between 0 and 1, got {ends[0]:g} to {ends[1]:g}: set "
            "value_range=[LOW, HIGH], the values that become black and white in all photos"
        )
    low, high = value_range or ends
    shares = (np.clip(np.nan_to_num(values, nan=low), low, high) - low) / ((high - low) or 1.0)
    return Image.fromarray(np.rint(shares * 255).astype(np.uint8))


def _uint16_to_uint8(values: Shaped[np.ndarray, "..."]) -> UInt8[np.ndarray, "..."]:
    # value * 255 / 65535 = value / 257, rounded to the nearest; uint32, so that nothing overflows
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)


def is_photo(array: Shaped[np.ndarray, "..."]) -> bool:
    """Return whether an array is a photo: 1 to 4 channels, unsigned or floats from 0 to 1.

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
    """Return the channel values of an array.

    Args:
        array: `[y, x]` or `[y, x, c]`. uint8 and uint16 are scaled so that their maximum becomes 1,
            as in photos; signed and wider integers and floats keep their values.

    Raises:
        ValueError: If the shape or the type is not supported.

    Example:
        >>> channel_values(np.array([[0, 65535]], np.uint16))[..., 0]
        array([[0., 1.]], dtype=float32)
    """
    if array.ndim not in (2, 3) or 0 in array.shape or array.dtype.kind not in "buif":
        raise ValueError(
            "an array of channels must be numeric, [y, x] or [y, x, c], got "
            f"{array.dtype} of shape {list(array.shape)}; pass volumes and batches image by image"
        )
    full = _FULL.get(array.dtype.kind) or _FULL.get(array.dtype.str[1:], 1.0)
    values = (array.astype(np.float64) / full).astype(np.float32)
    return values.reshape(*array.shape[:2], -1)


def draw_channels(
    values: Float32[np.ndarray, "y x c"],
) -> tuple[UInt8[np.ndarray, "y x 3"], str]:
    """Render the first three channels, or the first in gray; return a description, too.

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
    # A subsample: with all values this takes as long as the rest of a map.
    low, high = np.percentile(values[:: max(1, values.size // _ENOUGH)], _ENDS)
    scaled = np.where(finite, channel, np.float32(low))
    scaled -= np.float32(low)
    with np.errstate(over="ignore"):  # if both percentiles are equal
        scaled /= max(np.float32(high - low), np.finfo(np.float32).tiny)
    return np.clip(scaled, 0, 1, out=scaled)
