"""Pages: paper, a title, and cells below it."""

from itertools import product

from PIL import Image, ImageDraw

from visattn.viz.layouts import GAP, MARGIN, TileGrid
from visattn.viz.legends import INK, PAPER, SMALL, SOFT
from visattn.viz.letters import shortened, typeface, wrapped

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
