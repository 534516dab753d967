"""Pixels of any kind to RGB with 8 bits: deep grays, floats, palettes, transparency, arrays."""

import numpy as np
from jaxtyping import Float64, Shaped, UInt8
from PIL import Image

_AT_ONCE = 2**20  # pixels


def to_rgb(image: Image.Image) -> Image.Image:
    """Return a loaded image in RGB, as it would look on white paper.

    16-bit grays are scaled by 255/65535; wider integers and floats by their own range, with NaN
    as black. The image given is left as it was.

    Example:
        >>> half_black = Image.new("LA", (1, 1), (0, 128))
        >>> to_rgb(half_black).getpixel((0, 0))
        (127, 127, 127)
    """
    if image.mode.startswith("I;16"):
        return _deep_gray(np.asarray(image), image.info.get("transparency"))
    if image.mode == "I":
        values = np.asarray(image)
        if values.min() >= 0 and values.max() <= 65535:
            return _deep_gray(values, image.info.get("transparency"))
        return Image.fromarray(_by_range(values)).convert("RGB")
    if image.mode == "F":
        return Image.fromarray(_by_range(np.asarray(image))).convert("RGB")
    if image.has_transparency_data:
        straight = {"La": "LA", "RGBa": "RGBA"}.get(image.mode, image.mode)  # undo premultiplying
        colors = image.convert(straight).convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, colors).convert("RGB")
    return image.convert("RGB")


def from_array(array: Shaped[np.ndarray, "..."]) -> Image.Image:
    r"""Return an array as an image with 8 bits per channel.

    Args:
        array: `[y, x]` or `[y, x, c]`: gray (1 channel), gray and alpha (2), RGB (3) or RGBA (4),
            as booleans, 8 or 16 bits without sign, or floats between 0 and 1.

    Raises:
        ValueError: If the shape, the type or the range is another one.

    Example:
        >>> from_array(np.array([[0.0, 0.5, 1.0]])).tobytes()
        b'\x00\x80\xff'
    """
    if array.ndim == 3 and array.shape[2] == 1:
        array = array[:, :, 0]
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (2, 3, 4)):
        raise ValueError(f"an array must be [y, x] or [y, x, 1 to 4], got shape {array.shape}")
    if 0 in array.shape:
        raise ValueError(f"an array must hold at least one pixel, got shape {array.shape}")
    return Image.fromarray(np.ascontiguousarray(_eight_bits(array)))


def _eight_bits(array: Shaped[np.ndarray, "..."]) -> UInt8[np.ndarray, "..."]:
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.uint16:
        return _scaled_16_bits(array)
    if not np.issubdtype(array.dtype, np.floating):
        raise ValueError(f"pixels must be bool, uint8, uint16 or floats, got {array.dtype}")
    if not (array.min() >= 0 and array.max() <= 1):  # NaN fails too
        raise ValueError(
            "pixels given as floats must lie between 0 and 1, "
            f"got {array.min():g} to {array.max():g}; divide by 255, or convert to uint8"
        )
    return np.rint(array * 255).astype(np.uint8)


def _deep_gray(values: Shaped[np.ndarray, "y x"], transparent: object) -> Image.Image:
    gray = _scaled_16_bits(values)
    if isinstance(transparent, int):
        gray = np.where(values == transparent, np.uint8(255), gray)
    return Image.fromarray(gray).convert("RGB")


def _scaled_16_bits(values: Shaped[np.ndarray, "..."]) -> UInt8[np.ndarray, "..."]:
    # value * 255 / 65535 = value / 257, rounded to the nearest; uint32, so that nothing overflows
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _by_range(values: Shaped[np.ndarray, "y x"]) -> UInt8[np.ndarray, "y x"]:
    rows = max(1, _AT_ONCE // values.shape[1])  # at a time: numbers of 64 bits take much room
    parts = [slice(start, start + rows) for start in range(0, len(values), rows)]
    ranges = [_range(values[part]) for part in parts]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    scaled = np.zeros(values.shape, dtype=np.uint8)
    if low < high:
        for part in parts:
            wide = np.nan_to_num(_wide(values[part]), nan=low)
            scaled[part] = np.rint((np.clip(wide, low, high) - low) / (high - low) * 255)
    return scaled


def _range(values: Shaped[np.ndarray, "y x"]) -> tuple[float, float]:
    """Return the lowest and the highest finite value; nothing between them if there is none."""
    wide = _wide(values)
    finite = wide[np.isfinite(wide)]
    return (float(finite.min()), float(finite.max())) if finite.size else (np.inf, -np.inf)


def _wide(values: Shaped[np.ndarray, "y x"]) -> Float64[np.ndarray, "y x"]:
    with np.errstate(invalid="ignore"):  # a NaN of the signalling kind warns when it is copied
        return values.astype(np.float64)
