"""Conversion of images and arrays of any depth and mode to 8-bit RGB."""

import numpy as np
from jaxtyping import Float64, Shaped, UInt8
from PIL import Image

_CHUNK_PIXELS = 2**20
_DISPLAY = "read_image(array, display=(0, 1, 2)), or --display 0,1,2"


def to_rgb(image: Image.Image) -> Image.Image:
    """Return a PIL image in 8-bit RGB, with transparent pixels composited on white.

    16-bit grays are scaled by 255/65535; wider integers and floats by their own range, with NaN
    as black. The input is not modified; an RGB image is returned as it is.

    Example:
        >>> half_black = Image.new("LA", (1, 1), (0, 128))
        >>> to_rgb(half_black).getpixel((0, 0))
        (127, 127, 127)
    """
    if image.mode.startswith("I;16"):
        return _gray_from_16_bit(np.asarray(image), image.info.get("transparency"))
    # Pillow opens a PGM of 16 bits as 32-bit integers; only the range tells it from a 32-bit TIFF.
    if image.mode == "I":
        values = np.asarray(image)
        if values.min() >= 0 and values.max() <= 65535:
            return _gray_from_16_bit(values, image.info.get("transparency"))
        return Image.fromarray(_scale_to_range(values)).convert("RGB")
    if image.mode == "F":
        return Image.fromarray(_scale_to_range(np.asarray(image))).convert("RGB")
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
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (2, 3, 4)):
        raise ValueError(
            f"an array must be [y, x] or [y, x, 1 to 4], got shape {array.shape}; of more "
            f"channels, name those to show: {_DISPLAY}"
        )
    if 0 in array.shape:
        raise ValueError(f"an array must hold at least one pixel, got shape {array.shape}")
    return Image.fromarray(np.ascontiguousarray(_to_uint8(array)))


def _to_uint8(array: Shaped[np.ndarray, "..."]) -> UInt8[np.ndarray, "..."]:
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.uint16:
        return _uint16_to_uint8(array)
    if not np.issubdtype(array.dtype, np.floating):
        raise ValueError(
            f"pixels must be bool, uint8, uint16 or floats, got {array.dtype}; for values of other "
            f"types, name the channels to show: {_DISPLAY}"
        )
    if not (array.min() >= 0 and array.max() <= 1):  # NaN fails too
        raise ValueError(
            "pixels given as floats must lie between 0 and 1, "
            f"got {array.min():g} to {array.max():g}; divide by 255, or convert to uint8; "
            f"for values in other units, name the channels to show: {_DISPLAY}"
        )
    return np.rint(array * 255).astype(np.uint8)


def _gray_from_16_bit(values: Shaped[np.ndarray, "y x"], transparent: object) -> Image.Image:
    gray = _uint16_to_uint8(values)
    # Compared before scaling, which turns up to 257 neighboring values into one gray.
    if isinstance(transparent, int):
        gray = np.where(values == transparent, np.uint8(255), gray)
    return Image.fromarray(gray).convert("RGB")


def _uint16_to_uint8(values: Shaped[np.ndarray, "..."]) -> UInt8[np.ndarray, "..."]:
    # value * 255 / 65535 = value / 257, rounded to the nearest; uint32, so that nothing overflows
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _scale_to_range(values: Shaped[np.ndarray, "y x"]) -> UInt8[np.ndarray, "y x"]:
    # In chunks: a float64 copy of the whole image would need much memory.
    rows = max(1, _CHUNK_PIXELS // values.shape[1])
    chunks = [slice(start, start + rows) for start in range(0, len(values), rows)]
    ranges = [_finite_range(values[chunk]) for chunk in chunks]
    low = min(lowest for lowest, _ in ranges)
    high = max(highest for _, highest in ranges)
    scaled = np.zeros(values.shape, dtype=np.uint8)
    if low < high:
        for chunk in chunks:
            floats = np.nan_to_num(_as_float64(values[chunk]), nan=low)
            scaled[chunk] = np.rint((np.clip(floats, low, high) - low) / (high - low) * 255)
    return scaled


def _finite_range(values: Shaped[np.ndarray, "y x"]) -> tuple[float, float]:
    """Return the lowest and highest finite value; an empty range if there is none."""
    floats = _as_float64(values)
    finite = floats[np.isfinite(floats)]
    return (float(finite.min()), float(finite.max())) if finite.size else (np.inf, -np.inf)


def _as_float64(values: Shaped[np.ndarray, "y x"]) -> Float64[np.ndarray, "y x"]:
    with np.errstate(invalid="ignore"):  # copying a signaling NaN warns
        return values.astype(np.float64)
