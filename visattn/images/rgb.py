"""Conversion of images and arrays of any depth and mode to 8-bit RGB."""

import numpy as np
from jaxtyping import Shaped, UInt8
from PIL import Image

_UNIT = (0.0, 1.0)


def to_rgb(image: Image.Image, value_range: tuple[float, float] | None = None) -> Image.Image:
    """Return a PIL image in 8-bit RGB, with transparent pixels composited on white.

    16-bit grays are scaled by 255/65535; wider integers and floats by their own range, with NaN
    as black. The input is not modified; an RGB image is returned as it is.

    Args:
        image: The image.
        value_range: The values of integers wider than 8 bits and of floats that become black and
            white, instead; values beyond are clipped. (0, 1) keeps 16 bits as they are and refuses
            others beyond.

    Raises:
        ValueError: If values are not between 0 and 1, and `value_range` says so.

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
    r"""Return an array as a PIL image with 8 bits per channel.

    Args:
        array: `[y, x]` or `[y, x, c]`: gray (1 channel), gray and alpha (2), RGB (3) or RGBA (4),
            as bool, uint8, uint16, or floats between 0 and 1.

    Raises:
        ValueError: If the shape, the dtype or the range is another one.

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
    # Pillow opens a PGM of 16 bits as 32-bit integers; only the range tells it from a 32-bit TIFF.
    wide = values.dtype.kind == "f" or values.min() < 0 or values.max() > 65535
    if not wide and value_range in (None, _UNIT):
        gray = _uint16_to_uint8(values)
        # Compared before scaling, which turns up to 257 neighboring values into one gray.
        return Image.fromarray(np.where(values == transparent, np.uint8(255), gray))
    with np.errstate(invalid="ignore"):  # copying a signaling NaN warns
        values = values.astype(np.float64)
    finite = values[np.isfinite(values)]
    ends = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
    if value_range == _UNIT and not 0 <= ends[0] <= ends[1] <= 1:
        raise ValueError(
            f"its values lie between {ends[0]:g} and {ends[1]:g}: set value_range=[LOW, HIGH], the "
            "values that become black and white in all photos"
        )
    low, high = value_range or ends
    shares = (np.clip(np.nan_to_num(values, nan=low), low, high) - low) / ((high - low) or 1.0)
    return Image.fromarray(np.rint(shares * 255).astype(np.uint8))


def _uint16_to_uint8(values: Shaped[np.ndarray, "..."]) -> UInt8[np.ndarray, "..."]:
    # value * 255 / 65535 = value / 257, rounded to the nearest; uint32, so that nothing overflows
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
