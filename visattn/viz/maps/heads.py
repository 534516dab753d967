"""All heads of all layers on one page, so that one sees at a glance who looks where."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.viz.layout.grid import MARGIN, title_end, write_title
from visattn.viz.layout.text import typeface
from visattn.viz.maps.heatmap import Style, overlay
from visattn.viz.maps.legend import HEIGHT, INK, PAPER, SMALL, SOFT, draw_legend
from visattn.viz.maps.resize import resized_image, resized_map

_INNER = 1480  # pixels for a row of heads, where these are not too many or too few
_LABEL, _HEAD = 74, 22  # room for the name of a layer, beside it; for the number of a head, above
_NARROWEST, _WIDEST, _GAP, _APART = 40, 150, 5, 14


@dataclass(frozen=True, eq=False)
class LayerRow:
    """The heads of one layer.

    Args:
        name: Of the layer, short.
        maps: One for each head, over the whole image, at any size; NaN where it was not seen.
        heads: The numbers of the heads, counted from 0.

    Example:
        >>> LayerRow("1", np.zeros((3, 4, 5)), (0, 1, 2)).name
        '1'
    """

    name: str
    maps: Float[np.ndarray, "h y x"]
    heads: tuple[int, ...]


def head_tile_size(size: tuple[int, int], heads: int) -> tuple[int, int]:
    """Return height and width at which `head_grid` draws the image for each head.

    Args:
        size: Of the image.
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
    image: UInt8[np.ndarray, "y x 3"],
    rows: Sequence[LayerRow],
    *,
    title: str,
    subtitle: str = "",
    high: float,
    low: float = 0.0,
    colors: str = "magma",
    opacity: float = 0.85,
    style: Style = "heat",
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a page with a row for each layer, a tile for each of its heads, and their mean.

    All tiles share one scale.

    Args:
        image: RGB, of any size and proportions.
        rows: At least one.
        title: Of the page.
        subtitle: In small print.
        high: The value that shows in full.
        low: The value that begins to show.
        colors: See `visattn.viz.maps.heatmap.overlay`.
        opacity: See `visattn.viz.maps.heatmap.overlay`.
        style: See `visattn.viz.maps.heatmap.overlay`.

    Raises:
        ValueError: If there is no layer.

    Example:
        >>> row = LayerRow("1", np.zeros((3, 30, 40)), (0, 1, 2))
        >>> head_grid(np.zeros((30, 40, 3), np.uint8), [row], title="heads", high=1.0).shape
        (303, 775, 3)
    """
    if not rows:
        raise ValueError("a grid of heads needs at least one layer")
    shown = partial(overlay, low=low, high=high, colors=colors, opacity=opacity, style=style)
    most = max(len(row.maps) for row in rows)
    tile = head_tile_size((image.shape[0], image.shape[1]), most)
    small = resized_image(image, tile)
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
