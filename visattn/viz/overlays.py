"""Attention on its picture: bright where the model looked, quiet where it did not."""

from functools import cache
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, UInt8
from PIL import Image

from visattn.viz.colours import colour_table

Style = Literal["heat", "light"]

# How the picture looks where there is no attention, and where the network could not see at all.
_QUIET = {"heat": (0.7, 0.82), "light": (0.85, 0.4)}  # the share of grey; the share of light left
_DARK = [round(0.38 * level) + 14 for level in range(256)]
_LINE = [level + 40 for level in _DARK]


def overlay(
    picture: UInt8[np.ndarray, "y x 3"],
    values: Float[np.ndarray, "y x"],
    *,
    low: float = 0.0,
    high: float = 1.0,
    colours: str = "magma",
    opacity: float = 0.7,
    style: Style = "heat",
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the picture with attention on it.

    Where there is none, the picture is dim and almost grey; where there is some, it takes on
    colour. A pixel depends on itself, its value and the scale that is given, and on nothing else
    in the picture or the map: overlays of one scale can be compared.

    Args:
        picture: RGB.
        values: One per pixel of the picture, as `AttentionMap.on_picture` returns them. NaN is
            what the network did not see, and is shown dark and hatched.
        low: The value at which attention begins to show; values below look like it.
        high: The value that shows in full; values above look like it.
        colours: The table of `heat`, see `colour_table`; its lowest fifth is left out.
        opacity: How far attention in full covers the picture, between 0 and 1.
        style: `heat` lays colours on the picture; `light` gives it back the light it had.

    Raises:
        ValueError: If the sizes differ, the scale does not rise, or there is no such opacity,
            style or colour table.

    Example:
        >>> picture = np.full((1, 2, 3), 200, dtype=np.uint8)
        >>> overlay(picture, np.array([[0.0, 1.0]]), style="light")[0, :, 0]
        array([ 80, 200], dtype=uint8)
    """
    if picture.shape[:2] != values.shape:
        raise ValueError(
            f"values must be one per pixel of the picture, {picture.shape[:2]}, "
            f"got {values.shape}; "
            "AttentionMap.on_picture(size) makes them"
        )
    if not low < high:
        raise ValueError(f"the scale must rise from low to high, got {low} to {high}")
    if not 0 <= opacity <= 1:
        raise ValueError(f"opacity must lie between 0 and 1, got {opacity}")
    if style not in ("heat", "light"):
        raise ValueError(f"style must be heat or light, got {style!r}")
    photo, unseen = Image.fromarray(picture), np.isnan(values)
    levels = Image.fromarray(_levels(values, low, high))
    if style == "heat":
        bright = levels.copy()
        bright.putpalette(glowing_colours(colours))
        bright, strength = bright.convert("RGB"), _strength(opacity)
    else:
        bright, strength = photo, _strength(1.0)
    drawn = Image.composite(bright, _quiet(photo, style), levels.point(strength))
    if unseen.any():
        drawn.paste(_hatched(photo, unseen), mask=Image.fromarray(unseen))
    return np.array(drawn)


def _levels(values: Float[np.ndarray, "y x"], low: float, high: float) -> UInt8[np.ndarray, "y x"]:
    """Return the step of 256 on which each value stands; infinite values stand at an end."""
    steps = (values.astype(np.float32) - np.float32(low)) * np.float32(255 / (high - low))
    np.nan_to_num(steps, copy=False, posinf=255, neginf=0)
    return np.clip(steps + np.float32(0.5), 0, 255).astype(np.uint8)


@cache
def glowing_colours(name: str) -> bytes:
    """Return a table without its lowest fifth, which is black in most and would look like shade.

    Args:
        name: See `colour_table`.

    Returns:
        Red, green and blue of 256 levels, one after the other.

    Example:
        >>> list(glowing_colours("gray")[:3])
        [51, 51, 51]
    """
    return colour_table(name)[np.linspace(51, 255, 256).round().astype(int)].tobytes()


@cache
def _strength(opacity: float) -> list[int]:
    """Return how far each level covers the picture: soon visible, and full only at the top."""
    return [round(255 * opacity * (level / 255) ** 0.75) for level in range(256)]


def _quiet(photo: Image.Image, style: Style) -> Image.Image:
    greyness, light = _QUIET[style]
    grey = photo.convert("L").convert("RGB")
    return Image.blend(photo, grey, greyness).point(
        [round(light * level) for level in range(256)] * 3
    )


def _hatched(photo: Image.Image, unseen: Bool[np.ndarray, "y x"]) -> Image.Image:
    """Return the picture dark and grey, with thin slanting lines where it is unseen."""
    height, width = unseen.shape
    distance = max(6, round(min(height, width) / 26))
    line = np.arange(width + height) % distance < max(1, distance // 8)
    lines = np.lib.stride_tricks.sliding_window_view(line, width)[:height]
    grey = photo.convert("L")
    dark = grey.point(_DARK)
    dark.paste(grey.point(_LINE), mask=Image.fromarray(lines & unseen))
    return dark.convert("RGB")
