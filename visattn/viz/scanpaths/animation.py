"""A scan as an image that moves: glimpse after glimpse, what was seen and what was thought."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from visattn.viz.layout.gif import encoded_gif
from visattn.viz.layout.text import shortened, typeface
from visattn.viz.maps.legend import INK, PAPER, SMALL, SOFT, TRACK
from visattn.viz.scanpaths.mosaic import mosaic
from visattn.viz.scanpaths.path import scan_path, time_colors
from visattn.viz.scanpaths.probabilities import class_colors, shown_classes
from visattn.viz.scanpaths.record import ShownScan, per_cent
from visattn.viz.scanpaths.view import ScanView, scan_view

FIRST, GLIMPSE, LAST = 1000, 900, 2800  # milliseconds: the image, each glimpse, all of them
_MARGIN, _GAP = 14, 12
_BAR, _NAME, _CHANCE = 22, 110, 52  # a bar's line; the room for its name and its number
_SMALLEST = 240  # pixels wide: below, nothing could be read


def scan_animation(scan: ShownScan, *, width: int = 560, max_bytes: int = 1_500_000) -> bytes:
    """Return a GIF: the image, a frame for each glimpse, and at last the whole path.

    On the left the image with the path so far, on the right what has been seen so far, below how
    likely the classes are. What would be longer than `max_bytes` is drawn smaller.

    Args:
        scan: What to draw.
        width: In pixels, at least 240.
        max_bytes: The longest file, unless the smallest is longer.

    Raises:
        ValueError: If the width is too small.

    Example:
        >>> scan = ShownScan(
        ...     np.zeros((30, 40, 3), np.uint8), np.array([[[10.0, 10, 18, 18]]]),
        ...     np.zeros((1, 1, 1, 4, 4), np.uint8), np.array([[0.2, 0.8]]), ("cat", "dog"),
        ... )
        >>> scan_animation(scan, width=240)[:6]
        b'GIF89a'
    """
    if width < _SMALLEST:
        raise ValueError(f"an animation must be at least {_SMALLEST} pixels wide, got {width}")
    times = [FIRST, *[GLIMPSE] * len(scan.boxes), LAST]
    while True:
        frames, height = _frames(scan, width)
        inks = [*time_colors(len(scan.boxes)), *class_colors(5)]
        moving = encoded_gif(frames, times, height, inks=inks)
        if len(moving) <= max_bytes or width == _SMALLEST:
            return moving
        width = max(_SMALLEST, int(width * 0.95 * (max_bytes / len(moving)) ** 0.5))


def _frames(scan: ShownScan, width: int) -> tuple[list[Image.Image], int]:
    """Return all frames, and the height down to which they show images."""
    room = (width - 2 * _MARGIN - _GAP) // 2
    view = scan_view(scan.image.shape[:2], scan.boxes, (room, room))
    shown = shown_classes(scan.probabilities)
    height = _MARGIN + view.size[0] + _MARGIN
    whole = (width, height + len(shown) * _BAR + _MARGIN)
    count, canvas = len(scan.boxes), view.canvas(scan.image)
    frames = []
    for step in range(count + 2):
        over = min(step, count)
        frame = Image.new("RGB", whole, PAPER)
        marked = None if step > count else over
        path = scan_path(canvas, view.boxes(scan.boxes), seen=marked, area=view.area)
        left = (width - 2 * view.size[1] - _GAP) // 2
        frame.paste(Image.fromarray(path), (left, _MARGIN))
        seen = Image.fromarray(_seen(scan, view, over))
        at = (left + view.size[1] + _GAP + view.corner[0], _MARGIN + view.corner[1])
        frame.paste(seen, at)
        _draw_bars(ImageDraw.Draw(frame), scan, shown, over, height)
        frames.append(frame)
    return frames, height


def _seen(scan: ShownScan, view: ScanView, over: int) -> np.ndarray:
    boxes = view.boxes_on_image(scan.boxes)
    return mosaic(scan.patches[:over], boxes[:over], view.drawn)


def _draw_bars(
    pen: ImageDraw.ImageDraw, scan: ShownScan, shown: Sequence[int], over: int, top: int
) -> None:
    """Draw how likely classes are after some glimpses; before the first nothing is known."""
    font, width = typeface(SMALL + 1), pen.im.size[0]
    names = [shortened(scan.classes[which], font, _NAME) for which in shown]
    start = _MARGIN + max(map(font.getlength, names)) + 12
    end = width - _MARGIN - _CHANCE
    best = int(scan.probabilities[over - 1].argmax()) if over else -1
    for line, (which, color) in enumerate(zip(shown, class_colors(len(shown)), strict=True)):
        y = top + line * _BAR + _BAR // 2
        pen.text((start - 12, y), names[line], INK if which == best else SOFT, font, anchor="rm")
        pen.rectangle((start, y - 4, end, y + 3), TRACK)
        if not over:
            continue
        chance = float(scan.probabilities[over - 1, which])
        long = round((end - start) * chance)
        if long:
            pen.rectangle((start, y - 4, start + long, y + 3), color)
        ink = INK if which == best else SOFT
        pen.text((width - _MARGIN, y), per_cent(chance), ink, font, anchor="rm")
