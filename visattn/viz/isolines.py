"""Lines of equal attention, smooth at any size: the picture below stays as it is."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, UInt8

SHARES = (0.25, 0.5, 0.75)  # of the scale
_HALO, _SHADE = 1.5, 0.6  # pixels of shade on each side of a line; how dark it is


def isolined(
    picture: UInt8[np.ndarray, "y x 3"],
    values: Float[np.ndarray, "y x"],
    low: float,
    high: float,
    tables: Sequence[bytes],
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the picture with lines at a quarter, a half and three quarters of a scale.

    Args:
        picture: RGB.
        values: One per pixel; NaN has no line.
        low: Where the scale begins.
        high: Where it ends.
        tables: Red, green and blue of 256 levels: of the lines above zero, and in a second table,
            if there is one, of those below.

    Example:
        >>> hill = np.linspace(0.0, 1.0, 9)[None].repeat(9, axis=0)
        >>> white = bytes([255] * 768)
        >>> drawn = isolined(np.zeros((9, 9, 3), np.uint8), hill, 0.0, 2.0, [white])
        >>> int(drawn[4, 4, 0]), int(drawn[4, 0, 0])
        (255, 0)
    """
    width = max(1.6, min(values.shape) / 220)
    drawn = picture.astype(np.float32)
    for sign, table in zip((1, -1), tables, strict=False):
        for share in SHARES:
            level = sign * (low + share * (high - low))
            away = _distances(values, level)
            shade = _SHADE * _covered(away, width / 2 + _HALO)
            line = _covered(away, width / 2)
            colour = np.frombuffer(table, np.uint8).reshape(256, 3)[round(255 * share)]
            drawn *= (1 - shade)[..., None]
            drawn += line[..., None] * (colour - drawn)
    return np.rint(drawn).astype(np.uint8)


def _distances(values: Float[np.ndarray, "y x"], level: float) -> Float[np.ndarray, "y x"]:
    """Return how many pixels away a level is from each, going straight up or down the hill."""
    height = values.astype(np.float32) - np.float32(level)
    slope = np.zeros_like(height)
    for axis in (0, 1):
        if height.shape[axis] > 1:
            slope += np.gradient(height, axis=axis) ** 2
    np.sqrt(slope, out=slope)
    with np.errstate(invalid="ignore", divide="ignore"):
        away = np.abs(height) / slope
    return np.where(slope > 0, away, np.inf)  # on a plain, and beside what is not seen, is no line


def _covered(away: Float[np.ndarray, "y x"], reach: float) -> Float[np.ndarray, "y x"]:
    """Return how far a line of half a width covers each pixel, with soft edges."""
    return np.clip(np.float32(reach + 0.5) - away, 0, 1)
