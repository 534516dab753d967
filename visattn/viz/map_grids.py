"""All heads of all layers on one page, so that one sees at a glance who looks where."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.viz.layouts import MARGIN
from visattn.viz.legends import HEIGHT, INK, PAPER, SMALL, SOFT, draw_legend
from visattn.viz.letters import typeface
from visattn.viz.overlays import Style, overlay
from visattn.viz.rasters import resized_map, resized_picture
from visattn.viz.titled_pages import title_end, write_title

_INNER = 1480  # pixels for a row of heads, where these are not too many or too few
_LABEL, _HEAD = 74, 22  # room for the name of a layer, beside it; for the number of a head, above
_NARROWEST, _WIDEST, _GAP, _APART = 40, 150, 5, 14


@dataclass(frozen=True, eq=False)
class LayerRow:
    """The heads of one layer.

    Args:
        name: Of the layer, short.
        maps: One for each head, over the whole picture, at any size; NaN where it was not seen.
        heads: The numbers of the heads, counted from 0.

    Example:
        >>> LayerRow("1", np.zeros((3, 4, 5)), (0, 1, 2)).name
        '1'
    """

    name: str
    maps: Float[np.ndarray, "h y x"]
    heads: tuple[int, ...]


def head_tile_size(size: tuple[int, int], heads: int) -> tuple[int, int]:
    """Return height and width at which `head_grid` draws the picture for each head.

    Args:
        size: Of the picture.
        heads: In the layer that has most of them.

    Example:
        >>> head_tile_size((480, 640), 12)
        (81, 108)
    """
    wide = min(max(_INNER // (heads + 1) - _GAP, _NARROWEST), _WIDEST)
    tall = round(wide * size[0] / size[1])
    if tall > 1.5 * wide:
        tall, wide = round(1.5 * wide), max(1, round(1.5 * wide * size[1] / size[0]))
    return max(1, tall), wide


def head_grid(
    picture: UInt8[np.ndarray, "y x 3"],
    rows: Sequence[LayerRow],
    *,
    title: str,
    subtitle: str = "",
    high: float,
    low: float = 0.0,
    colours: str = "magma",
    opacity: float = 0.85,
    style: Style = "heat",
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a page with a row for each layer, a tile for each of its heads, and their mean.

    All tiles share one scale.

    Args:
        picture: RGB, of any size and proportions.
        rows: At least one.
        title: Of the page.
        subtitle: In small print.
        high: The value that shows in full.
        low: The value that begins to show.
        colours: See `visattn.viz.overlays.overlay`.
        opacity: See `visattn.viz.overlays.overlay`.
        style: See `visattn.viz.overlays.overlay`.

    Raises:
        ValueError: If there is no layer.

    Example:
        >>> row = LayerRow("1", np.zeros((3, 30, 40)), (0, 1, 2))
        >>> head_grid(np.zeros((30, 40, 3), np.uint8), [row], title="heads", high=1.0).shape
        (303, 775, 3)
    """
    if not rows:
        raise ValueError("a grid of heads needs at least one layer")
    shown = partial(overlay, low=low, high=high, colours=colours, opacity=opacity, style=style)
    most = max(len(row.maps) for row in rows)
    tile = head_tile_size((picture.shape[0], picture.shape[1]), most)
    small = resized_picture(picture, tile)
    page, top = _page(tile, most, len(rows), title, subtitle)
    pen = ImageDraw.Draw(page)
    _write_heads(pen, top, tile, rows, most)
    for number, row in enumerate(rows):
        y = top + number * (tile[0] + _GAP)
        middle = y + tile[0] / 2
        pen.text((MARGIN + _LABEL - 14, middle), row.name, INK, typeface(SMALL + 1), anchor="rm")
        maps = [*row.maps, row.maps.mean(axis=0)]
        for place, one in zip((*range(len(row.maps)), most), maps, strict=True):
            page.paste(
                Image.fromarray(shown(small, resized_map(one, tile))),
                (_left(place, tile, most), y),
            )
    unseen = any(bool(np.isnan(row.maps).any()) for row in rows)
    clipped = any(float(np.nanmax(row.maps, initial=low)) > high for row in rows)
    place = (MARGIN + _LABEL, page.height - HEIGHT)
    draw_legend(page, place, shown, (low, high), unseen=unseen, clipped=clipped)
    return np.array(page)


def _page(
    tile: tuple[int, int], most: int, rows: int, title: str, subtitle: str
) -> tuple[Image.Image, int]:
    """Return a page and where its first row of tiles begins."""
    width = max(_left(most, tile, most) + tile[1] + MARGIN, 620)
    top = title_end(title, width, subtitle=subtitle) + _HEAD
    page = Image.new("RGB", (width, top + rows * (tile[0] + _GAP) + 18 + HEIGHT), PAPER)
    write_title(page, title, subtitle)
    return page, top


def _left(column: int, tile: tuple[int, int], most: int) -> int:
    """Return where a column begins; the mean stands a little apart."""
    return MARGIN + _LABEL + column * (tile[1] + _GAP) + (_APART if column == most else 0)


def _write_heads(
    pen: ImageDraw.ImageDraw, top: int, tile: tuple[int, int], rows: Sequence[LayerRow], most: int
) -> None:
    y, font = top - 6, typeface(SMALL)
    numbers = next(row.heads for row in rows if len(row.maps) == most)
    for column, number in enumerate(numbers):
        x = _left(column, tile, most) + tile[1] / 2
        text = f"head {number}" if tile[1] >= 60 else str(number)
        pen.text((x, y), text, SOFT, font, anchor="ms")
    pen.text((_left(most, tile, most) + tile[1] / 2, y), "mean", SOFT, font, anchor="ms")
