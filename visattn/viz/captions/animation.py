"""A caption as an image that moves: word after word, and where the model looked for it."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.viz.layout.gif import encoded_gif
from visattn.viz.layout.text import ELLIPSIS, shortened, typeface
from visattn.viz.maps.heatmap import Style, overlay
from visattn.viz.maps.legend import INK, PAPER, SOFT
from visattn.viz.maps.resize import resized_image, resized_map

FIRST, WORD, LAST = 1200, 750, 2600  # milliseconds: the photo, each word, all words
_MARGIN, _LETTERS, _LINE, _LINES = 12, 17, 28, 4
_SMALLEST = 160  # pixels wide: below, nothing could be read
_TALLEST = 2.0  # an image's height, in widths of the frame


def caption_animation(
    image: UInt8[np.ndarray, "y x 3"],
    words: Sequence[str],
    maps: Float[np.ndarray, "t y2 x2"],
    *,
    high: float,
    colors: str = "magma",
    opacity: float = 0.7,
    style: Style = "heat",
    width: int = 480,
    max_bytes: int = 1_500_000,
) -> bytes:
    """Return a GIF: the photo, a frame for each word, and at last the mean of all words.

    All frames share one scale and one palette. What would be longer than `max_bytes` is drawn
    smaller.

    Args:
        image: RGB, of any size and proportions.
        words: At least one; the caption stands below the photo, the word in turn marked.
        maps: One for each word, over the whole image, at any size; NaN where it was not seen.
            `AttentionMap.on_image(frame_size(...))` makes them at the size that is drawn.
        high: The value that shows in full.
        colors: The table of `heat`, see `visattn.viz.maps.colormap.color_table`.
        opacity: How far attention in full covers the image, between 0 and 1.
        style: `heat` or `light`, see `overlay`.
        width: In pixels, at least 160.
        max_bytes: The longest file.

    Raises:
        ValueError: If there is no word, not one map for each, or the width is too small.

    Example:
        >>> moving = caption_animation(
        ...     np.zeros((30, 40, 3), np.uint8), ["a", "dog"], np.zeros((2, 30, 40)), high=1.0
        ... )
        >>> moving[:6]
        b'GIF89a'
    """
    if not words or len(words) != len(maps):
        raise ValueError(f"maps must be one for each word, got {len(maps)} for {len(words)} words")
    if width < _SMALLEST:
        raise ValueError(f"an animation must be at least {_SMALLEST} pixels wide, got {width}")
    draw = partial(overlay, high=high, colors=colors, opacity=opacity, style=style)
    times = [FIRST, *[WORD] * len(words), LAST]
    while True:
        size = frame_size(image.shape[:2], width)
        small = resized_image(image, size)
        shown = [resized_map(one, size) for one in (*maps, np.mean(maps, axis=0))]
        seen = [small, *(draw(small, one) for one in shown)]
        moving = encoded_gif(_titled(seen, words, width), times, size[0])
        if len(moving) <= max_bytes or width == _SMALLEST:
            return moving
        width = max(_SMALLEST, int(width * 0.95 * (max_bytes / len(moving)) ** 0.5))


def frame_size(size: tuple[int, int], width: int) -> tuple[int, int]:
    """Return the height and width at which an animation draws an image.

    Args:
        size: Height and width of the image.
        width: Of the animation, in pixels. What is very tall is drawn narrower.

    Example:
        >>> frame_size((480, 640), 480)
        (360, 480)
    """
    height, across = size
    share = min(width / across, _TALLEST * width / height)
    return max(1, round(height * share)), max(1, round(across * share))


def _titled(
    seen: Sequence[UInt8[np.ndarray, "y x 3"]], words: Sequence[str], width: int
) -> list[Image.Image]:
    """Return frames: each image, in the middle, above the caption with its word marked."""
    places, height = _places(words, width)
    frames = []
    for index, image in enumerate(seen):
        frame = Image.new("RGB", (width, image.shape[0] + height), PAPER)
        frame.paste(Image.fromarray(image), ((width - image.shape[1]) // 2, 0))
        pen = ImageDraw.Draw(frame)
        for number, (word, x, y, end) in enumerate(places, start=1):
            top = image.shape[0] + y
            chosen = number == index
            if chosen:
                pen.rounded_rectangle((x - 5, top - 4, end + 5, top + _LETTERS + 6), 5, INK)
            whole = index in (0, len(seen) - 1)
            color = PAPER if chosen else INK if whole else SOFT
            pen.text((x, top), word, color, typeface(_LETTERS))
        frames.append(frame)
    return frames


def _places(words: Sequence[str], width: int) -> tuple[list[tuple[str, float, int, float]], int]:
    """Return each word with its left, top and right, and the height of them all.

    Of a caption that is longer than the lines there are, the rest is an ellipsis.
    """
    font = typeface(_LETTERS)
    blank, room = font.getlength(" ") + 6, width - 2 * _MARGIN
    lines: list[list[tuple[str, float]]] = [[]]
    for word in words:
        short = shortened(word, font, room)
        long = font.getlength(short)
        if lines[-1] and sum(w + blank for _, w in lines[-1]) + long > room:
            lines.append([])
        lines[-1].append((short, long))
    if len(lines) > _LINES:
        lines[_LINES - 1][-1] = (ELLIPSIS, font.getlength(ELLIPSIS))
    places = []
    for number, line in enumerate(lines[:_LINES]):
        x = (width - sum(long for _, long in line) - blank * (len(line) - 1)) / 2
        for word, long in line:
            places.append((word, x, _MARGIN + number * _LINE, x + long))
            x += long + blank
    return places, 2 * _MARGIN + min(len(lines), _LINES) * _LINE - 6
