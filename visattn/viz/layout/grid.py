"""Layout of a figure: a title and a grid of tiles."""

import math
from dataclasses import dataclass
from itertools import product

from PIL import Image, ImageDraw

from visattn.viz.layout.text import load_font, truncate_text, wrap_text
from visattn.viz.maps.legend import BACKGROUND, MUTED, SMALL, TEXT

MARGIN, GAP = 36, 22  # around the page; between tiles
_PREFERRED_AREA = 52_000  # of a tile, in square pixels
_MIN_TILE_WIDTH, _MAX_TILE_HEIGHT = 104, 420  # a word must fit below a tile


@dataclass(frozen=True)
class TileGrid:
    """A grid of equal cells, each with a tile of the aspect ratio of the image.

    Args:
        columns: Number of columns.
        rows: Number of rows.
        cell_width: Width of a cell in pixels; a tile may be narrower.
        tile_size: Height and width of a tile.
    """

    columns: int
    rows: int
    cell_width: int
    tile_size: tuple[int, int]


def compute_tile_grid(image_size: tuple[int, int], num_tiles: int, page_width: int) -> TileGrid:
    """Return the grid for tiles of one image on a page; the more tiles, the smaller they are.

    Args:
        image_size: Height and width of the image.
        num_tiles: Number of tiles.
        page_width: Width of the page with its margins, in pixels.

    Example:
        >>> compute_tile_grid((480, 640), 11, 1200)
        TileGrid(columns=4, rows=3, cell_width=265, tile_size=(199, 265))
    """
    aspect, inner_width = image_size[1] / image_size[0], page_width - 2 * MARGIN
    area = _PREFERRED_AREA * min(1.0, math.sqrt(12 / num_tiles))
    preferred = min(max(math.sqrt(area * aspect), _MIN_TILE_WIDTH), inner_width)
    max_columns = max(1, round((inner_width + GAP) / (preferred + GAP)))
    rows = math.ceil(num_tiles / min(max_columns, num_tiles))
    columns = math.ceil(num_tiles / rows)  # balances the rows
    cell_width = min((inner_width + GAP) // columns - GAP, round(1.7 * preferred))
    height = min(round(cell_width / aspect), _MAX_TILE_HEIGHT)
    width = cell_width
    if height >= _MAX_TILE_HEIGHT:
        width = min(cell_width, max(1, round(height * aspect)))
    return TileGrid(columns, rows, cell_width, (max(1, height), width))


_TITLE_SIZE, _LINE_HEIGHT, _SUBTITLE_HEIGHT = 25, 36, 20  # in pixels


def create_titled_page(
    title: str,
    grid: TileGrid,
    page_width: int,
    text_height: int,
    footer_height: int,
    *,
    subtitle: str = "",
) -> tuple[Image.Image, list[tuple[int, int]]]:
    """Return a page with its title, and the left and top of each cell.

    Args:
        title: Title of the page; at most three lines of it are shown.
        grid: Grid of tiles.
        page_width: Width of the page in pixels.
        text_height: Height of the text below each tile, in pixels.
        footer_height: Height of the area below the last row, in pixels.
        subtitle: Second line of the title, smaller.

    Example:
        >>> page, places = create_titled_page("a dog", TileGrid(2, 1, 80, (60, 80)), 300, 20, 30)
        >>> page.size, places
        ((300, 214), [(36, 82), (138, 82)])
    """
    top = title_bottom(title, page_width, subtitle=subtitle)
    column_step = grid.cell_width + GAP
    row_step = grid.tile_size[0] + text_height + GAP
    height = top + grid.rows * row_step + footer_height
    page = Image.new("RGB", (page_width, height), BACKGROUND)
    draw_title(page, title, subtitle)
    cells = product(range(grid.rows), range(grid.columns))
    return page, [(MARGIN + column * column_step, top + row * row_step) for row, column in cells]


def title_bottom(title: str, page_width: int, *, subtitle: str = "") -> int:
    """Return the height of the title of a page, in pixels, with the margins around it.

    Example:
        >>> title_bottom("a dog", 300), title_bottom("a dog", 300, subtitle="ViT-B/16")
        (82, 102)
    """
    return (
        MARGIN
        + len(_title_lines(title, page_width)) * _LINE_HEIGHT
        + (_SUBTITLE_HEIGHT if subtitle else 0)
        + 10
    )


def draw_title(page: Image.Image, title: str, subtitle: str = "") -> None:
    """Draw a title at the top of a page.

    Example:
        >>> draw_title(Image.new("RGB", (300, 90), BACKGROUND), "a dog")
    """
    pen, lines = ImageDraw.Draw(page), _title_lines(title, page.width)
    for number, line in enumerate(lines):
        pen.text((MARGIN, MARGIN - 6 + number * _LINE_HEIGHT), line, TEXT, load_font(_TITLE_SIZE))
    font, top = load_font(SMALL + 1), MARGIN - 4 + len(lines) * _LINE_HEIGHT
    pen.text((MARGIN, top), truncate_text(subtitle, font, page.width - 2 * MARGIN), MUTED, font)


def _title_lines(title: str, width: int) -> list[str]:
    return wrap_text(title, load_font(_TITLE_SIZE), float(width - 2 * MARGIN), lines=3)
