"""Matplotlib figures of photos and their maps, in axes whose coordinates are photo pixels.

A `Figure` has its own style, independent of the global rcParams; `rc` changes it. Pyplot is not
used, so figures can be made and saved in threads. Images are drawn at the resolution of each file.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, get_args

import matplotlib as mpl
import numpy as np
from jaxtyping import UInt8
from matplotlib import patheffects
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as MatplotlibFigure
from matplotlib.image import AxesImage
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from torch import Tensor

from visattn.geometry.affine import Box, Geometry
from visattn.images.formats import encode_png
from visattn.images.reader import ImageLike, LoadedImage, list_images
from visattn.results.attention_map import AttentionMap, empty_map_reason, map_note
from visattn.results.scale import MapScale, format_end, map_scale
from visattn.viz.heatmap import DrawOptions, resize_image
from visattn.viz.maps import (
    UNITS,
    check_photo,
    displayed_image,
    draw_target,
    map_notes,
    method_title,
    placed_on_tensor,
    target_line,
    values_at,
)
from visattn.viz.text import choose_fonts, fit_text, join_notes

WIDTH, DPI = 7.0, 200  # width of a figure in inches, and resolution of files
MARGIN, GAP = 0.08, 0.12  # around a figure and between axes, in inches
LINE = 0.15  # height of a line of text, in inches
TEXT, MUTED, FAINT = "#222428", "#5f6268", "#e4e2db"
ACCENT, SECOND = "#2e7583", "#b0602a"  # colors of probabilities and gates, as on pages
_TILE, _TALLEST = 3.4, 1.5  # widest tile in inches; height of a tile / width at most
_HATCH = "#ffffff70"  # over the area outside the model's input
_GRAY = 150  # gray level if no photo is given
_MOST = 4096  # maximum image side in a file, in pixels
STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"], "font.size": 8.0, "text.color": TEXT, "text.parse_math": False,
    "axes.titlesize": 8.0, "axes.titlepad": 3.0, "axes.labelsize": 7.0, "axes.labelpad": 3.0,
    "axes.labelcolor": MUTED, "axes.edgecolor": MUTED, "axes.linewidth": 0.6,
    "axes.spines.top": False, "axes.spines.right": False,
    "xtick.labelsize": 6.5, "ytick.labelsize": 6.5, "xtick.color": MUTED, "ytick.color": MUTED,
    "xtick.major.size": 2.0, "ytick.major.size": 2.0, "xtick.major.width": 0.5,
    "ytick.major.width": 0.5, "xtick.major.pad": 1.5, "ytick.major.pad": 1.5,
    "hatch.linewidth": 0.5, "legend.fontsize": 7.0, "legend.frameon": False,
    "svg.fonttype": "none", "pdf.fonttype": 42,
}  # fmt: skip
"""Differences from matplotlib's defaults."""
_lock = threading.RLock()  # rcParams are global


@contextmanager
def style(rc: Mapping[str, Any] | None = None) -> Iterator[None]:
    """Apply the style of figures, with additional rcParams."""
    with _lock, mpl.rc_context():
        mpl.rcParams.update(_defaults())
        mpl.rcParams.update(STYLE)
        mpl.rcParams.update(dict[Any, Any](rc or {}))
        yield


@cache
def _defaults() -> dict[Any, Any]:
    kept = ("backend", "date", "webagg", "tk", "toolbar", "interactive")
    return {key: value for key, value in mpl.rcParamsDefault.items() if not key.startswith(kept)}


class Figure(MatplotlibFigure):
    """A matplotlib figure with its own style.

    Args:
        size: Width and height in inches.
        rc: rcParams that override this style.

    Example:
        >>> import visattn as va
        >>> figure = va.figure(va.AttentionMap.from_array([[0.0, 1.0]], image_size=(30, 40)))
        >>> figure.savefig(getfixture("tmp_path") / "figure.svg")
        >>> [each.get_title(loc="left") for each in figure.axes][:1]
        ['array']
    """

    def __init__(self, size: tuple[float, float], rc: Mapping[str, Any] | None = None) -> None:
        self.rc = dict(rc or {})
        super().__init__(figsize=size, dpi=DPI)

    def draw(self, renderer: Any) -> None:
        """Draw all axes; characters that the fonts of the style lack come from other fonts."""
        with style(self.rc):
            for text in self.findobj(Text):
                choose_fonts(text)
            super().draw(renderer)

    def savefig(self, *args: Any, **options: Any) -> None:
        """Write a file, as `matplotlib.figure.Figure.savefig`."""
        with style(self.rc):
            super().savefig(*args, **options)

    def _repr_png_(self) -> bytes:
        """Return the figure for notebooks."""
        return png(self)


def rgb(figure: MatplotlibFigure, width: int | None = None) -> UInt8[np.ndarray, "y x 3"]:
    """Return a figure as RGB.

    Args:
        figure: The figure.
        width: Width in pixels; by default from its size.
    """
    dpi = figure.dpi
    if width is not None:
        figure.set_dpi((width + 0.01) / figure.get_figwidth())  # Agg rounds down
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    figure.set_dpi(dpi)
    return np.ascontiguousarray(np.asarray(canvas.buffer_rgba())[..., :3])


def png(figure: MatplotlibFigure) -> bytes:
    """Return a figure as a PNG file: equal figures give equal bytes."""
    return encode_png(rgb(figure))


class _Picture(AxesImage):
    """An image that is drawn at the resolution of the output file.

    Args:
        ax: Its axes.
        size: Height and width, in units of the axes.
        draw: Returns the RGB image at a height and width in pixels.
    """

    def __init__(
        self,
        ax: Axes,
        size: tuple[float, float],
        draw: Callable[[tuple[int, int]], UInt8[np.ndarray, "y x 3"]],
        origin: tuple[float, float] = (0.0, 0.0),
    ) -> None:
        (height, width), (left, top) = size, origin
        super().__init__(
            ax, extent=(left, left + width, top + height, top), interpolation="nearest"
        )
        self._draw_at, self._drawn = draw, (0, 0)
        self.set_data(np.zeros((1, 1, 3), np.uint8))

    def make_image(self, renderer: Any, magnification: float = 1.0, unsampled: bool = False) -> Any:
        """Draw the image at its size in the output."""
        left, right, bottom, top = self.get_extent()
        ends = self.get_transform().transform([(left, top), (right, bottom)])
        width, height = np.abs(ends[1] - ends[0]) * magnification
        size = (min(max(round(height), 1), _MOST), min(max(round(width), 1), _MOST))
        if size != self._drawn:
            self.set_data(self._draw_at(size))
            self._drawn = size
        return super().make_image(renderer, magnification, unsampled)


def inches(ax: Axes) -> tuple[float, float]:
    """Return width and height of axes."""
    return ax.bbox.width / ax.figure.dpi, ax.bbox.height / ax.figure.dpi


def show(
    ax: Axes,
    size: tuple[float, float],
    draw: Callable[[tuple[int, int]], UInt8[np.ndarray, "y x 3"]],
    region: Box | None = None,
) -> None:
    """Show an image in axes, whose coordinates become its pixels.

    Args:
        ax: Axes of matplotlib.
        size: Height and width of the image.
        draw: Returns the RGB image at a height and width in pixels of the file.
        region: Left, top, right and bottom of the part that is shown.
    """
    picture = _Picture(ax, size, draw)
    ax.add_image(picture)
    picture.set_clip_path(ax.patch)
    left, top, right, bottom = region or (0, 0, size[1], size[0])
    ax.set(
        xlim=(left, right), ylim=(bottom, top), aspect="equal", anchor="NW", xticks=[], yticks=[]
    )
    ax.spines[:].set_visible(False)


def outline(ax: Axes, box: Iterable[float], color: Any = "white", width: float = 1.0) -> None:
    """Draw the frame of a box with a dark halo.

    Args:
        ax: Axes that show a photo.
        box: Left, top, right, bottom in its pixels.
        color: Color of the line.
        width: Width of the line in points.
    """
    left, top, right, bottom = box
    ax.add_patch(
        Rectangle((left, top), right - left, bottom - top, fill=False, edgecolor=color,
                  linewidth=width, path_effects=halo(width))
    )  # fmt: skip


def halo(width: float) -> list[patheffects.AbstractPathEffect]:
    """Return a dark line around a line of this width."""
    return [patheffects.withStroke(linewidth=width + 1.2, foreground="#000000a0")]


@dataclass(frozen=True, eq=False)
class Tile:
    """Content of one axes of a figure: a photo, optionally with a map.

    Args:
        photo: RGB.
        map: The map.
        scale: Its color scale.
        title: Text above.
        aside: Short text above, on the right.
        note: Lines below.
        boxes: Boxes to outline, in pixels of the photo.
    """

    photo: UInt8[np.ndarray, "y x 3"]
    map: AttentionMap | None = None
    scale: MapScale | None = None
    title: str = ""
    aside: str = ""
    note: str = ""
    boxes: Sequence[Box] = ()


def sheet(
    rows: Sequence[Sequence[Tile]],
    drawing: DrawOptions,
    *,
    notes: Iterable[str] = (),
    spare: int = 0,
    below: float = 0.0,
    crop: bool = False,
    width: float | None = None,
    rc: Mapping[str, Any] | None = None,
) -> Figure:
    """Return a figure of tiles in rows.

    Maps that share a scale have one color bar below all of them; others have one each.

    Args:
        rows: Tiles of one photo per row; a single row is wrapped.
        drawing: How maps are drawn.
        notes: Text below all tiles.
        spare: Free lines between the tiles and the notes.
        below: Additional space below each tile, in inches.
        crop: Whether to show only the part of each photo that the model saw.
        width: Width in inches; by default up to 7.
        rc: See `Figure`.
    """
    if len(rows) == 1:
        rows = _in_rows(rows[0], _region(rows[0], crop=crop), width or WIDTH)
    tiles = [tile for row in rows for tile in row]
    scaled = [
        (tile.map, tile.scale)
        for tile in tiles
        if tile.map is not None and tile.scale is not None and not _reason(tile.map)
    ]
    shared = len({scale for _, scale in scaled}) == 1 and len(scaled) > 1
    regions = [_region(row, crop=crop) for row in rows]
    lines = max(_lines(tile.note) for tile in tiles)
    under = max(below + lines * 0.9 * LINE, 0.0 if shared or not scaled else 1.6 * LINE)
    said = join_notes(*dict.fromkeys(note for note in notes if note))
    last = fit_text(said, (width or WIDTH) - 2 * MARGIN, size=6.5, lines=3)
    photos = {id(tile.photo): cache(partial(resize_image, tile.photo)) for tile in tiles}
    with style(rc):
        figure, axes = axes_in_rows(
            [(bottom - top) / (right - left) for left, top, right, bottom in regions],
            max(map(len, rows)),
            width=width,
            above=[max(_lines(tile.title or tile.aside) for tile in row) * LINE for row in rows],
            below=under,
            foot=shared * 2.6 * LINE + (_lines(last) + spare) * LINE,
            rc=rc,
        )
        for row, region, places in zip(rows, regions, axes, strict=True):
            for tile, ax in zip(row, places, strict=False):
                _draw_tile(ax, tile, drawing, region, photos[id(tile.photo)], bar=not shared)
            for ax in places[len(row) :]:
                ax.remove()
        across, down = figure.get_size_inches()
        if shared:
            bottom = MARGIN + (_lines(last) + spare + 1.1) * LINE
            place = (MARGIN / across, bottom / down, 2.2 / across, 0.09 / down)
            first, scale = scaled[0]
            if values := [each.values for _, each in scaled if each.values]:
                lows, highs = zip(*values, strict=True)
                scale = replace(scale, values=(min(lows), max(highs)))
            color_bar(figure.add_axes(place), scale, drawing, quantity(first, scale))
        figure.text(MARGIN / across, MARGIN / down, last, fontsize=6.5, color=MUTED, va="bottom")
    return figure


def _lines(text: str) -> int:
    return text.count("\n") + bool(text)


def axes_in_rows(
    aspects: Sequence[float],
    columns: int,
    *,
    width: float | None = None,
    above: float | Sequence[float] = 0.0,
    below: float = 0.0,
    foot: float = 0.0,
    rc: Mapping[str, Any] | None = None,
) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure with rows of axes of equal width.

    Args:
        aspects: Height / width of the axes in each row.
        columns: Axes per row.
        width: Width of the figure in inches; by default up to 7.
        above: Space above each row, in inches; one value, or one per row.
        below: Space below each row.
        foot: Space below all rows.
        rc: See `Figure`.

    Example:
        >>> figure, axes = axes_in_rows([0.75, 0.75], 3, width=7)
        >>> len(axes), len(axes[0]), len(figure.axes)
        (2, 3, 6)
    """
    width = width or min(WIDTH, columns * (_TILE + GAP) - GAP + 2 * MARGIN)
    tile = (width - 2 * MARGIN + GAP) / columns - GAP
    heights = [min(aspect, _TALLEST) * tile for aspect in aspects]
    rooms = above if isinstance(above, Sequence) else [above] * len(heights)
    total = 2 * MARGIN + sum(heights) + sum(rooms) + len(heights) * (below + GAP) - GAP + foot
    figure, top, axes = Figure((width, total), rc), total - MARGIN, []
    for height, room in zip(heights, rooms, strict=True):
        bottom = top - room - height
        lefts = [MARGIN + index * (tile + GAP) for index in range(columns)]
        axes.append([
            figure.add_axes((left / width, bottom / total, tile / width, height / total))
            for left in lefts
        ])  # fmt: skip
        top = bottom - below - GAP
    return figure, axes


def _in_rows(tiles: Sequence[Tile], region: Box, width: float) -> list[Sequence[Tile]]:
    """Wrap the tiles of one photo into rows, by the aspect ratio of the region shown."""
    left, top, right, bottom = region
    cell = min(1.5, max(0.8, 2.0 * (right - left) / (bottom - top)))  # minimum width in inches
    columns = max(1, int((width - 2 * MARGIN + GAP) / (cell + GAP)))
    columns = -(-len(tiles) // -(-len(tiles) // columns))  # rows of about equal length
    return [tiles[start : start + columns] for start in range(0, len(tiles), columns)]


def _region(row: Sequence[Tile], *, crop: bool) -> Box:
    """Return the region of a photo that its tiles show: all of it, or the model's input."""
    bottom, right = map(float, row[0].photo.shape[:2])
    left = top = 0.0
    geometry = next((each.map.geometry for each in row if each.map is not None), None)
    if crop and geometry is not None and geometry.seen_share:
        left, top, right, bottom = geometry.region
    return left, top, max(right, left + (bottom - top) / _TALLEST), bottom  # space for a title


def _reason(attention_map: AttentionMap | None) -> str:
    """Return why a map is not drawn; "" if it is."""
    if attention_map is None:
        return ""
    return attention_map.info.empty or empty_map_reason(attention_map.values)


def _draw_tile(
    ax: Axes, tile: Tile, drawing: DrawOptions, region: Box, resized: Any, *, bar: bool
) -> None:
    across, aside = inches(ax)[0], 0.055 * len(tile.aside)
    size = float(ax.title.get_fontsize())
    title = [fit_text(line, across - aside, size=size) for line in tile.title.split("\n")]
    ax.set_title("\n".join(title), loc="left")
    ax.set_title(tile.aside, loc="right", color=MUTED, fontsize=6.5)
    height, width = tile.photo.shape[:2]
    if reason := _reason(tile.map):
        ax.set(xticks=[], yticks=[], facecolor=FAINT)
        ax.spines[:].set_visible(False)
        ax.text(0.05, 0.95, fit_text(reason, 0.9 * across, size=7, lines=6), va="top", color=MUTED,
                fontsize=7, transform=ax.transAxes)  # fmt: skip
    elif tile.map is None:
        show(ax, (height, width), resized, region)
    elif tile.map.kind == "channel":
        _draw_channels(ax, tile.map)
    else:
        draw_map(ax, tile.photo, tile.map, tile.scale, drawing, region=region, resized=resized)
        if bar and tile.scale is not None:
            ax.apply_aspect()
            below, thick = (inch / inches(ax)[1] for inch in (0.11, 0.06))
            color_bar(ax.inset_axes((0, -below, 1, thick)), tile.scale, drawing)
    for box in tile.boxes:
        outline(ax, box)
    if tile.note:
        lines = [fit_text(line, across, size=6.5) for line in tile.note.split("\n")]
        ax.annotate("\n".join(lines), (0, 0), (0, -3), xycoords="axes fraction",
                    textcoords="offset points", va="top", color=MUTED, fontsize=6.5)  # fmt: skip


def draw_map(
    ax: Axes,
    photo: UInt8[np.ndarray, "y x 3"],
    attention_map: AttentionMap,
    scale: MapScale | None,
    drawing: DrawOptions,
    *,
    region: Box | None = None,
    resized: Callable[[tuple[int, int]], UInt8[np.ndarray, "y x 3"]] | None = None,
) -> None:
    """Draw a map on its photo, with a mark of its target: a pixel, a box or a region.

    Args:
        ax: Axes of matplotlib; their coordinates become pixels of the photo.
        photo: RGB.
        attention_map: A map with a geometry on the photo.
        scale: Its color scale.
        drawing: How it is drawn.
        region: Left, top, right and bottom of the part that is shown.
        resized: Returns the photo at a height and width, shared by several axes.
    """
    scale = scale or map_scale([attention_map])
    limits = replace(drawing, vmin=scale.vmin, vmax=scale.vmax)
    resized = resized or partial(resize_image, photo)

    def drawn(size: tuple[int, int]) -> UInt8[np.ndarray, "y x 3"]:
        values = values_at(attention_map, size, smooth=drawing.smooth is not False)
        image = limits.draw(resized(size), values, signed=scale.signed)
        return draw_target(image, attention_map)

    show(ax, photo.shape[:2], drawn, region)
    _hatch_unseen(ax, photo.shape[:2], attention_map.geometry)


def _hatch_unseen(ax: Axes, size: tuple[int, int], geometry: Geometry | None) -> None:
    """Hatch the area outside the input, since in print gray alone looks like a dark photo."""
    if geometry is None or not geometry.seen_text:
        return
    left, top, right, bottom = geometry.region
    sides = [
        (0.0, 0.0, size[1], top), (0.0, bottom, size[1], size[0]),
        (0.0, top, left, bottom), (right, top, size[1], bottom),
    ]  # fmt: skip
    for x, y, end_x, end_y in sides:
        if end_x > x and end_y > y:
            ax.add_patch(Rectangle((x, y), end_x - x, end_y - y, fill=False, linewidth=0,
                                   hatch="////", edgecolor=_HATCH))  # fmt: skip


def _draw_channels(ax: Axes, attention_map: AttentionMap) -> None:
    """Draw channel weights as bars, from 0 to 1 or to the highest weight above 1.

    The scale is not stretched: gates from 0.49 to 0.51 look the same, as they should.
    """
    values = attention_map.values.detach().float().cpu().nan_to_num(0.0).numpy()
    ax.stairs(values, fill=True, color=ACCENT)
    ax.set(xlim=(0, len(values)), ylim=(min(0.0, values.min()), max(1.0, values.max())))
    ax.set_xlabel(f"{len(values)} channels", loc="left")
    box = ax.get_position()
    room = 0.25 * box.width / inches(ax)[0]  # space for labels
    ax.set_position((box.x0 + room, box.y0, box.width - room, box.height))


def color_bar(ax: Axes, scale: MapScale, drawing: DrawOptions, beside: str = "") -> None:
    """Draw a color bar with ticks, in the colors of a scale on a gray photo.

    Args:
        ax: Axes of the color bar.
        scale: The color scale.
        drawing: How maps are drawn.
        beside: Label of the values, on the right.
    """
    ax.text(1.04, 0.5, beside, transform=ax.transAxes, va="center", color=MUTED, fontsize=7)
    ramp = np.linspace(scale.lowest, scale.vmax, 256)[None]
    limits = replace(drawing, vmin=scale.vmin, vmax=scale.vmax)
    if drawing.style == "contour":  # contour lines have the colors of "quantitative"
        limits = replace(limits, style="quantitative", opacity=1.0)
    colors = limits.draw(np.full((1, 256, 3), _GRAY, np.uint8), ramp, signed=scale.signed)
    ax.imshow(colors, aspect="auto", extent=(scale.lowest, scale.vmax, 0, 1))
    middle = (scale.lowest + scale.vmax) / 2
    below, above = scale.ends
    ax.set_xticks([scale.lowest, middle, scale.vmax], [below, format_end(middle), above])
    ax.set_yticks([])
    ax.spines[:].set_visible(False)
    for label, side in zip(ax.get_xticklabels(), ("left", "center", "right"), strict=True):
        label.set_horizontalalignment(side)


def quantity(attention_map: AttentionMap, scale: MapScale) -> str:
    """Return the label of a color bar."""
    unit = attention_map.info.quantity or UNITS.get(attention_map.kind, "value")
    return unit + ", against and for the target" * scale.signed


ScaleGroup = Literal["map", "row", "column", "all"]
Maps = AttentionMap | Iterable[Any] | Mapping[str, Any]


def figure(
    maps: Maps,
    images: ImageLike | Sequence[ImageLike] | None = None,
    *,
    scales: ScaleGroup | Sequence[MapScale] = "map",
    boxes: Sequence[Sequence[Box]] = (),
    crop: bool = False,
    width: float | None = None,
    ax: Any = None,
    rc: Mapping[str, Any] | None = None,
    **options: Any,
) -> MatplotlibFigure:
    """Return a figure of maps: methods or classes side by side, with a row for each photo.

    It is a matplotlib `Figure`: `savefig` writes PNG, PDF and SVG with text as text. The title of a
    map is its method or class. Methods measure different quantities, so by default each map has its
    own value range and color bar.

    Args:
        maps: Maps of one photo: one, several, or a dictionary of titles and maps. For several
            photos: per photo a map, a list or a dictionary of maps, as `visattn.explain` returns
            them, including several methods and classes; or a dictionary of columns, each with a map
            per photo. Channel weights, which have no position on the photo, are drawn as bars.
        images: The photo, or a list of photos; or the input tensor of the model. Without it, maps
            are drawn on gray.
        scales: Which maps share a color scale: none (`map`), those of a `row`, of a `column`, or
            `all`; or a scale per map, row by row.
        boxes: Boxes to outline on each map, row by row, in pixels of its photo, such as
            `attention_map.boxes().per_map()`.
        crop: Whether to show only the part of each photo that the model saw.
        width: Width in inches; by default up to 7.
        ax: Your own axes, one per map, in which only the maps are drawn.
        rc: rcParams that override the style of figures, such as `plt.rcParams`.
        options: Fields of `DrawOptions`, such as `colormap` and `style`.

    Raises:
        TypeError: If `maps` are not maps.
        ValueError: If there is no map, a map belongs to an image of another size, or `scales` is
            invalid.

    Example:
        >>> import visattn as va
        >>> photo = np.zeros((30, 40, 3), np.uint8)
        >>> [rising, falling] = [[0.0, 1.0]], [[1.0, 0.0]]
        >>> maps = [AttentionMap.from_array(m, image_size=(30, 40)) for m in (rising, falling)]
        >>> len(va.figure(maps, photo).axes)  # the photo, two maps, and their color bar
        4
        >>> columns = {"before": maps, "after": maps}
        >>> drawn = va.figure(columns, [photo, photo], scales="all", width=3.3)
        >>> [ax.get_title(loc="left") for ax in drawn.axes][:3]
        ['', 'before', 'after']
    """
    drawing = DrawOptions(**options)
    rows, names = _rows(maps, images)
    flat = [each for _, own in rows for each in own]
    if isinstance(scales, str) and scales not in get_args(ScaleGroup):
        raise ValueError(f"scales must be one of {', '.join(get_args(ScaleGroup))}, got {scales!r}")
    per_map = _scales([own for _, own in rows], scales) if isinstance(scales, str) else [*scales]
    titles, row_notes = _titles([own for _, own in rows], names)
    details = zip(flat, per_map, titles, boxes or [()] * len(flat), strict=True)
    tiles: list[Sequence[Tile]] = []
    for (photo, own), note in zip(rows, row_notes, strict=True):
        shown = _gray(own[0]) if photo is None else photo.pixels
        drawn = [
            Tile(shown, each, scale, title, boxes=outlined)
            for each, scale, title, outlined in islice(details, len(own))
        ]
        name = "" if photo is None or len(rows) == 1 else Path(photo.name).name
        first = Tile(shown, note="\n".join(filter(None, (name, note))))
        tiles.append(drawn if photo is None else [first, *drawn])
    if ax is not None:
        drawn = [replace(tile, title="") for row in tiles for tile in row if tile.map is not None]
        for axes, tile in zip(np.ravel(ax), drawn, strict=True):
            resized, region = partial(resize_image, tile.photo), _region([tile], crop=crop)
            _draw_tile(axes, tile, drawing, region, resized, bar=True)
        return np.ravel(ax)[0].figure
    scale_of = iter(per_map)
    said = [
        {text: None for each in own for text in (*map_notes(each), next(scale_of).note)
         if text != _own_note(each)} for _, own in rows
    ]  # fmt: skip
    notes = [  # with the photo, unless the note applies to all photos
        text if photo is None or all(text in every for every in said)
        else f"{Path(photo.name).name}: {text}"
        for (photo, _), own in zip(rows, said, strict=True) for text in own if text
    ]  # fmt: skip
    return sheet(tiles, drawing, notes=notes, crop=crop, width=width, rc=rc)


def _scales(rows: Sequence[Sequence[AttentionMap]], group: ScaleGroup) -> list[MapScale]:
    """Return the color scale of each map; maps of a group share one."""
    groups: dict[Any, list[AttentionMap]] = {}
    keys = []
    for row, own in enumerate(rows):
        for column, each in enumerate(own):
            keys.append({"map": (row, column), "row": row, "column": column, "all": 0}[group])
            groups.setdefault(keys[-1], []).append(each)
    shared = {key: map_scale(own, "image" if len(own) == 1 else "global")
              for key, own in groups.items()}  # fmt: skip
    return [shared[key] for key in keys]


def _titles(
    rows: Sequence[Sequence[AttentionMap]], names: Sequence[Sequence[str]]
) -> tuple[list[str], list[str]]:
    """Return the title of each map, and the class that all maps of a row share.

    Titles that all rows share are above the first row.
    """
    methods = {method_title(each) for own in rows for each in own}
    titles, notes = [], []
    for own, given in zip(rows, names, strict=True):
        targets = [target_line(each) for each in own]
        labels = [each.info.label for each in own]
        alike = len({*targets}) == 1
        notes.append(targets[0] if alike else "")
        for column, each in enumerate(own):
            parts = [given[column] if given else method_title(each) if len(methods) > 1 else ""]
            parts.append("" if alike else targets[column])
            name = "\n".join(filter(None, parts))
            name = name or (labels[column] if len({*labels}) > 1 else method_title(each))
            shared = given == names[0] and alike and len(methods) <= len(own)
            name = "" if shared and own is not rows[0] else name
            titles.append("\n".join(filter(None, (name, _own_note(each)))))
    return titles, notes


def _own_note(attention_map: AttentionMap) -> str:
    """Return an addition to the title of a map that is nearly uniform or coarse."""
    info = attention_map.info
    note = map_note(attention_map.values) if info.note and not info.empty else ""
    return note if info.note.endswith(note) else ""


def _gray(attention_map: AttentionMap) -> UInt8[np.ndarray, "y x 3"]:
    """Return a gray image in place of a missing photo."""
    geometry = attention_map.geometry
    return np.full((*(geometry.image_size if geometry else (1, 3)), 3), _GRAY, np.uint8)


def _rows(
    maps: Maps, images: ImageLike | Sequence[ImageLike] | None
) -> tuple[list[tuple[LoadedImage | None, list[AttentionMap]]], list[list[str]]]:
    """Return the maps of each photo, and their names, if any.

    Raises:
        ValueError: If there is no map, or the numbers of maps and photos do not match.
    """
    several = isinstance(images, list | tuple) or (isinstance(images, Tensor) and images.ndim > 3)
    sources: list[ImageLike] = [] if images is None else list_images(images)
    if isinstance(maps, Mapping):
        columns = [_listed(each) for each in maps.values()]
        rows = [list(each) for each in zip(*columns, strict=True)]
        names = [[str(key) for key in maps]] * len(rows)
    else:
        entries = [maps] if isinstance(maps, AttentionMap) else list(maps)
        nested = several or any(not isinstance(each, AttentionMap) for each in entries)
        rows = [_listed(each) for each in entries] if nested else [_listed(entries)]
        named = [
            [str(key) for key in each] if isinstance(each, Mapping) else [] for each in entries
        ]
        names = named if nested else [[]]
    if not rows or not all(rows) or (sources and len(rows) != len(sources)):
        raise ValueError(
            f"a figure needs maps, and a photo per row; got {len(rows)} rows and "
            f"{len(sources)} photos"
        )
    placed = []
    for image, row in zip(sources or [None] * len(rows), rows, strict=True):
        photo = None if image is None else displayed_image(image, row[0])
        if photo is not None and isinstance(image, Tensor):
            row = [placed_on_tensor(each, photo) for each in row]
        placed.append((photo, [_placed(each, photo) for each in row]))
    return placed, names


def _listed(maps: Any) -> list[AttentionMap]:
    """Return the single maps in a map with more axes, or in a list or dictionary of maps."""
    if isinstance(maps, AttentionMap) and maps.values.ndim <= 2 - (maps.kind == "channel"):
        return [maps]
    if isinstance(maps, Mapping):
        return list(maps.values())
    if not isinstance(maps, AttentionMap | list | tuple):
        raise TypeError(
            f"a figure draws maps, got {type(maps).__name__}: make one of an array by "
            "visattn.AttentionMap.from_array"
        )
    # A method that explains no class has the same map for all classes: it is drawn once.
    flat = [own for each in maps for own in _listed(each)]
    return list({id(each): each for each in flat}.values())


def _placed(attention_map: AttentionMap, photo: LoadedImage | None) -> AttentionMap:
    """Return a map with a geometry: its own, or that of an image of its size."""
    geometry = attention_map.geometry
    if photo is not None:
        check_photo(photo, geometry, "the map")
    if photo is not None or geometry is not None or attention_map.kind == "channel":
        return attention_map
    rows, columns = attention_map.values.shape
    return attention_map.with_geometry(Geometry.identity((rows, columns)))
