"""Frames of a clip: what stands below each in a movie, and the contact sheet."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from visattn.viz.canvas import BACKGROUND, MUTED, TEXT
from visattn.viz.heatmap import resize_image
from visattn.viz.text import format_time, join_notes, load_font, truncate_text, wrap_text
from visattn.viz.tiles import MARGIN, SMALL, Legend, compute_tile_grid, create_titled_page

_WIDTH = 1200  # of the contact sheet, in pixels
_GRAY = 150  # below the colors of a legend


def contact_sheet(
    tiles: Sequence[tuple[float, str, UInt8[np.ndarray, "y x 3"]]],
    title: str,
    *,
    subtitle: str = "",
    lines: int = 1,
    legend: Legend | None = None,
) -> Image.Image:
    """Return frames of a clip on one page, each with its time and its class or caption.

    Args:
        tiles: Seconds, class or caption, and pixels of each frame.
        title: Title of the page.
        subtitle: Second line of the title.
        lines: Lines of text below each frame at most.
        legend: Color bar at the bottom.

    Example:
        >>> contact_sheet([(0.0, "dog", np.zeros((48, 64, 3), np.uint8))], "clip.mp4").size[0]
        1200
    """
    grid = compute_tile_grid(tiles[0][2].shape[:2], len(tiles), _WIDTH)
    footer = 12 if legend is None else legend.height_on(_WIDTH)
    page, places = create_titled_page(
        title, grid, _WIDTH, 8 + 16 * lines, footer, subtitle=subtitle
    )
    font = load_font(SMALL)
    for (seconds, text, pixels), (x, y) in zip(tiles, places, strict=False):
        page.paste(resize_image(pixels, grid.tile_size), (x, y))
        label = wrap_text(f"{format_time(seconds)}  {text}", font, grid.tile_size[1], lines)
        for number, line in enumerate(label):
            page.text((x, y + grid.tile_size[0] + 6 + 16 * number), line, MUTED, font)
    if legend is not None:
        legend.draw(page, (MARGIN, page.height - footer))
    return page.paint()


class SheetTile(NamedTuple):
    """A frame on the contact sheet."""

    position: int
    seconds: float
    label: str
    pixels: UInt8[np.ndarray, "y x 3"]


def labeled_tiles(
    tiles: Sequence[SheetTile], shots: Sequence[int]
) -> list[tuple[float, str, UInt8[np.ndarray, "y x 3"]]]:
    """Return tiles of a contact sheet; the first of each of several shots says so.

    Args:
        tiles: Frames in their order.
        shots: Positions of the frames that begin a shot.

    Example:
        >>> blank = np.zeros((3, 4, 3), np.uint8)
        >>> tiles = [SheetTile(position, position / 10, "dog", blank) for position in range(3)]
        >>> [text for _, text, _ in labeled_tiles(tiles, [0, 2])]
        ['shot 1 · dog', 'dog', 'shot 2 · dog']
    """
    labeled = []
    before = 0
    for tile in tiles:
        shot = sum(start <= tile.position for start in shots)
        mark = f"shot {shot}" if len(shots) > 1 and shot > before else ""
        labeled.append((tile.seconds, join_notes(mark, tile.label), tile.pixels))
        before = max(before, shot)
    return labeled


def legend_strip(
    legend: Legend, title: str, pixels: UInt8[np.ndarray, "y x 3"]
) -> UInt8[np.ndarray, "y2 x 3"]:
    """Return the color bar with its ends and the method, as a strip below a frame.

    Args:
        legend: The color bar, with labels of its ends.
        title: The method.
        pixels: The frame.

    Example:
        >>> bar = Legend(lambda gray, values: gray, (0.0, 1.0), end_labels=("0", "1"))
        >>> legend_strip(bar, "Grad-CAM", np.zeros((90, 160, 3), np.uint8)).shape
        (20, 160, 3)
    """
    height, width = pixels.shape[:2]
    size = max(10, min(height, width) // 24)
    page = Image.new("RGB", (width, 2 * size), BACKGROUND)
    pen, font = ImageDraw.Draw(page), load_font(size)
    low, high = legend.end_labels or ("", "")
    bar = np.tile(np.linspace(*legend.value_range, max(8, width // 4)), (max(4, size // 2), 1))
    colors = legend.draw_overlay(np.full((*bar.shape, 3), _GRAY, np.uint8), bar)
    x = size // 2
    pen.text((x, size), low, MUTED, font, anchor="lm")
    x += round(font.getlength(low)) + size // 2
    page.paste(Image.fromarray(colors), (x, size - bar.shape[0] // 2))
    x += bar.shape[1] + size // 2
    pen.text((x, size), high, MUTED, font, anchor="lm")
    x += round(font.getlength(high)) + size
    if width - x > 4 * size:
        pen.text((x, size), truncate_text(title, font, width - x), MUTED, font, anchor="lm")
    return np.asarray(page)


def with_footer(
    pixels: UInt8[np.ndarray, "y x 3"],
    text: str,
    strip: UInt8[np.ndarray, "y2 x 3"] | None,
    lines: int,
) -> UInt8[np.ndarray, "y3 x 3"]:
    """Return a frame with text and a legend below it.

    Args:
        pixels: The frame.
        text: Its class or caption; "" for none. All frames of a clip have some or none has.
        strip: See `legend_strip`.
        lines: Lines of text at most; all frames have room for them.

    Example:
        >>> with_footer(np.zeros((90, 160, 3), np.uint8), "dog", None, 1).shape
        (114, 160, 3)
    """
    parts = [pixels]
    if text:
        height, width = pixels.shape[:2]
        size = max(12, min(height, width) // 18)
        space = 2 * size + (lines - 1) * 3 * size // 2
        page = Image.new("RGB", (width, space), BACKGROUND)
        font = load_font(size)
        wrapped = "\n".join(wrap_text(text, font, width - size, lines))
        place = (width / 2, space / 2)
        ImageDraw.Draw(page).text(place, wrapped, TEXT, font, anchor="mm", align="center")
        parts.append(np.asarray(page))
    return np.concatenate([*parts, *([] if strip is None else [strip])])
