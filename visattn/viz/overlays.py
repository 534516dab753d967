"""Attention on its picture: bright where the model looked, quiet where it did not."""

from collections.abc import Sequence
from functools import cache
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, UInt8
from PIL import Image, ImageFilter

from visattn.viz.colours import colour_table
from visattn.viz.isolines import isolined

Style = Literal["heat", "light", "blur", "contour"]
STYLES: tuple[Style, ...] = ("heat", "light", "blur", "contour")

# How the picture looks where there is no attention: the share of grey, and of light left.
_QUIET = {"heat": (0.7, 0.82), "light": (0.85, 0.4), "blur": (0.25, 0.8)}
_DARK = [round(0.38 * level) + 14 for level in range(256)]
_LINE = [level + 40 for level in _DARK]
_BLUR = 24  # the picture's shorter side over the radius of its blur
_BAND = 1 << 18  # pixels that are drawn at once: few enough to stay near the processor


def overlay(
    picture: UInt8[np.ndarray, "y x 3"],
    values: Float[np.ndarray, "y x"],
    *,
    low: float = 0.0,
    high: float = 1.0,
    colours: str = "magma",
    opacity: float = 0.7,
    style: Style = "heat",
    signed: bool = False,
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the picture with attention on it.

    Where there is none, the picture is dim and almost grey; where there is some, it takes on
    colour. With `heat` and `light` a pixel depends on itself, its value and the scale that is
    given, and on nothing else in the picture or the map: overlays of one scale can be compared.

    Args:
        picture: RGB.
        values: One per pixel of the picture, as `AttentionMap.on_picture` returns them. NaN is
            what the network did not see, and is shown dark and hatched.
        low: The value at which attention begins to show; values below look like it.
        high: The value that shows in full; values above look like it.
        colours: The table of `heat` and `contour`, see `colour_table`; its lowest fifth is left
            out.
        opacity: How far attention in full covers the picture, between 0 and 1, with `heat`.
        style: `heat` lays colours on the picture; `light` gives it back the light it had; `blur`
            is sharp where there is attention; `contour` draws lines at a quarter, a half and three
            quarters of the scale.
        signed: Whether values below zero speak against: they show by their size, as those above
            zero do, but with `heat` and `contour` in the cold twin of the colours.

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
    _check(low, high, opacity, style)
    tables = (glowing_colours(colours), cold_colours(colours))[: 1 + signed]
    if style == "contour":
        below = bright = isolined(picture, values, low, high, tables)
        strength = _strength(0.0)
    else:
        below = _blurred(picture) if style == "blur" else picture
        bright = None if style == "heat" else picture
        strength = _strength(opacity if style == "heat" else 1.0)
    drawn = np.empty_like(picture)
    height, width = values.shape
    rows = max(1, _BAND // width)
    for top in range(0, height, rows):
        band = slice(top, min(top + rows, height))
        levels = Image.fromarray(level_steps(values[band], low, high, signed=signed))
        if bright is None:
            shown = _coloured(levels, tables, values[band])
        else:
            shown = Image.fromarray(bright[band])
        quiet = _quiet(Image.fromarray(below[band]), style)
        painted = Image.composite(shown, quiet, levels.point(strength))
        unseen = np.isnan(values[band])
        if unseen.any():
            dark = _hatched(Image.fromarray(picture[band]), unseen, top, min(height, width))
            painted.paste(dark, mask=Image.fromarray(unseen))
        drawn[band] = painted
    return drawn


def coloured_map(
    values: Float[np.ndarray, "y x"],
    *,
    low: float = 0.0,
    high: float = 1.0,
    colours: str = "magma",
    opacity: float = 1.0,
    signed: bool = False,
) -> UInt8[np.ndarray, "y x 4"]:
    """Return a map without its picture: colours that let through where there is no attention.

    Laid on any picture, it covers it as `overlay` does with `heat`. What was not seen is
    transparent.

    Args:
        values: See `overlay`, as for the others.
        low: See `overlay`.
        high: See `overlay`.
        colours: See `overlay`.
        opacity: How far attention in full covers what lies below.
        signed: See `overlay`.

    Returns:
        Red, green, blue and opacity, not premultiplied.

    Example:
        >>> coloured_map(np.array([[0.0, 1.0, np.nan]]))[0, :, 3]
        array([  0, 255,   0], dtype=uint8)
    """
    _check(low, high, opacity, "heat")
    levels = Image.fromarray(level_steps(values, low, high, signed=signed))
    tables = (glowing_colours(colours), cold_colours(colours))[: 1 + signed]
    drawn = _coloured(levels, tables, values)
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
def cold_colours(name: str) -> bytes:
    """Return the same table with red and blue exchanged: the cold twin of a warm one.

    Args:
        name: See `colour_table`.

    Example:
        >>> list(cold_colours("magma")[-3:]) == list(glowing_colours("magma")[-3:])[::-1]
        True
    """
    table = np.frombuffer(glowing_colours(name), np.uint8).reshape(256, 3)
    return table[:, ::-1].tobytes()


def _coloured(
    levels: Image.Image, tables: Sequence[bytes], values: Float[np.ndarray, "y x"]
) -> Image.Image:
    """Return levels in the colours of a table; those of values below zero in those of a second."""
    warm, *others = (levels.copy() for _ in tables)
    warm.putpalette(tables[0])
    warm = warm.convert("RGB")
    for cold, table in zip(others, tables[1:], strict=True):
        cold.putpalette(table)
        warm.paste(cold.convert("RGB"), mask=Image.fromarray(values < 0))
    return warm


@cache
def _strength(opacity: float) -> list[int]:
    """Return how far each level covers the picture: soon visible, and full only at the top."""
    return [round(255 * opacity * (level / 255) ** 0.75) for level in range(256)]


def _quiet(photo: Image.Image, style: Style) -> Image.Image:
    if style not in _QUIET:
        return photo
    greyness, light = _QUIET[style]
    grey = photo.convert("L").convert("RGB")
    return Image.blend(photo, grey, greyness).point(_dimmed(light))


@cache
def _dimmed(light: float) -> list[int]:
    """Return what is left of each level of red, green and blue."""
    return [round(light * level) for level in range(256)] * 3


def _blurred(picture: UInt8[np.ndarray, "y x 3"]) -> UInt8[np.ndarray, "y x 3"]:
    """Return the picture out of focus; of a large one a small copy is blurred, to save time."""
    photo = Image.fromarray(picture)
    radius = min(photo.size) / _BLUR
    times = max(1, int(radius / 4))
    small = photo.reduce(times).filter(ImageFilter.GaussianBlur(radius / times))
    return np.array(small.resize(photo.size, Image.Resampling.BILINEAR))


def _hatched(
    photo: Image.Image, unseen: Bool[np.ndarray, "y x"], top: int, shorter: int
) -> Image.Image:
    """Return rows of a picture dark and grey, with thin slanting lines where they are unseen.

    Args:
        photo: Rows of the picture.
        unseen: Of these rows.
        top: The number of the first of them.
        shorter: The shorter side of the whole picture.
    """
    height, width = unseen.shape
    distance = max(6, round(shorter / 26))
    line = (top + np.arange(width + height)) % distance < max(1, distance // 8)
    lines = np.lib.stride_tricks.sliding_window_view(line, width)[:height]
    grey = photo.convert("L")
    dark = grey.point(_DARK)
    dark.paste(grey.point(_LINE), mask=Image.fromarray(lines & unseen))
    return dark.convert("RGB")
