"""Lines of equal attention, smooth at any size: the image below stays as it is."""

from collections.abc import Sequence
from types import ModuleType

import numpy as np
from jaxtyping import Float, UInt8

SHARES = (0.25, 0.5, 0.75)  # of the scale
_HALO, _SHADE = 1.5, 0.6  # pixels of shade on each side of a line; how dark it is


def isolined(
    image: UInt8[np.ndarray, "y x 3"],
    values: Float[np.ndarray, "y x"],
    low: float,
    high: float,
    tables: Sequence[bytes],
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with lines at a quarter, a half and three quarters of a scale.

    Args:
        image: RGB.
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
    drawn = image.astype(np.float32)
    for sign, table in zip((1, -1), tables, strict=False):
        for share in SHARES:
            level = sign * (low + share * (high - low))
            away = _distances(values, level)
            shade = _SHADE * _covered(away, width / 2 + _HALO)
            line = _covered(away, width / 2)
            color = np.frombuffer(table, np.uint8).reshape(256, 3)[round(255 * share)]
            drawn *= (1 - shade)[..., None]
            drawn += line[..., None] * (color - drawn)
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


Color = tuple[int, int, int]
_NO_CV2 = """\
outlines need OpenCV, which cannot be loaded here: {reason}. Either install what it leans on
(Debian and Ubuntu: apt-get install libxcb1 libgl1 libglib2.0-0), or its variant without windows:
pip uninstall opencv-python, then pip install --force-reinstall opencv-python-headless"""


def outlined(
    image: UInt8[np.ndarray, "y x 3"],
    values: Float[np.ndarray, "rows columns"],
    level: float,
    *,
    color: Color = (255, 255, 255),
    width: int = 2,
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with a line around every place where attention reaches a level.

    Args:
        image: RGB.
        values: One per pixel of the image; NaN, not seen, reaches no level.
        level: The value on the line.
        color: Of the line, RGB; it lies on a darker, wider one, so that it shows on any ground.
        width: Of the line, in pixels.

    Raises:
        ValueError: If the sizes differ or the line has no width.
        ImportError: If OpenCV cannot be loaded; the message says what to install.

    Example:
        >>> spot = np.zeros((7, 7))
        >>> spot[2:5, 2:5] = 1.0
        >>> drawn = outlined(np.zeros((7, 7, 3), np.uint8), spot, 0.5, width=1)
        >>> int(drawn[2, 2, 0]), int(drawn[3, 3, 0])
        (255, 0)
    """
    if image.shape[:2] != values.shape:
        raise ValueError(
            f"values must be one per pixel of the image, {image.shape[:2]}, got {values.shape}"
        )
    if width < 1:
        raise ValueError(f"width must be at least 1 pixel, got {width}")
    cv2 = _opencv()
    inside = (np.nan_to_num(values, nan=-np.inf) >= level).astype(np.uint8)
    lines, _ = cv2.findContours(inside, cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
    drawn = image.copy()
    if width > 1:
        shade = tuple(part // 5 for part in color)
        cv2.drawContours(drawn, lines, -1, shade, width + 2, cv2.LINE_AA)
    cv2.drawContours(drawn, lines, -1, color, width, cv2.LINE_AA if width > 1 else cv2.LINE_8)
    return drawn


def _opencv() -> ModuleType:
    """Load OpenCV where it is used: its wheel needs system libraries that bare machines lack."""
    try:
        import cv2
    except ImportError as error:
        raise ImportError(_NO_CV2.format(reason=error)) from error
    return cv2
