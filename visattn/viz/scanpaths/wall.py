"""Many scans side by side, as an image that moves: all eyes take their steps together."""

from collections.abc import Sequence

import numpy as np
from PIL import Image, ImageDraw

from visattn.viz.layout.gif import encoded_gif
from visattn.viz.layout.text import shortened, typeface
from visattn.viz.maps.legend import GATE, INK, PAPER, SMALL, SOFT
from visattn.viz.scanpaths.animation import FIRST, GLIMPSE, LAST
from visattn.viz.scanpaths.path import scan_path, time_colors
from visattn.viz.scanpaths.record import ShownScan, per_cent
from visattn.viz.scanpaths.view import scan_view

_WRONG = (186, 84, 84)
_MARGIN, _GAP, _WORDS = 14, 12, 30


def scan_wall(
    scans: Sequence[ShownScan],
    *,
    truths: Sequence[str | None] = (),
    columns: int | None = None,
    side: int = 170,
) -> bytes:
    """Return a GIF: all images, a frame for each glimpse, and at last the whole paths.

    Below each image stands the class that is likeliest so far, with its probability.

    Args:
        scans: At least one, all of as many glimpses.
        truths: What each image really shows; a class that is not it is written in red.
        columns: Images side by side; about as many as rows, and rather more, if left out.
        side: Room for an image, in pixels.

    Raises:
        ValueError: If there is no scan, they differ in their glimpses, or truths are not one each.

    Example:
        >>> scan = ShownScan(
        ...     np.zeros((30, 40, 3), np.uint8), np.array([[[10.0, 10, 18, 18]]]),
        ...     np.zeros((1, 1, 1, 4, 4), np.uint8), np.array([[0.2, 0.8]]), ("cat", "dog"),
        ... )
        >>> scan_wall([scan, scan], truths=["dog", "cat"], side=64)[:6]
        b'GIF89a'
    """
    counts = {len(scan.boxes) for scan in scans}
    if len(counts) != 1 or len(truths) not in (0, len(scans)):
        raise ValueError(
            "a wall needs scans of one number of glimpses, and no truths or one each; got "
            f"{len(scans)} scans of {sorted(counts)} glimpses, {len(truths)} truths"
        )
    [count] = counts
    columns = columns or min(len(scans), round((1.6 * len(scans)) ** 0.5 + 0.4))
    known = list(truths) or [None] * len(scans)
    frames = [_frame(scans, known, step, columns, side) for step in range(count + 2)]
    times = [FIRST, *[GLIMPSE] * count, LAST]
    inks = [*time_colors(count), GATE, _WRONG]
    return encoded_gif(frames, times, frames[0].height, inks=inks)


def _frame(
    scans: Sequence[ShownScan],
    truths: Sequence[str | None],
    step: int,
    columns: int,
    side: int,
) -> Image.Image:
    """Return all images after some glimpses; one step more shows the whole paths."""
    rows = -(-len(scans) // columns)
    across, down = side + _GAP, side + _WORDS + _GAP
    size = (2 * _MARGIN + columns * across - _GAP, 2 * _MARGIN + rows * down - _GAP)
    page = Image.new("RGB", size, PAPER)
    pen = ImageDraw.Draw(page)
    for index, (scan, truth) in enumerate(zip(scans, truths, strict=True)):
        x, y = _MARGIN + index % columns * across, _MARGIN + index // columns * down
        count = len(scan.boxes)
        view = scan_view(scan.image.shape[:2], scan.boxes, (side, side), reach=0)
        seen = None if step > count else step
        boxes = view.boxes(scan.boxes)
        drawn = scan_path(view.canvas(scan.image), boxes, seen=seen, area=view.area)
        place = (x + (side - drawn.shape[1]) // 2, y + (side - drawn.shape[0]) // 2)
        page.paste(Image.fromarray(drawn), place)
        if step:
            _write(pen, scan, truth, min(step, count) - 1, (x, y + side + 7, x + side))
    return page


def _write(
    pen: ImageDraw.ImageDraw,
    scan: ShownScan,
    truth: str | None,
    glimpse: int,
    place: tuple[int, int, int],
) -> None:
    """Write the likeliest class after a glimpse between two ends of a line."""
    left, top, right = place
    best, font = int(np.argmax(scan.probabilities[glimpse])), typeface(SMALL)
    chance = per_cent(float(scan.probabilities[glimpse, best]))
    pen.text((right, top + 2), chance, SOFT, font, anchor="ra")
    large = typeface(SMALL + 3)
    name = shortened(scan.classes[best], large, right - left - font.getlength(chance) - 8)
    ink = INK if truth is None else GATE if truth == scan.classes[best] else _WRONG
    pen.text((left, top), name, ink, large)
