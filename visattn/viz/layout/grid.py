"""Where the tiles of a page lie."""

import math
from dataclasses import dataclass
from itertools import product

from PIL import Image, ImageDraw

from visattn.viz.layout.text import shortened, typeface, wrapped
from visattn.viz.maps.legend import INK, PAPER, SMALL, SOFT

MARGIN, GAP = 36, 22  # around the page; between tiles
_AREA = 52_000  # square pixels of a tile that is easy to read
_NARROWEST, _TALLEST = 104, 420  # a word needs the one; a page of towers would be bad to read


@dataclass(frozen=True)
class TileGrid:
    """Rows of equal cells, each with a tile that has the proportions of the image.

    Args:
        columns: Cells in a row.
        rows: Number of rows.
        cell: Width of a cell, in pixels; the tile is as wide or narrower.
        tile: Height and width of a tile.
    """

    columns: int
    rows: int
    cell: int
    tile: tuple[int, int]


def tile_grid(size: tuple[int, int], count: int, width: int) -> TileGrid:
    """Return the grid for `count` tiles of one image on a page.

    Many tiles become smaller; few fill the row.

    Args:
        size: Height and width of the image.
        count: Number of tiles.
        width: Of the page, with its margins.

    Example:
        >>> tile_grid((480, 640), 11, 1200)
        TileGrid(columns=4, rows=3, cell=265, tile=(199, 265))
    """
    aspect, inner = size[1] / size[0], width - 2 * MARGIN
    area = _AREA * min(1.0, math.sqrt(12 / count))
    preferred = min(max(math.sqrt(area * aspect), _NARROWEST), inner)
    most = max(1, round((inner + GAP) / (preferred + GAP)))
    rows = math.ceil(count / min(most, count))
    columns = math.ceil(count / rows)  # as even as can be
    cell = min((inner + GAP) // columns - GAP, round(1.7 * preferred))
    tall = min(round(cell / aspect), _TALLEST)
    wide = cell if tall < _TALLEST else min(cell, max(1, round(tall * aspect)))
    return TileGrid(columns, rows, cell, (max(1, tall), wide))


def tile_size(size: tuple[int, int], words: int, *, width: int = 1200) -> tuple[int, int]:
    """Return the height and width at which `caption_panel` draws the image for each word.

    Maps that are made at this size are drawn as they are, also on a very large image:
    `maps.on_image(tile_size(...))`.

    Args:
        size: Height and width of the image.
        words: Number of words.
        width: Of the panel, in pixels.

    Example:
        >>> tile_size((3024, 4032), 10)
        (199, 265)
    """
    return tile_grid(size, words + 1, width).tile


_TITLE, _LINE, _BELOW = 25, 36, 20  # heights in pixels


def titled_page(
    title: str, grid: TileGrid, width: int, text: int, foot: int, *, subtitle: str = ""
) -> tuple[Image.Image, list[tuple[int, int]]]:
    """Return an empty page under its title, and left and top of each cell.

    Args:
        title: In three lines at most.
        grid: Of the cells.
        width: Of the page, in pixels.
        text: Room below each tile, in pixels.
        foot: Room below the last row.
        subtitle: In one line, smaller.

    Example:
        >>> page, places = titled_page("a dog", TileGrid(2, 1, 80, (60, 80)), 300, 20, 30)
        >>> page.size, places
        ((300, 214), [(36, 82), (138, 82)])
    """
    top = title_end(title, width, subtitle=subtitle)
    across, down = grid.cell + GAP, grid.tile[0] + text + GAP
    page = Image.new("RGB", (width, top + grid.rows * down + foot), PAPER)
    write_title(page, title, subtitle)
    cells = product(range(grid.rows), range(grid.columns))
    return page, [(MARGIN + column * across, top + row * down) for row, column in cells]


def title_end(title: str, width: int, *, subtitle: str = "") -> int:
    """Return where on a page of some width what stands below the title begins.

    Example:
        >>> title_end("a dog", 300), title_end("a dog", 300, subtitle="ViT-B/16")
        (82, 102)
    """
    return MARGIN + len(_lines(title, width)) * _LINE + (_BELOW if subtitle else 0) + 10


def write_title(page: Image.Image, title: str, subtitle: str = "") -> None:
    """Write a title at the top of a page.

    Example:
        >>> write_title(Image.new("RGB", (300, 90), PAPER), "a dog")
    """
    pen, lines = ImageDraw.Draw(page), _lines(title, page.width)
    for number, line in enumerate(lines):
        pen.text((MARGIN, MARGIN - 6 + number * _LINE), line, INK, typeface(_TITLE))
    font, below = typeface(SMALL + 1), MARGIN - 4 + len(lines) * _LINE
    pen.text((MARGIN, below), shortened(subtitle, font, page.width - 2 * MARGIN), SOFT, font)


def _lines(title: str, width: int) -> list[str]:
    return wrapped(title, typeface(_TITLE), float(width - 2 * MARGIN), lines=3)
