"""Figures of tiles: title, grid, legend and crops."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.viz.canvas import ACCENT, MUTED, TEXT, TRACK, Canvas, Color
from visattn.viz.heatmap import DrawOptions, resize_image
from visattn.viz.text import load_font, truncate_text, wrap_text

MARGIN, GAP = 36, 22  # around the page; between tiles
_NARROW, _NARROW_MARGIN = 480, 14  # pages below this width have such margins, in pixels
_PREFERRED_AREA = 52_000  # of a tile, in square pixels
_MIN_TILE_WIDTH, _MAX_TILE_HEIGHT = 104, 420  # a word must fit below a tile


def page_margin(width: int) -> int:
    """Return the margin of a page, in pixels.

    Args:
        width: Its width in pixels.

    Example:
        >>> page_margin(1200), page_margin(317)
        (36, 14)
    """
    return MARGIN if width >= _NARROW else _NARROW_MARGIN


@dataclass(frozen=True)
class TileGrid:
    """A grid of equal cells, each with a tile of the aspect ratio of the image.

    Args:
        columns: Number of columns.
        rows: Number of rows.
        cell_width: Width of a cell in pixels; a tile may be narrower.
        tile_size: Height and width of a tile.
        detail: Pixels of an image per pixel of its tile.
    """

    columns: int
    rows: int
    cell_width: int
    tile_size: tuple[int, int]
    detail: float = 1.0

    @property
    def pixels(self) -> tuple[int, int]:
        """Height and width at which the images of tiles are drawn."""
        return scaled_size(self.tile_size, self.detail)


def scaled_size(size: tuple[int, int], detail: float) -> tuple[int, int]:
    """Return height and width of an image that is drawn in a size.

    Args:
        size: Height and width on a page.
        detail: Pixels of the image per pixel of the page.

    Example:
        >>> scaled_size((30, 41), 2.5)
        (75, 102)
    """
    return max(1, round(size[0] * detail)), max(1, round(size[1] * detail))


def compute_tile_grid(
    image_size: tuple[int, int], num_tiles: int, page_width: int, detail: float = 1.0
) -> TileGrid:
    """Return the grid for tiles of one image on a page; the more tiles, the smaller they are.

    Args:
        image_size: Height and width of the image.
        num_tiles: Number of tiles.
        page_width: Width of the page with its margins, in pixels.
        detail: Pixels of an image per pixel of its tile.

    Example:
        >>> compute_tile_grid((480, 640), 11, 1200)
        TileGrid(columns=4, rows=3, cell_width=265, tile_size=(199, 265), detail=1.0)
    """
    # 11 tiles of 4 : 3 on 1,200 pixels: 263 wide are preferred, 4 fit, and cells are 265 wide. 9
    # tiles have 3 rows of 3 instead of 4, 4 and 1.
    aspect = image_size[1] / image_size[0]
    inner_width = page_width - 2 * page_margin(page_width)
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
    return TileGrid(columns, rows, cell_width, (max(1, height), width), detail)


_TITLE_SIZE, _LINE_HEIGHT, _SUBTITLE_HEIGHT = 25, 36, 20  # in pixels


def create_titled_page(
    title: str,
    grid: TileGrid,
    page_width: int,
    text_height: int,
    footer_height: int,
    *,
    subtitle: str = "",
) -> tuple[Canvas, list[tuple[int, int]]]:
    """Return a page with its title, and the left and top of each cell.

    Args:
        title: Title of the page; at most three lines of it are shown.
        grid: Grid of tiles.
        page_width: Width of the page in pixels.
        text_height: Height of the text below each tile, in pixels.
        footer_height: Height of the area below the last row, in pixels.
        subtitle: Second line of the title, smaller.

    Example:
        >>> page, places = create_titled_page("a dog", TileGrid(2, 1, 80, (60, 80)), 500, 20, 30)
        >>> page.width, page.height, places
        (500, 214, [(36, 82), (138, 82)])
    """
    top = title_bottom(title, page_width, subtitle=subtitle)
    column_step = grid.cell_width + GAP
    row_step = grid.tile_size[0] + text_height + GAP
    height = top + grid.rows * row_step + footer_height
    page = Canvas(page_width, height, detail=grid.detail)
    draw_title(page, title, subtitle)
    cells = product(range(grid.rows), range(grid.columns))
    margin = page_margin(page_width)
    return page, [(margin + column * column_step, top + row * row_step) for row, column in cells]


def title_bottom(title: str, page_width: int, *, subtitle: str = "") -> int:
    """Return the height of the title of a page, in pixels, with the margins around it.

    Example:
        >>> title_bottom("a dog", 500), title_bottom("a dog", 500, subtitle="ViT-B/16")
        (82, 102)
    """
    return (
        page_margin(page_width)
        + len(_title_lines(title, page_width)) * _LINE_HEIGHT
        + (_SUBTITLE_HEIGHT if subtitle else 0)
        + 10
    )


def draw_title(page: Canvas, title: str, subtitle: str = "") -> None:
    """Draw a title at the top of a page.

    Example:
        >>> draw_title(Canvas(300, 90), "a dog")
    """
    margin = page_margin(page.width)
    lines = _title_lines(title, page.width)
    for number, line in enumerate(lines):
        page.text((margin, margin - 6 + number * _LINE_HEIGHT), line, TEXT, load_font(_TITLE_SIZE))
    font = load_font(SMALL + 1)
    top = margin - 4 + len(lines) * _LINE_HEIGHT
    page.text((margin, top), truncate_text(subtitle, font, page.width - 2 * margin), MUTED, font)


def _title_lines(title: str, width: int) -> list[str]:
    return wrap_text(title, load_font(_TITLE_SIZE), float(width - 2 * page_margin(width)), lines=3)


SMALL = 12  # font size of annotations
LEGEND_HEIGHT = 64

_BAR_WIDTH = 220
_SWATCH_WIDTH = 34
_BAR_HEIGHT = 12
_SPACING = 40
_INDENT, _ROW_STEP = 12, 36  # of a label; to a second row of entries
_GRAY = 150  # stands for the image below the colors


@dataclass(frozen=True, eq=False)
class Legend:
    """A color bar, and swatches for the other elements of a figure.

    Args:
        draw_overlay: Draws values on an image in the way of the figure.
        value_range: Values at the ends of the color bar.
        label: Quantity that the colors show.
        clipped: Whether the figure has values above the range.
        has_nan: Whether the figure has pixels outside the model's input.
        gate_symbol: Symbol of the gates that the figure shows; None without gates.
        end_labels: Labels at the ends of the bar; by default its values.
        height: Height in a figure in which it needs one line, in pixels.

    Example:
        >>> page = Canvas(400, LEGEND_HEIGHT)
        >>> Legend(lambda gray, values: gray, (0.0, 1.0)).draw(page, (10, 10))
        >>> page.paint().getpixel((20, 15))
        (150, 150, 150)
    """

    draw_overlay: Callable[[np.ndarray, np.ndarray], np.ndarray]
    value_range: tuple[float, float]
    label: str = "attention"
    clipped: bool = False
    has_nan: bool = False
    gate_symbol: str | None = None
    end_labels: tuple[str, str] | None = None
    height: int = LEGEND_HEIGHT

    def draw(self, page: Canvas, position: tuple[int, int]) -> None:
        """Draw the legend.

        Args:
            page: Is drawn on.
            position: Left and top of the legend.
        """
        (x, y), (vmin, vmax) = position, self.value_range
        font = load_font(SMALL)
        self._paste(page, position, _BAR_WIDTH, (vmin, vmax))
        for share, text in _tick_labels(vmin, vmax, self.end_labels, clipped=self.clipped):
            anchor = {0.0: "la", 0.5: "ma", 1.0: "ra"}[share]
            page.text((x + share * _BAR_WIDTH, y + 18), text, MUTED, font, anchor=anchor)
        for key, text, (left, row) in self._entries(page.width - x - page_margin(page.width)):
            corner = (x + left, y + row * _ROW_STEP)
            if key == "nan":
                self._paste(page, corner, _SWATCH_WIDTH, (math.nan, math.nan))
            elif key == "gate":
                box = (corner[0], corner[1] + 4, corner[0] + _SWATCH_WIDTH, corner[1] + 8)
                page.rectangle(box, ACCENT, radius=2)
            indent = 0 if key == "label" and row else _INDENT + _SWATCH_WIDTH * (key != "label")
            label = truncate_text(
                text, font, page.width - page_margin(page.width) - corner[0] - indent
            )
            page.text((corner[0] + indent, corner[1] + 6), label, MUTED, font, anchor="lm")

    def height_on(self, width: int) -> int:
        """Return the height of the legend on a page.

        Args:
            width: Width of the page, in pixels.
        """
        rows = max(row for _, _, (_, row) in self._entries(width - 2 * page_margin(width)))
        return self.height + rows * _ROW_STEP

    def _entries(self, width: int) -> list[tuple[str, str, tuple[int, int]]]:
        """Return kind, text, and left and row of what lies beside the bar, or below it."""
        entries = [("label", self.label)]
        if self.has_nan:
            entries.append(("nan", "not seen by the model"))
        if self.gate_symbol is not None:
            kind = "share" if " " in self.gate_symbol else "gate"
            entries.append(("gate", f"{kind} {self.gate_symbol}"))
        x, row, placed = _BAR_WIDTH, 0, []
        for key, text in entries:
            swatch = 0 if key == "label" else _SWATCH_WIDTH
            length = swatch + _INDENT + round(load_font(SMALL).getlength(text))
            if x + length > width:
                x, row = 0, row + 1
                length -= _INDENT if key == "label" else 0
            placed.append((key, text, (x, row)))
            x += length + _SPACING
        return placed

    def _paste(
        self, page: Canvas, place: tuple[int, int], width: int, ends: tuple[float, float]
    ) -> None:
        """Paste a bar of values from one end to the other, drawn on gray."""
        is_ramp = not math.isnan(ends[0])
        detail = page.detail if is_ramp else 1.0  # the width of hatching is one in pixels
        shape = round(_BAR_HEIGHT * detail), round(width * detail)
        gray = np.full((*shape, 3), _GRAY, dtype=np.uint8)
        drawn = self.draw_overlay(gray, np.tile(np.linspace(*ends, shape[1]), (shape[0], 1)))
        page.paste(drawn, place, (_BAR_HEIGHT, width))


def _tick_labels(
    vmin: float, vmax: float, end_labels: tuple[str, str] | None, *, clipped: bool
) -> list[tuple[float, str]]:
    """Return the labels below the bar, each with its position as a fraction of the bar."""
    if end_labels is not None:
        return [(0.0, end_labels[0]), (1.0, end_labels[1])]
    prefix = "\N{GREATER-THAN OR EQUAL TO} " if clipped else ""
    return [(0.0, f"{vmin:.2g}"), (0.5, f"{(vmin + vmax) / 2:.2g}"), (1.0, f"{prefix}{vmax:.2g}")]


_SUPERSAMPLING = 4  # for antialiased lines
_GAP = 6


def draw_crop_frame(
    image: UInt8[np.ndarray, "y x 3"],
    corners: Float[np.ndarray, "4 2"],
    *,
    color: Color = (255, 196, 0),
    width: float = 2.0,
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with the outline of a crop, which may be any quadrilateral.

    A dot marks the top left corner of the crop, which shows its orientation.

    Args:
        image: RGB.
        corners: Corners of the crop in order around it, the top left first, as (x, y) in pixels
            of the image; they may be outside the image.
        color: Color of the line, RGB; a darker, wider line below makes it visible on any
            background.
        width: Width of the line in pixels.

    Raises:
        ValueError: If a corner is not finite, or the width is not positive.

    Example:
        >>> whole = np.array([[1, 1], [9, 1], [9, 9], [1, 9]], dtype=float)
        >>> drawn = draw_crop_frame(np.zeros((10, 10, 3), np.uint8), whole, width=1)
        >>> bool(drawn[1, 5, 0] > 60), int(drawn[5, 5, 0])
        (True, 0)
    """
    if not np.isfinite(corners).all() or width <= 0:
        raise ValueError(
            f"corners must be finite and width above 0, got {corners.tolist()} and {width}"
        )
    dark: Color = (color[0] // 5, color[1] // 5, color[2] // 5)
    drawn = _draw_outline(image, corners, dark, width + 2, 1.5 * width + 1)
    return _draw_outline(drawn, corners, color, width, 1.5 * width)


def crop_panel(
    images: UInt8[np.ndarray, "n y x 3"],
    corners: Float[np.ndarray, "n 4 2"],
    crops: UInt8[np.ndarray, "n y2 x2 3"],
    *,
    height: int = 96,
    columns: int = 8,
) -> UInt8[np.ndarray, "rows columns 3"]:
    """Return a figure of images with the outlines of their crops, and each crop below its image.

    Args:
        images: RGB.
        corners: Corners of each crop, as for `draw_crop_frame`.
        crops: The crops.
        height: Height of an image in the figure, in pixels.
        columns: Number of images in a row.

    Raises:
        ValueError: If there is no image.

    Example:
        >>> blank = np.zeros((3, 14, 14, 3), np.uint8)
        >>> corners = np.tile(np.array([[1.0, 1], [9, 1], [9, 9], [1, 9]]), (3, 1, 1))
        >>> crop_panel(blank, corners, blank, height=28, columns=2).shape
        (142, 74, 3)
    """
    if not len(images):
        raise ValueError("a panel needs at least one image, got none")
    count = len(images)
    image_height = images.shape[1]
    image_width = images.shape[2]
    scale = height / image_height
    size = (height, max(1, round(image_width * scale)))
    columns = min(columns, count)
    rows = -(-count // columns)
    cell = (2 * height + 2 * _GAP, size[1] + _GAP)
    panel = np.full((rows * cell[0] + _GAP, columns * cell[1] + _GAP, 3), 255, np.uint8)
    for index in range(count):
        top = _GAP + index // columns * cell[0]
        left = _GAP + index % columns * cell[1]
        framed = draw_crop_frame(resize_image(images[index], size), corners[index] * scale)
        panel[top : top + size[0], left : left + size[1]] = framed
        crop_top = top + size[0] + _GAP // 2
        panel[crop_top : crop_top + size[0], left : left + size[1]] = resize_image(
            crops[index], size
        )
    return panel


def _draw_outline(
    image: UInt8[np.ndarray, "y x 3"],
    corners: Float[np.ndarray, "4 2"],
    color: Color,
    width: float,
    dot_radius: float,
) -> UInt8[np.ndarray, "y x 3"]:
    """Return the image with a closed polygon and a dot at its first corner."""
    rows, columns = image.shape[:2]
    mask = Image.new("L", (columns * _SUPERSAMPLING, rows * _SUPERSAMPLING))
    pen = ImageDraw.Draw(mask)
    limit = 8.0 * max(rows, columns)
    points = [tuple(point) for point in (np.clip(corners, -limit, limit) * _SUPERSAMPLING).tolist()]
    # The first edge is drawn twice: Pillow rounds the corners of a line, but not its ends.
    pen.line([*points, *points[:2]], fill=255, width=round(width * _SUPERSAMPLING), joint="curve")
    (x, y), radius = points[0], dot_radius * _SUPERSAMPLING
    pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    alpha = np.asarray(mask.reduce(_SUPERSAMPLING), dtype=np.float32)[..., None] / 255
    return np.rint(image * (1 - alpha) + np.array(color) * alpha).astype(np.uint8)


_GATE = 32  # from the top of the text to the bar of a gate
MIN_WIDTH = 300
"""Width of the narrowest figure with a legend, in pixels."""


def check_width(drawing: DrawOptions, least: int) -> None:
    """Check that a figure is wide enough for its text.

    Args:
        drawing: Width and scale of the figure.
        least: The narrowest drawing before it is scaled, in pixels.

    Raises:
        ValueError: If it is narrower.

    Example:
        >>> check_width(DrawOptions(width=960, scale=2.0), 480)
    """
    if drawing.page_width < least:
        raise ValueError(
            f"a figure at scale {drawing.scale:g} must be at least "
            f"{math.ceil(least * drawing.scale)} pixels wide, got {drawing.width}"
        )


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
        image: RGB, at the size of the tiles; a drawing; or the reason why there is none.
        name: Text below.
        note: Second line, smaller.
        aside: Short text at the right of the name.
        gate: A bar below.
    """

    image: UInt8[np.ndarray, "y x 3"] | Canvas | str
    name: str = ""
    note: str = ""
    aside: str = ""
    gate: Gate | None = None


@runtime_checkable
class TileLegend(Protocol):
    """What explains the colors of a figure, at its bottom."""

    def height_on(self, width: int) -> int:
        """Return its height on a page of a width, in pixels."""
        ...

    def draw(self, page: Canvas, position: tuple[int, int]) -> None:
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
) -> Canvas:
    """Return a drawing of tiles in rows, with a title above and legends below.

    Args:
        tiles: At least one.
        grid: From `compute_tile_grid` for as many tiles and this width; tiles have its `pixels`.
        title: Title of the figure.
        subtitle: Second line of the title, smaller.
        legends: One below the other.
        text: Place of the text below each tile.
        width: Width of the drawing in pixels, at least 300.

    Raises:
        ValueError: If there is no tile, or the figure is too narrow.

    Example:
        >>> from visattn.viz.tiles import compute_tile_grid
        >>> grid = compute_tile_grid((30, 40), 1, 600)
        >>> tile = Tile(np.zeros((*grid.tile_size, 3), np.uint8), "dog")
        >>> tile_figure([tile], grid, title="a dog", width=600).width
        600
    """
    if not tiles or width < MIN_WIDTH:
        raise ValueError(
            f"a figure needs at least one tile and a width of {MIN_WIDTH} pixels at scale 1, got "
            f"{len(tiles)} tiles and {width} pixels"
        )
    footer = sum(legend.height_on(width) for legend in legends)
    page, places = create_titled_page(title, grid, width, text.height, footer, subtitle=subtitle)
    for tile, (x, y) in zip(tiles, places, strict=False):
        place_tile_image(page, tile.image, (x, y), grid.tile_size)
        below = x, y + grid.tile_size[0] + text.name
        write_name(page, tile, below, grid.cell_width, text)
        if tile.gate is not None:
            draw_gate(page, below, grid.cell_width, tile.gate)
    top = page.height - footer
    for legend in legends:
        legend.draw(page, (page_margin(width), top))
        top += legend.height_on(width)
    return page


def place_tile_image(
    page: Canvas,
    image: UInt8[np.ndarray, "y x 3"] | Canvas | str,
    place: tuple[int, int],
    size: tuple[int, int],
) -> None:
    """Place the image of a tile, or a gray tile with the reason why there is none.

    Args:
        page: Is drawn on.
        image: Image of a `Tile`.
        place: Left and top.
        size: Height and width.

    Example:
        >>> page = Canvas(200, 60)
        >>> place_tile_image(page, "no map", (0, 0), (60, 80))
    """
    (x, y), (height, width) = place, size
    if isinstance(image, Canvas):
        page.place(image, place)
        return
    if not isinstance(image, str):
        page.paste(image, place, size)
        return
    page.rectangle((x, y, x + width - 1, y + height - 1), TRACK)
    font = load_font(SMALL)
    for number, line in enumerate(wrap_text(image, font, width - 20, max(1, (height - 20) // 16))):
        page.text((x + 10, y + 10 + 16 * number), line, MUTED, font)


def write_name(
    page: Canvas, tile: Tile, place: tuple[int, int], width: int, text: TextBelow
) -> None:
    """Write name, note and aside of a tile.

    Example:
        >>> page, tile = Canvas(200, 60), Tile(np.zeros((3, 5, 3), np.uint8), "dog")
        >>> write_name(page, tile, (0, 0), 180, WORDS)
    """
    (x, y), small, large = place, load_font(SMALL), load_font(text.name_size)
    length = small.getlength(tile.aside)
    page.text((x + width - length, y + text.note), tile.aside, MUTED, small)
    space = width - length - (10 if tile.aside else 0)
    page.text((x, y), truncate_text(tile.name, large, space), TEXT, large)
    page.text((x, y + text.note), truncate_text(tile.note, small, width), MUTED, small)


def draw_gate(page: Canvas, place: tuple[int, int], width: int, gate: Gate) -> None:
    """Draw a gate as a bar and a number, below a word.

    Example:
        >>> page = Canvas(200, 60)
        >>> draw_gate(page, (0, 0), 180, Gate(0.5, "on photo"))
    """
    (x, y), font = (place[0], place[1] + _GATE), load_font(SMALL)
    length = width - font.getlength(f"{gate.symbol} 0.00") - 10
    page.rectangle((x, y, x + length, y + 4), TRACK, radius=2)
    filled = length * min(max(gate.share, 0.0), 1.0)
    if filled >= 1:
        page.rectangle((x, y, x + filled, y + 4), ACCENT, radius=2)
    page.text((x + length + 10, y - 5), f"{gate.symbol} {gate.share:.2f}", MUTED, font)


def size_text(image: UInt8[np.ndarray, "y x 3"]) -> str:
    """Return width and height of an image as text.

    Example:
        >>> size_text(np.zeros((30, 40, 3), np.uint8))
        '40 × 30'
    """
    return f"{image.shape[1]} \N{MULTIPLICATION SIGN} {image.shape[0]}"
