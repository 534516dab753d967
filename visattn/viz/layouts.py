"""Where the tiles of a page lie."""

import math
from dataclasses import dataclass

MARGIN, GAP = 36, 22  # around the page; between tiles
_AREA = 52_000  # square pixels of a tile that is easy to read
_NARROWEST, _TALLEST = 104, 420  # a word needs the one; a page of towers would be bad to read


@dataclass(frozen=True)
class TileGrid:
    """Rows of equal cells, each with a tile that has the proportions of the picture.

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
    """Return the grid for `count` tiles of one picture on a page.

    Many tiles become smaller; few fill the row.

    Args:
        size: Height and width of the picture.
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
    """Return the height and width at which `caption_panel` draws the picture for each word.

    Maps that are made at this size are drawn as they are, also on a very large picture:
    `maps.on_picture(tile_size(...))`.

    Args:
        size: Height and width of the picture.
        words: Number of words.
        width: Of the panel, in pixels.

    Example:
        >>> tile_size((3024, 4032), 10)
        (199, 265)
    """
    return tile_grid(size, words + 1, width).tile
