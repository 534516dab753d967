"""Where a network looked on many images: the mean path, and a heat map for each glimpse."""

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.viz.layout.grid import GAP, MARGIN, TileGrid, tile_grid
from visattn.viz.layout.text import shortened, typeface
from visattn.viz.maps.heatmap import overlay
from visattn.viz.maps.legend import HEIGHT, INK, PAPER, SMALL, SOFT, draw_legend
from visattn.viz.maps.resize import resized_image, resized_map
from visattn.viz.scanpaths.path import draw_number, scan_path, time_colors
from visattn.viz.scanpaths.view import scan_view

_TITLE, _WORDS, _WIDTH = 25, 34, 1200


def coverage_panel(
    image: UInt8[np.ndarray, "y x 3"],
    spreads: Float[np.ndarray, "_ 4"],
    whole: Float[np.ndarray, "y x"],
    maps: Float[np.ndarray, "t y x"],
    *,
    title: str,
    note: str = "",
) -> UInt8[np.ndarray, "height 1200 3"]:
    """Return a page that shows where the glimpses of many images lay.

    Args:
        image: The mean of all images.
        spreads: For each glimpse a box from the mean place less a standard deviation to the mean
            place plus one: left, top, right and bottom in pixels.
        whole: How sharply each pixel was seen at best, between 0 and 1, on average over images.
        maps: The same for each glimpse.
        title: Stands above.
        note: A line of small print.

    Raises:
        ValueError: If there is not a map for each glimpse.

    Example:
        >>> blank, boxes = np.zeros((28, 28, 3), np.uint8), np.array([[7.0, 7, 21, 21]])
        >>> maps = np.zeros((1, 28, 28))
        >>> coverage_panel(blank, boxes, maps[0], maps, title="2 images").shape[1]
        1200
    """
    if not len(maps) or len(maps) != len(spreads):
        raise ValueError(f"each glimpse needs a map, got {len(maps)} for {len(spreads)} glimpses")
    grid = tile_grid(image.shape[:2], len(maps) + 2, _WIDTH)
    small = resized_image(image, grid.tile)
    high = max(float(maps.max()), float(whole.max()), 1e-6)
    view = scan_view(image.shape[:2], spreads[:, None], grid.tile, reach=0)
    path = scan_path(view.canvas(image), view.boxes(spreads[:, None]), area=view.area)

    def heat(values: np.ndarray) -> np.ndarray:
        return overlay(small, resized_map(values, grid.tile), high=high)

    tiles = [path, heat(whole), *map(heat, maps)]
    page, pen = _titled_page(grid, title, note)
    colors = time_colors(len(maps))
    for index, tile in enumerate(tiles):
        row, column = divmod(index, grid.columns)
        x = MARGIN + column * (grid.cell + GAP)
        y = MARGIN + 2 * _TITLE + 12 + row * (grid.tile[0] + _WORDS + GAP)
        page.paste(Image.fromarray(tile), (x, y))
        below = y + grid.tile[0] + 8
        if index < 2:
            text = ("mean path, boxes of one spread", "all glimpses")[index]
            pen.text((x, below), shortened(text, typeface(SMALL), grid.cell), SOFT, typeface(SMALL))
        else:
            _draw_chip(page, (x, below - 2), index - 1, colors[index - 2])
    place = (MARGIN, page.height - HEIGHT)
    draw_legend(page, place, lambda gray, values: overlay(gray, values, high=high), (0.0, high))
    return np.array(page)


def _titled_page(grid: TileGrid, title: str, note: str) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    height = 2 * MARGIN + 2 * _TITLE + grid.rows * (grid.tile[0] + _WORDS + GAP) + HEIGHT - 24
    page = Image.new("RGB", (_WIDTH, height), PAPER)
    pen, room = ImageDraw.Draw(page), _WIDTH - 2 * MARGIN
    large, small = typeface(_TITLE), typeface(SMALL)
    pen.text((MARGIN, MARGIN - 6), shortened(title, large, room), INK, large)
    pen.text((MARGIN, MARGIN + _TITLE + 6), shortened(note, small, room), SOFT, small)
    return page, pen


def _draw_chip(
    page: Image.Image, corner: tuple[int, int], number: int, color: tuple[int, int, int]
) -> None:
    large = Image.new("RGB", (72, 72), PAPER)
    draw_number(ImageDraw.Draw(large), (36, 36), number, color, 30)
    page.paste(large.reduce(3), corner)
