"""Attention on its image: bright where the model looked, quiet where it did not."""

from collections.abc import Sequence
from functools import cache
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, UInt8
from PIL import Image, ImageFilter

from visattn.viz.maps.colormap import color_table
from visattn.viz.maps.contours import isolined

Style = Literal["heat", "light", "blur", "contour"]
STYLES: tuple[Style, ...] = ("heat", "light", "blur", "contour")

# How the image looks where there is no attention: the share of gray, and of light left.
_QUIET = {"heat": (0.7, 0.82), "light": (0.85, 0.4), "blur": (0.25, 0.8)}
_DARK = [round(0.38 * level) + 14 for level in range(256)]
_LINE = [level + 40 for level in _DARK]
_BLUR = 24  # the image's shorter side over the radius of its blur
_BAND = 1 << 18  # pixels that are drawn at once: few enough to stay near the processor


def overlay(
    image: UInt8[np.ndarray, "y x 3"],
    values: Float[np.ndarray, "y x"],
    *,
    low: float = 0.0,
    high: float = 1.0,
    colors: str = "magma",
    opacity: float = 0.7,
    style: Style = "heat",
    signed: bool = False,
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with attention on it.

    Where there is none, the image is dim and almost gray; where there is some, it takes on
    color. With `heat` and `light` a pixel depends on itself, its value and the scale that is
    given, and on nothing else in the image or the map: overlays of one scale can be compared.

    Args:
        image: RGB.
        values: One per pixel of the image, as `AttentionMap.on_image` returns them. NaN is
            what the network did not see, and is shown dark and hatched.
        low: The value at which attention begins to show; values below look like it.
        high: The value that shows in full; values above look like it.
        colors: The table of `heat` and `contour`, see `color_table`; its lowest fifth is left
            out.
        opacity: How far attention in full covers the image, between 0 and 1, with `heat`.
        style: `heat` lays colors on the image; `light` gives it back the light it had; `blur`
            is sharp where there is attention; `contour` draws lines at a quarter, a half and three
            quarters of the scale.
        signed: Whether values below zero speak against: they show by their size, as those above
            zero do, but with `heat` and `contour` in the cold twin of the colors.

    Raises:
        ValueError: If the sizes differ, the scale does not rise, or there is no such opacity,
            style or color table.

    Example:
        >>> image = np.full((1, 2, 3), 200, dtype=np.uint8)
        >>> overlay(image, np.array([[0.0, 1.0]]), style="light")[0, :, 0]
        array([ 80, 200], dtype=uint8)
    """
    if image.shape[:2] != values.shape:
        raise ValueError(
            f"values must be one per pixel of the image, {image.shape[:2]}, "
            f"got {values.shape}; "
            "AttentionMap.on_image(size) makes them"
        )
    _check(low, high, opacity, style)
    tables = (glowing_colors(colors), cold_colors(colors))[: 1 + signed]
    if style == "contour":
        below = bright = isolined(image, values, low, high, tables)
        strength = _strength(0.0)
    else:
        below = _blurred(image) if style == "blur" else image
        bright = None if style == "heat" else image
        strength = _strength(opacity if style == "heat" else 1.0)
    drawn = np.empty_like(image)
    height, width = values.shape
    rows = max(1, _BAND // width)
    for top in range(0, height, rows):
        band = slice(top, min(top + rows, height))
        levels = Image.fromarray(level_steps(values[band], low, high, signed=signed))
        if bright is None:
            shown = _colored(levels, tables, values[band])
        else:
            shown = Image.fromarray(bright[band])
        quiet = _quiet(Image.fromarray(below[band]), style)
        painted = Image.composite(shown, quiet, levels.point(strength))
        unseen = np.isnan(values[band])
        if unseen.any():
            dark = _hatched(Image.fromarray(image[band]), unseen, top, min(height, width))
            painted.paste(dark, mask=Image.fromarray(unseen))
        drawn[band] = painted
    return drawn


def colored_map(
    values: Float[np.ndarray, "y x"],
    *,
    low: float = 0.0,
    high: float = 1.0,
    colors: str = "magma",
    opacity: float = 1.0,
    signed: bool = False,
) -> UInt8[np.ndarray, "y x 4"]:
    """Return a map without its image: colors that let through where there is no attention.

    Laid on any image, it covers it as `overlay` does with `heat`. What was not seen is
    transparent.

    Args:
        values: See `overlay`, as for the others.
        low: See `overlay`.
        high: See `overlay`.
        colors: See `overlay`.
        opacity: How far attention in full covers what lies below.
        signed: See `overlay`.

    Returns:
        Red, green, blue and opacity, not premultiplied.

    Example:
        >>> colored_map(np.array([[0.0, 1.0, np.nan]]))[0, :, 3]
        array([  0, 255,   0], dtype=uint8)
    """
    _check(low, high, opacity, "heat")
    levels = Image.fromarray(level_steps(values, low, high, signed=signed))
    tables = (glowing_colors(colors), cold_colors(colors))[: 1 + signed]
    drawn = _colored(levels, tables, values)
    cover = np.array(levels.point(_strength(opacity)))
    cover[np.isnan(values)] = 0
    drawn.putalpha(Image.fromarray(cover))
    return np.array(drawn)


def _check(low: float, high: float, opacity: float, style: str) -> None:
    if not low < high:
        raise ValueError(f"the scale must rise from low to high, got {low} to {high}")
    if not 0 <= opacity <= 1:
        raise ValueError(f"opacity must lie between 0 and 1, got {opacity}")
    if style not in STYLES:
        raise ValueError(f"style must be one of {', '.join(STYLES)}, got {style!r}")


def level_steps(
    values: Float[np.ndarray, "y x"], low: float, high: float, *, signed: bool = False
) -> UInt8[np.ndarray, "y x"]:
    """Return the step of 256 on which each value stands; infinite values stand at an end.

    Args:
        values: NaN stands on the lowest.
        low: The value of the lowest step.
        high: The value of the highest.
        signed: Whether values stand where their size does.

    Example:
        >>> level_steps(np.array([[-1.0, 0.0, 0.5]]), 0.0, 1.0, signed=True)
        array([[255,   0, 128]], dtype=uint8)
    """
    steps = np.abs(values) if signed else values
    steps = (steps.astype(np.float32) - np.float32(low)) * np.float32(255 / (high - low))
    steps += np.float32(0.5)
    np.fmax(steps, 0, out=steps)  # NaN, too, becomes 0
    return np.fmin(steps, 255, out=steps).astype(np.uint8)


@cache
def glowing_colors(name: str) -> bytes:
    """Return a table without its lowest fifth, which is black in most and would look like shade.

    Args:
        name: See `color_table`.

    Returns:
        Red, green and blue of 256 levels, one after the other.

    Example:
        >>> list(glowing_colors("gray")[:3])
        [51, 51, 51]
    """
    return color_table(name)[np.linspace(51, 255, 256).round().astype(int)].tobytes()


@cache
def cold_colors(name: str) -> bytes:
    """Return the same table with red and blue exchanged: the cold twin of a warm one.

    Args:
        name: See `color_table`.

    Example:
        >>> list(cold_colors("magma")[-3:]) == list(glowing_colors("magma")[-3:])[::-1]
        True
    """
    table = np.frombuffer(glowing_colors(name), np.uint8).reshape(256, 3)
    return table[:, ::-1].tobytes()


def _colored(
    levels: Image.Image, tables: Sequence[bytes], values: Float[np.ndarray, "y x"]
) -> Image.Image:
    """Return levels in the colors of a table; those of values below zero in those of a second."""
    warm, *others = (levels.copy() for _ in tables)
    warm.putpalette(tables[0])
    warm = warm.convert("RGB")
    for cold, table in zip(others, tables[1:], strict=True):
        cold.putpalette(table)
        warm.paste(cold.convert("RGB"), mask=Image.fromarray(values < 0))
    return warm


@cache
def _strength(opacity: float) -> list[int]:
    """Return how far each level covers the image: soon visible, and full only at the top."""
    return [round(255 * opacity * (level / 255) ** 0.75) for level in range(256)]


def _quiet(photo: Image.Image, style: Style) -> Image.Image:
    if style not in _QUIET:
        return photo
    grayness, light = _QUIET[style]
    gray = photo.convert("L").convert("RGB")
    return Image.blend(photo, gray, grayness).point(_dimmed(light))


@cache
def _dimmed(light: float) -> list[int]:
    """Return what is left of each level of red, green and blue."""
    return [round(light * level) for level in range(256)] * 3


def _blurred(image: UInt8[np.ndarray, "y x 3"]) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image out of focus; of a large one a small copy is blurred, to save time."""
    photo = Image.fromarray(image)
    radius = min(photo.size) / _BLUR
    times = max(1, int(radius / 4))
    small = photo.reduce(times).filter(ImageFilter.GaussianBlur(radius / times))
    return np.array(small.resize(photo.size, Image.Resampling.BILINEAR))


def _hatched(
    photo: Image.Image, unseen: Bool[np.ndarray, "y x"], top: int, shorter: int
) -> Image.Image:
    """Return rows of an image dark and gray, with thin slanting lines where they are unseen.

    Args:
        photo: Rows of the image.
        unseen: Of these rows.
        top: The number of the first of them.
        shorter: The shorter side of the whole image.
    """
    height, width = unseen.shape
    distance = max(6, round(shorter / 26))
    line = (top + np.arange(width + height)) % distance < max(1, distance // 8)
    lines = np.lib.stride_tricks.sliding_window_view(line, width)[:height]
    gray = photo.convert("L")
    dark = gray.point(_DARK)
    dark.paste(gray.point(_LINE), mask=Image.fromarray(lines & unseen))
    return dark.convert("RGB")
