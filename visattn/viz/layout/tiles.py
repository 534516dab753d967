"""Figure of tiles of one photo: each with its name and a note below, legends at the bottom."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from visattn.viz.layout.grid import MARGIN, TileGrid, create_titled_page
from visattn.viz.layout.text import load_font, truncate_text, wrap_text
from visattn.viz.maps.legend import ACCENT, MUTED, SMALL, TEXT, TRACK

_GATE = 32  # from the top of the text to the bar of a gate
MIN_WIDTH = 480
"""Width of the narrowest figure with a legend, in pixels."""


class TextBelow(NamedTuple):
    """Place of the text below a tile, in pixels from the tile."""

    height: int
    """Height of all text below a tile."""
    name_size: int
    """Font size of the name."""
    name: int
    note: int
    """Top of the note, from the top of the name."""


NAMES = TextBelow(30, 15, 7, 0)
"""Tiles with a name and no note."""
NAMES_AND_NOTES = TextBelow(56, 17, 8, 24)
COMPACT = TextBelow(44, 15, 6, 21)
WORDS = TextBelow(38, 17, 8, 5)
"""Words with an aside in their line."""
WORDS_AND_GATES = WORDS._replace(height=58)


class Gate(NamedTuple):
    """A share that is drawn as a bar."""

    share: float
    symbol: str


@dataclass(frozen=True, eq=False)
class Tile:
    """A tile of a figure.

    Args:
        image: RGB, at the size of the tiles.
        name: Text below.
        note: Second line, smaller.
        aside: Short text at the right of the name.
        gate: A bar below.
    """

    image: UInt8[np.ndarray, "y x 3"]
    name: str = ""
    note: str = ""
    aside: str = ""
    gate: Gate | None = None


@runtime_checkable
class TileLegend(Protocol):
    """What explains the colors of a figure, at its bottom."""

    @property
    def height(self) -> int:
        """Height in pixels."""
        ...

    def draw(self, page: Image.Image, position: tuple[int, int]) -> None:
        """Draw it at left and top."""
        ...


def tile_figure(
    tiles: Sequence[Tile],
    grid: TileGrid,
    *,
    title: str,
    subtitle: str = "",
    legends: Sequence[TileLegend] = (),
    text: TextBelow = NAMES_AND_NOTES,
    width: int = 1200,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure of tiles in rows, with a title above and legends below.

    Args:
        tiles: At least one.
        grid: From `compute_tile_grid` for as many tiles and this width.
        title: Title of the figure.
        subtitle: Second line of the title, smaller.
        legends: One below the other.
        text: Place of the text below each tile.
        width: Width of the figure in pixels, at least 480.

    Raises:
        ValueError: If there is no tile, or the figure is too narrow.

    Example:
        >>> from visattn.viz.layout.grid import compute_tile_grid
        >>> grid = compute_tile_grid((30, 40), 1, 600)
        >>> tile = Tile(np.zeros((*grid.tile_size, 3), np.uint8), "dog")
        >>> tile_figure([tile], grid, title="a dog", width=600).shape[1]
        600
    """
    if not tiles or width < MIN_WIDTH:
        raise ValueError(
            f"a figure needs at least one tile and a width of {MIN_WIDTH} pixels, got "
            f"{len(tiles)} tiles and {width} pixels"
        )
    footer = sum(legend.height for legend in legends)
    page, places = create_titled_page(title, grid, width, text.height, footer, subtitle=subtitle)
    pen = ImageDraw.Draw(page)
    for tile, (x, y) in zip(tiles, places, strict=False):
        page.paste(Image.fromarray(tile.image), (x, y))
        below = x, y + grid.tile_size[0] + text.name
        write_name(pen, tile, below, grid.cell_width, text)
        if tile.gate is not None:
            draw_gate(pen, below, grid.cell_width, tile.gate)
    top = page.height - footer
    for legend in legends:
        legend.draw(page, (MARGIN, top))
        top += legend.height
    return np.array(page)


def write_name(
    pen: ImageDraw.ImageDraw, tile: Tile, place: tuple[int, int], width: int, text: TextBelow
) -> None:
    """Write name, note and aside of a tile.

    Example:
        >>> page, tile = Image.new("RGB", (200, 60)), Tile(np.zeros((3, 5, 3), np.uint8), "dog")
        >>> write_name(ImageDraw.Draw(page), tile, (0, 0), 180, WORDS)
    """
    (x, y), small, large = place, load_font(SMALL), load_font(text.name_size)
    length = small.getlength(tile.aside)
    pen.text((x + width - length, y + text.note), tile.aside, MUTED, small)
    space = width - length - (10 if tile.aside else 0)
    pen.text((x, y), truncate_text(tile.name, large, space), TEXT, large)
    pen.text((x, y + text.note), truncate_text(tile.note, small, width), MUTED, small)


def draw_gate(pen: ImageDraw.ImageDraw, place: tuple[int, int], width: int, gate: Gate) -> None:
    """Draw a gate as a bar and a number, below a word.

    Example:
        >>> page = Image.new("RGB", (200, 60))
        >>> draw_gate(ImageDraw.Draw(page), (0, 0), 180, Gate(0.5, "on photo"))
    """
    (x, y), font = (place[0], place[1] + _GATE), load_font(SMALL)
    length = width - font.getlength(f"{gate.symbol} 0.00") - 10
    pen.rounded_rectangle((x, y, x + length, y + 4), 2, TRACK)
    filled = length * min(max(gate.share, 0.0), 1.0)
    if filled >= 1:
        pen.rounded_rectangle((x, y, x + filled, y + 4), 2, ACCENT)
    pen.text((x + length + 10, y - 5), f"{gate.symbol} {gate.share:.2f}", MUTED, font)


def size_text(image: UInt8[np.ndarray, "y x 3"]) -> str:
    """Return width and height of an image as text.

    Example:
        >>> size_text(np.zeros((30, 40, 3), np.uint8))
        '40 × 30'
    """
    return f"{image.shape[1]} \N{MULTIPLICATION SIGN} {image.shape[0]}"


def empty_tile(size: tuple[int, int], reason: str) -> UInt8[np.ndarray, "y x 3"]:
    """Return a gray tile with the reason why there is no image.

    Example:
        >>> empty_tile((60, 80), "no map").shape
        (60, 80, 3)
    """
    height, width = size
    tile = Image.new("RGB", (width, height), TRACK)
    pen, font = ImageDraw.Draw(tile), load_font(SMALL)
    for number, line in enumerate(wrap_text(reason, font, width - 20, max(1, (height - 20) // 16))):
        pen.text((10, 10 + 16 * number), line, MUTED, font)
    return np.array(tile)
