"""The line around what a model looked at."""

from types import ModuleType

import numpy as np
from jaxtyping import Float, UInt8

Colour = tuple[int, int, int]
_NO_CV2 = """\
outlines need OpenCV, which cannot be loaded here: {reason}. Either install what it leans on
(Debian and Ubuntu: apt-get install libxcb1 libgl1 libglib2.0-0), or its variant without windows:
pip uninstall opencv-python, then pip install --force-reinstall opencv-python-headless"""


def outlined(
    picture: UInt8[np.ndarray, "y x 3"],
    values: Float[np.ndarray, "rows columns"],
    level: float,
    *,
    colour: Colour = (255, 255, 255),
    width: int = 2,
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the picture with a line around every place where attention reaches a level.

    Args:
        picture: RGB.
        values: One per pixel of the picture; NaN, not seen, reaches no level.
        level: The value on the line.
        colour: Of the line, RGB; it lies on a darker, wider one, so that it shows on any ground.
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
    if picture.shape[:2] != values.shape:
        raise ValueError(
            f"values must be one per pixel of the picture, {picture.shape[:2]}, got {values.shape}"
        )
    if width < 1:
        raise ValueError(f"width must be at least 1 pixel, got {width}")
    cv2 = _opencv()
    inside = (np.nan_to_num(values, nan=-np.inf) >= level).astype(np.uint8)
    lines, _ = cv2.findContours(inside, cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
    drawn = picture.copy()
    if width > 1:
        shade = tuple(part // 5 for part in colour)
        cv2.drawContours(drawn, lines, -1, shade, width + 2, cv2.LINE_AA)
    cv2.drawContours(drawn, lines, -1, colour, width, cv2.LINE_AA if width > 1 else cv2.LINE_8)
    return drawn


def _opencv() -> ModuleType:
    """Load OpenCV where it is used: its wheel needs system libraries that bare machines lack."""
    try:
        import cv2
    except ImportError as error:
        raise ImportError(_NO_CV2.format(reason=error)) from error
    return cv2
