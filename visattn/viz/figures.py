"""Figures of maps: methods or classes side by side, on one photo or on several."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import UInt8
from torch import Tensor

from visattn.geometry.affine import Box, Geometry
from visattn.images.reader import ImageLike, LoadedImage, list_images
from visattn.results.attention_map import AttentionMap
from visattn.results.scale import MapScale, map_scale
from visattn.viz.canvas import MUTED, TEXT, Canvas, Color
from visattn.viz.heatmap import DrawOptions, resize_image
from visattn.viz.maps import (
    displayed_image,
    draw_target,
    map_legends,
    map_tile,
    method_title,
    placed_on_tensor,
    target_line,
    values_on_tile,
)
from visattn.viz.notebook_maps import channel_bars
from visattn.viz.photo_part import PhotoPart
from visattn.viz.rendering import Figure
from visattn.viz.text import UnicodeFont, join_notes, load_font, wrap_text
from visattn.viz.tiles import (
    MIN_WIDTH,
    SMALL,
    Tile,
    check_width,
    compute_tile_grid,
    draw_title,
    page_margin,
    place_tile_image,
    scaled_size,
    size_text,
    tile_figure,
    title_bottom,
)

ScaleGroup = Literal["map", "row", "column", "all"]
Maps = AttentionMap | Iterable[Any] | Mapping[str, Any]
_GROUPS: tuple[ScaleGroup, ...] = get_args(ScaleGroup)
_GRAY = 150  # stands for a photo that is not given
_GAP, _LINE = 12, 15  # between tiles; of text, in pixels
_HEADING_SIZE, _HEADING_LINES = 13, 2
_MIN_CELL, _MAX_ASPECT = 48, 1.5  # narrowest tile in pixels; height of a tile / width


@dataclass(frozen=True, eq=False)
class _PhotoMaps:
    """A photo, if it is given, its maps, and the boxes of each map, if there are any."""

    photo: LoadedImage | None
    maps: Sequence[AttentionMap]
    boxes: Sequence[Sequence[Box]] = ()

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the photo."""
        geometry = self.maps[0].geometry
        if self.photo is not None:
            return self.photo.size
        return (1, 1) if geometry is None else geometry.image_size

    @property
    def pixels(self) -> UInt8[np.ndarray, "y x 3"]:
        """The photo with what the first map explains, or gray."""
        if self.photo is None:
            return np.full((*self.size, 3), _GRAY, np.uint8)
        return draw_target(self.photo.pixels, self.maps[0])

    @property
    def geometry(self) -> Geometry:
        """Where the input of the network lies on the photo."""
        return self.maps[0].geometry or Geometry.identity(self.size)

    def draw(
        self, tile: tuple[int, int], scales: Sequence[MapScale], drawing: DrawOptions
    ) -> tuple[UInt8[np.ndarray, "y x 3"], list[Tile], list[np.ndarray | None]]:
        """Return the photo, the tile of each map, and its values, at the size of a tile."""
        part = PhotoPart.of(self.geometry, crop=drawing.crop)
        whole, window = part.whole_size(tile), part.window(tile)
        all_values = [values_on_tile(each, whole, drawing) for each in self.maps]
        small = resize_image(self.pixels, whole)[window]
        values = [None if each is None else each[window] for each in all_values]
        tiles = [
            map_tile(*each, small, drawing) for each in zip(self.maps, scales, values, strict=True)
        ]
        for index, own in enumerate(self.boxes):
            if isinstance(drawn := tiles[index].image, np.ndarray):
                tiles[index] = replace(tiles[index], image=part.outline(drawn, own))
        return small, tiles, values

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        return len(self.maps) + (self.photo is not None)


@dataclass(frozen=True, eq=False)
class _MapTable:
    """Rows of maps, one for each photo.

    Args:
        rows: At least one, of equal length.
        names: Title of each column, where they were given.
    """

    rows: Sequence[_PhotoMaps]
    names: Sequence[str]

    @property
    def maps(self) -> list[AttentionMap]:
        """All maps, row by row."""
        return [each for row in self.rows for each in row.maps]

    def with_boxes(self, boxes: Sequence[Sequence[Box]]) -> "_MapTable":
        """Return the table with the boxes of each map, row by row.

        Raises:
            ValueError: If there are boxes of another number of maps.
        """
        if len(boxes) != len(self.maps):
            raise ValueError(f"each of {len(self.maps)} maps needs boxes, got {len(boxes)}")
        rest = iter(boxes)
        rows = [replace(row, boxes=[next(rest) for _ in row.maps]) for row in self.rows]
        return replace(self, rows=rows)

    def column_titles(self) -> list[str]:
        """Return what the maps of a column have in common, and columns have not: method or class.

        Columns without such a thing have no titles.
        """
        if self.names:
            return list(self.names)
        columns = list(zip(*(row.maps for row in self.rows), strict=True))
        describe: tuple[Callable[[AttentionMap], str], ...] = (
            method_title,
            lambda each: each.info.target_name,
            lambda each: each.info.label,
            lambda each: join_notes(method_title(each), each.info.target_name),
        )
        for name in describe:
            titles = [{name(each) for each in column} for column in columns]
            alike = all(len(each) == 1 for each in titles)
            if alike and len(set.union(*titles)) == len(columns) > 1:
                return [each.pop() for each in titles]
        # Words may repeat within a caption; what each map is called is better than the method.
        labels = [{each.info.label for each in column} for column in columns]
        named = all(len(each) == 1 and "" not in each for each in labels)
        return [each.pop() for each in labels] if named else []

    def title(self) -> str:
        """Return what all maps have in common."""
        targets = {each.info.target_name for each in self.maps} - {""}
        methods = {method_title(each) for each in self.maps}
        if len(targets) == 1:
            lines = [target_line(each) for each in self.maps]
            alike = len(self.rows) == 1 or len({*lines}) == 1
            return next(filter(None, lines)) if alike else targets.pop()
        return methods.pop() if len(methods) == 1 else "Attention"

    def scales(self, group: ScaleGroup) -> list[MapScale]:
        """Return the color scale of each map; maps of a group share it."""
        keys = [
            {"map": (row, column), "row": (row,), "column": (column,), "all": ()}[group]
            for row, each in enumerate(self.rows)
            for column in range(len(each.maps))
        ]
        shared: dict[tuple[int, ...], MapScale] = {}
        for key in dict.fromkeys(keys):
            members = [each for own, each in zip(keys, self.maps, strict=True) if own == key]
            shared[key] = map_scale(members, "image" if len(members) == 1 else "global")
        return [shared[key] for key in keys]


def figure(
    maps: Maps,
    images: ImageLike | Sequence[ImageLike] | None = None,
    *,
    scales: ScaleGroup | Sequence[MapScale] = "map",
    boxes: Sequence[Sequence[Box]] = (),
    title: str | None = None,
    subtitle: str = "",
    **options: Any,
) -> Figure:
    """Return a figure of maps: methods or classes side by side, with a row for each photo.

    Titles come from the maps: a column is titled by its method, or by its class if all have one
    method. Methods measure different quantities, so by default each map has its own value range,
    printed below its tile.

    Args:
        maps: Maps of one photo: one, several, or a dictionary with the title of each. Of several
            photos: for each photo a map, a list or a dictionary of maps, as `visattn.explain`
            returns them, also of several methods and classes; or a dictionary of columns, each
            with a map for each photo. Weights of channels, which have no place on a photo, are
            drawn as bars.
        images: The photo, or a list of photos; or the tensor that the model was given. Without,
            maps are drawn on gray.
        scales: Which maps share a color scale: none (`map`), those of a `row`, of a `column`, or
            `all`; or a scale for each map, row by row.
        boxes: Boxes of each map, row by row, in pixels of its photo, which are outlined; such as
            `attention_map.boxes().per_map()`.
        title: Title; by default what all maps have in common, such as the explained class with its
            probability. "" for none.
        subtitle: Second line of the title, smaller.
        options: Fields of `DrawOptions`, such as `width`, `scale` and `colormap`.

    Raises:
        ValueError: If there is no map, a map lies on an image of another size, rows differ in
            length, or the figure is too narrow or too high.

    Example:
        >>> import visattn as va
        >>> photo = np.zeros((30, 40, 3), np.uint8)
        >>> [rising, falling] = [[0.0, 1.0]], [[1.0, 0.0]]
        >>> maps = [AttentionMap.from_array(m, image_size=(30, 40)) for m in (rising, falling)]
        >>> va.figure(maps, photo, width=600).image.width
        600
        >>> columns = {"before": maps, "after": maps}
        >>> va.figure(columns, [photo, photo], scales="all", scale=2).image.width
        2400
    """
    drawing = DrawOptions(**options, hatched=True)
    if isinstance(maps, AttentionMap) and maps.kind == "channel" and images is None:
        return Figure(lambda _: channel_bars(maps), drawing.zoom)
    table = _table(maps, images)
    if isinstance(scales, str) and scales not in _GROUPS:
        raise ValueError(f"scales must be one of {', '.join(_GROUPS)}, got {scales!r}")
    per_map = table.scales(scales) if isinstance(scales, str) else list(scales)
    if len(per_map) != len(table.maps):
        raise ValueError(f"each of {len(table.maps)} maps needs a scale, got {len(per_map)}")
    if boxes:
        table = table.with_boxes(boxes)
    notes = dict.fromkeys(each.info.note for each in table.maps)
    titles = (table.title() if title is None else title, join_notes(subtitle, *notes))
    draw = _draw_tiles if len(table.rows) == 1 else _draw_rows
    return Figure(partial(draw, table, per_map, titles, drawing), drawing.zoom)


def _table(maps: Maps, images: ImageLike | Sequence[ImageLike] | None) -> _MapTable:
    """Return maps in rows, one for each photo.

    Raises:
        ValueError: If there is no map, or numbers of maps and photos do not fit.
    """
    several = isinstance(images, list | tuple) or (isinstance(images, Tensor) and images.ndim > 3)
    sources: list[ImageLike] = [] if images is None else list_images(images)
    names: list[str] = []
    if isinstance(maps, Mapping):
        names = [str(key) for key in maps]
        columns = [_listed(each) for each in maps.values()]
        if len({len(each) for each in columns}) > 1:
            counts = ", ".join(str(len(each)) for each in columns)
            raise ValueError(f"each column needs a map for each photo, got {counts}")
        rows = [list(each) for each in zip(*columns, strict=True)]
    elif isinstance(maps, AttentionMap):
        rows = [_listed(maps)]
    else:
        entries = list(maps)
        if entries and isinstance(entries[0], Mapping):
            names = [str(key) for key in entries[0]]
        nested = several or any(not isinstance(each, AttentionMap) for each in entries)
        rows = [_listed(each) for each in entries] if nested else [entries]
    if not rows or not all(rows) or (sources and len(rows) != len(sources)):
        raise ValueError(
            f"a figure needs maps, and a photo for each row of them; got {len(rows)} rows and "
            f"{len(sources)} photos"
        )
    if len({len(row) for row in rows}) > 1:
        raise ValueError(
            f"rows must have equally many maps, got {', '.join(str(len(row)) for row in rows)}"
        )
    if any(isinstance(each, Tensor) for each in sources):
        rows = [[_on_tensor(each, image) for each in row]
                for image, row in zip(sources, rows, strict=True)]  # fmt: skip
    photos = [displayed_image(image, row[0]) for image, row in zip(sources, rows, strict=False)]
    pairs = list(zip(photos or [None] * len(rows), rows, strict=True))
    placed = [[_placed(each, photo) for each in row] for photo, row in pairs]
    return _MapTable(
        [_PhotoMaps(photo, row) for (photo, _), row in zip(pairs, placed, strict=True)], names
    )


def _on_tensor(attention_map: Any, image: ImageLike) -> Any:
    """Return a map on the tensor that the model was given; others as they are."""
    if not (isinstance(attention_map, AttentionMap) and isinstance(image, Tensor)):
        return attention_map
    return placed_on_tensor(attention_map, displayed_image(image, attention_map))


def _listed(maps: Any) -> list[AttentionMap]:
    """Return one map, maps along the first axis, or a list or dictionary of maps as a list."""
    if isinstance(maps, AttentionMap):
        return [maps] if maps.values.ndim <= 2 else list(maps)
    if isinstance(maps, Mapping):
        return list(maps.values())
    # Of several methods and classes, the map of a method that explains no class is drawn once.
    flat = [own for each in maps for own in (each if isinstance(each, list) else [each])]
    return list({id(each): each for each in flat}.values())


def _placed(attention_map: AttentionMap, photo: LoadedImage | None) -> AttentionMap:
    """Return a map that has a place: on its photo, or without one on a plane of its own."""
    if not isinstance(attention_map, AttentionMap) or attention_map.values.ndim != 2:
        shape = getattr(getattr(attention_map, "values", None), "shape", None)
        raise ValueError(
            f"a figure draws maps [y, x], got {type(attention_map).__name__} of shape "
            f"{None if shape is None else tuple(shape)}; of several in one, select each: maps[0]"
        )
    geometry = attention_map.geometry
    if photo is not None and geometry is not None and geometry.image_size != photo.size:
        raise ValueError(
            f"the map lies on an image of {geometry.image_size} (height, width), but {photo.name} "
            f"has {photo.size}; pass the original image"
        )
    if photo is not None or geometry is not None or attention_map.kind == "channel":
        return attention_map
    rows, columns = attention_map.values.shape
    return attention_map.with_geometry(Geometry.identity((rows, columns)))


def _draw_tiles(
    table: _MapTable,
    scales: Sequence[MapScale],
    titles: tuple[str, str],
    drawing: DrawOptions,
    detail: float,
) -> Canvas:
    """Return the drawing of maps of one photo, in as many rows as they need."""
    [row] = table.rows
    size = PhotoPart.of(row.geometry, crop=drawing.crop).size
    grid = compute_tile_grid(size, row.tiles, drawing.page_width, detail)
    small, tiles, values = row.draw(grid.pixels, scales, drawing)
    if names := table.column_titles():
        tiles = [replace(tile, name=name) for tile, name in zip(tiles, names, strict=True)]
    if row.photo is not None:
        tiles = [Tile(small, "Image", size_text(row.photo.pixels)), *tiles]
    title, subtitle = titles
    return tile_figure(
        tiles,
        grid,
        title=title,
        subtitle=join_notes(subtitle, row.geometry.seen_text),
        legends=map_legends(table.maps, values, scales, drawing),
        width=drawing.page_width,
    )


def _draw_rows(
    table: _MapTable,
    scales: Sequence[MapScale],
    titles: tuple[str, str],
    drawing: DrawOptions,
    detail: float,
) -> Canvas:
    """Return the drawing of a row for each photo, with the titles of the columns above."""
    width = drawing.page_width
    margin = page_margin(width)
    columns = table.rows[0].tiles
    check_width(drawing, max(MIN_WIDTH, columns * (_MIN_CELL + _GAP) - _GAP + 2 * margin))
    cell = (width - 2 * margin + _GAP) // columns - _GAP
    parts = [PhotoPart.of(row.geometry, crop=drawing.crop) for row in table.rows]
    sizes = [_tile_size(part.size, cell) for part in parts]
    lefts = [margin + index * (cell + _GAP) for index in range(columns)]
    font = load_font(_HEADING_SIZE)
    headings = [wrap_text(each, font, cell, _HEADING_LINES) for each in table.column_titles()]
    title, subtitle = titles
    top = title_bottom(title, width, subtitle=subtitle)
    top += max(map(len, headings), default=0) * (_LINE + 2)
    texts = [[_wrapped(lines, cell) for lines in row] for row in _notes(table, scales)]
    below = max(len(lines) for row in texts for lines in row) * _LINE + 8
    rows, values = _row_tiles(table, scales, [scaled_size(s, detail) for s in sizes], drawing)
    legends = map_legends(table.maps, values, scales, drawing)
    footer = sum(legend.height_on(width) for legend in legends)
    bottom = top + sum(height + below + _GAP for height, _ in sizes)
    page = Canvas(width, bottom + footer, detail=detail)
    draw_title(page, title, subtitle)
    for left, lines in zip(lefts[::-1], headings[::-1], strict=False):
        _write(page, (left, top - len(lines) * (_LINE + 2) - 3), lines, TEXT, font)
    for row, notes, (height, tile_width) in zip(rows, texts, sizes, strict=True):
        for left, tile, lines in zip(lefts, row, notes, strict=True):
            place_tile_image(page, tile.image, (left, top), (height, tile_width))
            _write(page, (left, top + height + 5), lines, MUTED, load_font(SMALL))
        top += height + below + _GAP
    for legend in legends:
        legend.draw(page, (margin, bottom))
        bottom += legend.height_on(width)
    return page


def _wrapped(lines: Sequence[str], width: int) -> list[str]:
    """Return lines of text, each on two lines if it is too long for one."""
    return [part for line in lines for part in wrap_text(line, load_font(SMALL), width, 2)]


def _write(
    page: Canvas, place: tuple[int, int], lines: Sequence[str], color: Color, font: UnicodeFont
) -> None:
    """Write lines of text below each other."""
    step = _LINE + (2 if color == TEXT else 0)
    for number, line in enumerate(lines):
        page.text((place[0], place[1] + number * step), line, color, font)


def _row_tiles(
    table: _MapTable,
    scales: Sequence[MapScale],
    sizes: Sequence[tuple[int, int]],
    drawing: DrawOptions,
) -> tuple[list[list[Tile]], list[np.ndarray | None]]:
    """Return the tiles of each row, and the values of all maps."""
    rows: list[list[Tile]] = []
    values: list[np.ndarray | None] = []
    for row, size in zip(table.rows, sizes, strict=True):
        own_scales = scales[len(values) : len(values) + len(row.maps)]
        small, tiles, own = row.draw(size, own_scales, drawing)
        rows.append([Tile(small), *tiles] if row.photo is not None else tiles)
        values += own
    return rows, values


def _notes(table: _MapTable, scales: Sequence[MapScale]) -> list[list[list[str]]]:
    """Return the lines below each tile: names of photos, explained classes and value ranges.

    The class of all maps of a photo is written once, below the photo; that of all maps is the
    title.
    """
    shared = len({*scales}) == 1
    known = len({target_line(each) for each in table.maps}) == 1
    rest = iter(scales)
    rows: list[list[list[str]]] = []
    for row in table.rows:
        targets = [target_line(each) for each in row.maps]
        together = row.photo is not None and len({*targets}) == 1
        notes = [] if row.photo is None else [[Path(row.photo.name).name]]
        if together and not known:
            notes[0].append(targets[0])
        for target, each in zip(targets, row.maps, strict=True):
            scale = next(rest)
            is_ranged = not (shared or each.info.empty)
            parts = ["" if together or known else target, scale.text if is_ranged else ""]
            notes.append([part for part in parts if part])
        rows.append(notes)
    return rows


def _tile_size(image_size: tuple[int, int], cell: int) -> tuple[int, int]:
    """Return height and width of a tile in a cell; that of a tall image is narrower."""
    height = min(cell * image_size[0] / image_size[1], _MAX_ASPECT * cell)
    width = min(cell, height * image_size[1] / image_size[0])
    return max(1, round(height)), max(1, round(width))
