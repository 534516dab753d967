"""Frames as a GIF, through Pillow alone."""

import io
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image

from visattn.viz.maps.legend import INK, PAPER, SOFT, TRACK

Color = tuple[int, ...]
_SAMPLE = 20_000  # pixels from which the palette is made: more take long and change little
_CLEAR = 255  # the last color of the palette is none
_PLAIN = (PAPER, INK, SOFT, TRACK)


def encoded_gif(
    frames: Sequence[Image.Image],
    times: Sequence[int],
    height: int,
    *,
    inks: Sequence[Color] = (),
) -> bytes:
    """Return frames of one size as a GIF with one palette, which goes round for ever.

    Args:
        frames: RGB.
        times: How long each is shown, in milliseconds.
        height: Above it, in pixels, frames show images, whose colors are mixed from few; below
            it text, whose colors stay plain.
        inks: Colors of the text besides those of all pages.

    Raises:
        ValueError: If there is no frame, or not one time for each.

    Example:
        >>> encoded_gif([Image.new("RGB", (8, 8))] * 2, [500, 500], 8)[:6]
        b'GIF89a'
    """
    if not frames or len(frames) != len(times):
        raise ValueError(f"each frame needs its time, got {len(frames)} frames, {len(times)} times")
    palette = _palette([frame.crop((0, 0, frame.width, height)) for frame in frames], inks)
    flat = []
    for frame in frames:
        # Between few colors attention would show steps: they are mixed, but not in the text.
        drawn = frame.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG)
        flat.append(_plain_text(drawn, np.asarray(frame), height))
    buffer = io.BytesIO()
    flat[0].save(
        buffer,
        "gif",
        save_all=True,
        append_images=flat[1:],
        duration=list(times),
        loop=0,
        disposal=1,
        palette=bytes(palette.getpalette() or []),  # named, or each frame would bring its own
        transparency=_CLEAR,  # for what stays as it was in the frame before
        optimize=True,
    )
    return buffer.getvalue()


def _plain_text(drawn: Image.Image, frame: UInt8[np.ndarray, "y x 3"], height: int) -> Image.Image:
    """Return a frame of few colors, with the nearest of them where its text is, unmixed.

    The colors of paper and ink stand for themselves among the images too, so that no edge
    shows between the two.
    """
    table = np.array(drawn.getpalette(), dtype=np.int64).reshape(-1, 3)
    packed = frame @ np.array([1 << 16, 1 << 8, 1])
    indexes = np.array(drawn)
    for (red, green, blue), index in zip(_PLAIN, _nearest(table, np.array(_PLAIN)), strict=True):
        indexes[packed == red << 16 | green << 8 | blue] = index
    found, where = np.unique(packed[height:], return_inverse=True)
    nearest = _nearest(table, np.stack([found >> 16, found >> 8 & 255, found & 255], -1))
    indexes[height:] = nearest[where].reshape(indexes[height:].shape)
    plain = Image.fromarray(indexes)
    plain.putpalette(drawn.getpalette() or [])
    return plain


def _nearest(
    table: Int[np.ndarray, "n 3"], colors: Int[np.ndarray, "m 3"]
) -> UInt8[np.ndarray, " m"]:
    """Return for each color the place of the nearest one in a table."""
    apart = (colors**2).sum(1)[:, None] - 2 * colors @ table.T + (table**2).sum(1)
    return apart.argmin(1).astype(np.uint8)


def _between(one: Color, other: Color) -> list[Color]:
    """Return colors from one to another, as the edges of letters have them."""
    steps = np.linspace(one, other, 5).round().astype(int)
    return [tuple(map(int, step)) for step in steps]


_INKS = [*_between(PAPER, INK), *_between(PAPER, SOFT), TRACK]


def _palette(images: Sequence[Image.Image], inks: Sequence[Color]) -> Image.Image:
    """Return the colors of images as a palette, beside them those of the text and `_CLEAR`."""
    share = max(1, round(math.sqrt(sum(one.width * one.height for one in images) / _SAMPLE)))
    sample = np.concatenate([np.asarray(one)[::share, ::share] for one in images])
    fixed = list(dict.fromkeys([*_INKS, *inks]))
    count = _CLEAR - len(fixed)
    found = Image.fromarray(sample).quantize(count, kmeans=_SAMPLE // 100).getpalette() or []
    padded = (found + 3 * count * [0])[: 3 * count]
    palette = Image.new("P", (1, 1))
    palette.putpalette([*padded, *(part for ink in fixed for part in ink)])
    return palette
