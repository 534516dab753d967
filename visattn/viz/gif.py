"""Encoding of frames as an animated GIF with one palette."""

import io
import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int, UInt8
from PIL import Image

from visattn.viz.canvas import BACKGROUND, MUTED, TEXT, TRACK

Color = tuple[int, ...]
_SAMPLE_PIXELS = 20_000  # pixels from which the palette is computed
_TRANSPARENT = 255  # palette index
_TEXT_COLORS = (BACKGROUND, TEXT, MUTED, TRACK)


def encode_gif(
    frames: Sequence[Image.Image],
    durations: Sequence[int],
    image_height: int,
    *,
    text_colors: Sequence[Color] = (),
) -> bytes:
    """Return frames of one size as a looping GIF with one palette.

    Args:
        frames: RGB.
        durations: Duration of each frame in milliseconds.
        image_height: Rows above it are images, which are dithered; rows below it are text, which
            is not.
        text_colors: Colors of the text besides the default ones.

    Raises:
        ValueError: If there is no frame, or the numbers of frames and durations differ.

    Example:
        >>> encode_gif([Image.new("RGB", (8, 8))] * 2, [500, 500], 8)[:6]
        b'GIF89a'
    """
    if not frames or len(frames) != len(durations):
        raise ValueError(
            f"each frame needs a duration, got {len(frames)} frames and {len(durations)} durations"
        )
    palette = _palette(
        [frame.crop((0, 0, frame.width, image_height)) for frame in frames], text_colors
    )
    quantized = []
    for frame in frames:
        dithered = frame.quantize(palette=palette, dither=Image.Dither.FLOYDSTEINBERG)
        quantized.append(_restore_text(dithered, np.asarray(frame), image_height))
    buffer = io.BytesIO()
    quantized[0].save(
        buffer,
        "gif",
        save_all=True,
        append_images=quantized[1:],
        duration=list(durations),
        loop=0,
        disposal=1,
        palette=bytes(palette.getpalette() or []),  # otherwise each frame has its own palette
        transparency=_TRANSPARENT,  # for pixels equal to the frame before
        optimize=True,
    )
    return buffer.getvalue()


def _restore_text(
    dithered: Image.Image, frame: UInt8[np.ndarray, "y x 3"], image_height: int
) -> Image.Image:
    """Return a dithered frame whose text has the nearest palette color instead.

    Pixels of the default text and background colors are not dithered in the images either, so that
    there is no visible edge between the two.
    """
    palette = np.array(dithered.getpalette(), dtype=np.int64).reshape(-1, 3)
    # A color as one number can be compared and sorted at once.
    packed = frame @ np.array([1 << 16, 1 << 8, 1])
    indices = np.array(dithered)
    for (red, green, blue), index in zip(
        _TEXT_COLORS, _nearest_colors(palette, np.array(_TEXT_COLORS)), strict=True
    ):
        indices[packed == red << 16 | green << 8 | blue] = index
    colors, inverse = np.unique(packed[image_height:], return_inverse=True)
    nearest = _nearest_colors(
        palette, np.stack([colors >> 16, colors >> 8 & 255, colors & 255], -1)
    )
    indices[image_height:] = nearest[inverse].reshape(indices[image_height:].shape)
    output = Image.fromarray(indices)
    output.putpalette(dithered.getpalette() or [])
    return output


def _nearest_colors(
    palette: Int[np.ndarray, "n 3"], colors: Int[np.ndarray, "m 3"]
) -> UInt8[np.ndarray, " m"]:
    """Return the index of the nearest palette color for each color."""
    # The squared distance, multiplied out; all differences would be three times as many numbers.
    distances = (colors**2).sum(1)[:, None] - 2 * colors @ palette.T + (palette**2).sum(1)
    return distances.argmin(1).astype(np.uint8)


def _interpolate_colors(start: Color, end: Color) -> list[Color]:
    """Return five colors from start to end, for antialiased text."""
    steps = np.linspace(start, end, 5).round().astype(int)
    return [tuple(map(int, step)) for step in steps]


_FIXED_COLORS = [
    *_interpolate_colors(BACKGROUND, TEXT),
    *_interpolate_colors(BACKGROUND, MUTED),
    TRACK,
]


def _palette(images: Sequence[Image.Image], text_colors: Sequence[Color]) -> Image.Image:
    """Return a palette of image colors, text colors and `_TRANSPARENT`."""
    stride = max(1, round(math.sqrt(sum(i.width * i.height for i in images) / _SAMPLE_PIXELS)))
    sample = np.concatenate([np.asarray(image)[::stride, ::stride] for image in images])
    fixed = list(dict.fromkeys([*_FIXED_COLORS, *text_colors]))
    count = _TRANSPARENT - len(fixed)
    colors = Image.fromarray(sample).quantize(count, kmeans=_SAMPLE_PIXELS // 100).getpalette()
    # Images of few colors leave entries unused.
    padded = ((colors or []) + 3 * count * [0])[: 3 * count]
    palette = Image.new("P", (1, 1))
    palette.putpalette([*padded, *(channel for color in fixed for channel in color)])
    return palette
