"""A scan on one page: where the eye went, what it saw, and what the network thought."""

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from visattn.viz.layout.grid import GAP, MARGIN
from visattn.viz.layout.text import shortened, typeface
from visattn.viz.maps.legend import INK, PAPER, SMALL, SOFT
from visattn.viz.scanpaths.mosaic import mosaic, patch_tile
from visattn.viz.scanpaths.path import draw_number, scan_path, time_colors
from visattn.viz.scanpaths.probabilities import probability_plot
from visattn.viz.scanpaths.record import ShownScan, per_cent
from visattn.viz.scanpaths.view import scan_view

_WIDTH = 1200
_INNER = _WIDTH - 2 * MARGIN
_ROOM = 400  # a side of the two images
_PLOT = _INNER - 2 * _ROOM - 2 * GAP
_LOWEST = 240  # the plot needs as much
_TITLE, _HEAD = 25, 24  # heights in pixels
_WIDEST = {1: 169, 2: 136}  # a patch, by the number of scales
_WIDEST_OF_MANY, _NARROWEST = 104, 64
_CLOSE = 8  # between patches of one glimpse
_CHIP, _WORDS = 32, 22  # above and below the patches of a glimpse
_CHANCE = 46  # beside a name


def scan_panel(scan: ShownScan, *, note: str = "") -> UInt8[np.ndarray, "height 1200 3"]:
    """Return a page that shows a scan.

    Above on the left the image with the path of the eye; beside it all that was seen, put
    together, and the probabilities after each glimpse. Below what each glimpse showed, a row for
    each scale, and the class that was likeliest after it.

    Args:
        scan: What to draw.
        note: A line of small print.

    Example:
        >>> scan = ShownScan(
        ...     np.zeros((30, 40, 3), np.uint8), np.array([[[10.0, 10, 18, 18]]]),
        ...     np.zeros((1, 1, 1, 4, 4), np.uint8), np.array([[0.2, 0.8]]), ("cat", "dog"),
        ... )
        >>> scan_panel(scan).shape[1]
        1200
    """
    view = scan_view(scan.image.shape[:2], scan.boxes, (_ROOM, _ROOM))
    path = scan_path(view.canvas(scan.image), view.boxes(scan.boxes), area=view.area)
    whole = mosaic(scan.patches, view.boxes_on_image(scan.boxes), view.drawn)
    height = max(_LOWEST, path.shape[0])
    plot = probability_plot(scan.probabilities, scan.classes, (height, _PLOT))
    strip = glimpse_strip(scan)
    above = MARGIN + _TITLE + 40 + _HEAD
    page = Image.new("RGB", (_WIDTH, above + height + 30 + strip.shape[0] + MARGIN), PAPER)
    pen = ImageDraw.Draw(page)
    _write_title(pen, scan, note)
    heads = ("where it looked", "what it saw, put together", "what it thought")
    parts = zip(heads, (path, whole, plot), (0, view.corner[1], 0), strict=True)
    for column, (head, part, lower) in enumerate(parts):
        x = MARGIN + column * (_ROOM + GAP)
        pen.text((x, above - _HEAD), head, SOFT, typeface(SMALL))
        page.paste(Image.fromarray(part), (x, above + lower))
    page.paste(Image.fromarray(strip), (MARGIN, above + height + 30))
    return np.array(page)


def glimpse_strip(scan: ShownScan, *, width: int = _INNER) -> UInt8[np.ndarray, "height width 3"]:
    """Return what each glimpse showed, in order, with the class that was likeliest after it.

    Args:
        scan: What to draw.
        width: In pixels. Glimpses that one row cannot hold go into the next.
    """
    count, scales = scan.boxes.shape[:2]
    side, columns = _strip_layout(count, scales, width)
    best, font = scan.probabilities.argmax(1), typeface(SMALL + 2)
    names = [scan.classes[which] for which in best]
    apart = max(map(font.getlength, names)) > side - _CHANCE  # chances go below their names
    tall = _CHIP + scales * (side + _CLOSE) + (2 if apart else 1) * _WORDS
    rows = -(-count // columns)
    page = Image.new("RGB", (width, rows * tall + (rows - 1) * 16), PAPER)
    pen = ImageDraw.Draw(page)
    for index, color in enumerate(time_colors(count)):
        x, y = index % columns * (side + GAP), index // columns * (tall + 16)
        _draw_chip(page, (x + 12, y + 12), index + 1, color)
        for scale, patch in enumerate(scan.patches[index]):
            tile = Image.fromarray(patch_tile(patch, side))
            page.paste(tile, (x, y + _CHIP + scale * (side + _CLOSE)))
        below, chance = y + tall - 20, per_cent(float(scan.probabilities[index, best[index]]))
        name = shortened(names[index], font, side if apart else side - _CHANCE)
        pen.text((x, below - _WORDS * apart), name, INK, font)
        place, anchor = ((x, below), "la") if apart else ((x + side, below + 1), "ra")
        pen.text(place, chance, SOFT, typeface(SMALL), anchor=anchor)
    return np.array(page)


def _strip_layout(count: int, scales: int, width: int) -> tuple[int, int]:
    """Return the side of a patch and how many stand in a row."""
    widest = _WIDEST.get(scales, _WIDEST_OF_MANY)
    side = min(widest, (width + GAP) // count - GAP)
    if side >= _NARROWEST:
        return side, count
    most = (width + GAP) // (_NARROWEST + GAP)
    columns = -(-count // -(-count // most))  # rows as even as can be
    return min(widest, (width + GAP) // columns - GAP), columns


def _draw_chip(
    page: Image.Image, place: tuple[int, int], number: int, color: tuple[int, int, int]
) -> None:
    """Draw a number on a page, smooth at its edge."""
    large = Image.new("RGB", (72, 72), PAPER)
    draw_number(ImageDraw.Draw(large), (36, 36), number, color, 30)
    page.paste(large.reduce(3), (place[0] - 12, place[1] - 12))


def _write_title(pen: ImageDraw.ImageDraw, scan: ShownScan, note: str) -> None:
    name, chance = scan.answer
    font, large = typeface(SMALL + 4), typeface(_TITLE)
    text = shortened(name, large, _INNER - 100)
    pen.text((MARGIN, MARGIN - 6), text, INK, large)
    x = MARGIN + large.getlength(text) + 14
    pen.text((x, MARGIN + 2), per_cent(chance), SOFT, font)
    small = typeface(SMALL)
    pen.text((MARGIN, MARGIN + _TITLE + 6), shortened(note, small, _INNER), SOFT, small)
