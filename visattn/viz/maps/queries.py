"""Figure of the queries of a detector: each with its box, its map and its sampled points."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.images.reader import ImageLike, read_image
from visattn.results.values import DetectorQueries
from visattn.viz.layout.grid import MARGIN, compute_tile_grid, compute_tile_size, create_titled_page
from visattn.viz.layout.text import load_font, truncate_text
from visattn.viz.maps.heatmap import overlay
from visattn.viz.maps.legend import LEGEND_HEIGHT, MUTED, SMALL, TEXT, draw_legend
from visattn.viz.maps.resize import resize_image, resize_map

_NAME_SIZE, _CAPTION_HEIGHT = 17, 56
_COLORS = ((255, 196, 61), (86, 196, 255), (255, 122, 122), (126, 217, 87),
           (214, 140, 255), (255, 160, 64), (80, 220, 190), (240, 240, 240))  # fmt: skip
_SHADOW = (20, 20, 20)


@dataclass(frozen=True, eq=False)
class DrawnQuery:
    """One query of a detector.

    Args:
        name: Class and score.
        note: Annotation below.
        box: Left, top, right, bottom in pixels of the image.
        values: Its map over the whole image, at any size; NaN outside of the model's input.
        points: x, y and weight of sampled points, in pixels of the image; None without.
    """

    name: str
    note: str
    box: tuple[float, float, float, float]
    values: Float[np.ndarray, "y x"]
    points: Float[np.ndarray, "p 3"] | None = None


def query_panel(
    image: UInt8[np.ndarray, "y x 3"],
    queries: Sequence[DrawnQuery],
    *,
    title: str,
    subtitle: str = "",
    vmax: float,
    colormap: str = "magma",
    opacity: float = 0.7,
    width: int = 1200,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure with all boxes on the image, and a map for each query, on one scale.

    Args:
        image: RGB, of any size and proportions.
        queries: At least one.
        title: Title of the figure.
        subtitle: Second line of the title, smaller.
        vmax: Value at full color.
        colormap: See `visattn.viz.maps.heatmap.overlay`.
        opacity: See `visattn.viz.maps.heatmap.overlay`.
        width: Width of the figure in pixels.

    Raises:
        ValueError: If there is no query.

    Example:
        >>> query = DrawnQuery("cat 0.93", "query 5", (4.0, 5.0, 20.0, 25.0), np.zeros((3, 4)))
        >>> photo = np.zeros((30, 40, 3), np.uint8)
        >>> query_panel(photo, [query], title="cat", vmax=1.0, width=600).shape[1]
        600
    """
    if not queries:
        raise ValueError("a figure of queries needs at least one query, got none")
    size = (image.shape[0], image.shape[1])
    grid = compute_tile_grid(size, len(queries) + 1, width)
    page, places = create_titled_page(
        title, grid, width, _CAPTION_HEIGHT, LEGEND_HEIGHT, subtitle=subtitle
    )
    draw = partial(overlay, vmin=0.0, vmax=vmax, colormap=colormap, opacity=opacity)
    small = resize_image(image, grid.tile_size)
    scale = grid.tile_size[1] / size[1], grid.tile_size[0] / size[0]
    tile = Image.fromarray(small)
    for index, query in enumerate(queries):
        _draw_box(tile, query.box, scale, _COLORS[index % len(_COLORS)])
    page.paste(tile, places[0])
    text = f"{size[1]} \N{MULTIPLICATION SIGN} {size[0]}"
    _write(page, places[0], grid.tile_size[0], grid.cell_width, "Image", text)
    for index, (query, place) in enumerate(zip(queries, places[1:], strict=False)):
        tile = Image.fromarray(draw(small, resize_map(query.values, grid.tile_size)))
        _draw_box(tile, query.box, scale, _COLORS[index % len(_COLORS)])
        _draw_points(tile, query.points, scale)
        page.paste(tile, place)
        _write(page, place, grid.tile_size[0], grid.cell_width, query.name, query.note)
    has_nan = any(bool(np.isnan(query.values).any()) for query in queries)
    place = (MARGIN, page.height - LEGEND_HEIGHT)
    draw_legend(page, place, draw, (0.0, vmax), clipped=_clipped(queries, vmax), has_nan=has_nan)
    return np.array(page)


def _clipped(queries: Sequence[DrawnQuery], vmax: float) -> bool:
    return any(float(np.nanmax(query.values)) > vmax * (1 + 1e-6) for query in queries)


def _draw_box(
    tile: Image.Image,
    box: tuple[float, float, float, float],
    scale: tuple[float, float],
    color: tuple[int, int, int],
) -> None:
    """Draw a box with a dark edge around it, so that it shows on every ground."""
    left, right = sorted((box[0] * scale[0], box[2] * scale[0]))
    top, bottom = sorted((box[1] * scale[1], box[3] * scale[1]))
    corners = (
        min(max(left, 0), tile.width - 2), min(max(top, 0), tile.height - 2),
        max(min(right, tile.width - 1), 1), max(min(bottom, tile.height - 1), 1),
    )  # fmt: skip
    pen = ImageDraw.Draw(tile)
    pen.rectangle(corners, outline=_SHADOW, width=4)
    pen.rectangle(corners, outline=color, width=2)


def _draw_points(
    tile: Image.Image, points: Float[np.ndarray, "p 3"] | None, scale: tuple[float, float]
) -> None:
    """Draw points with an area in proportion to their weights."""
    if points is None:
        return
    pen, heaviest = ImageDraw.Draw(tile), max(float(points[:, 2].max()), 1e-12)
    for x, y, weight in sorted(points.tolist(), key=lambda point: -point[2]):
        radius = 0.8 + 2.2 * (max(weight, 0.0) / heaviest) ** 0.5
        left, top = x * scale[0], y * scale[1]
        edges = (left - radius, top - radius, left + radius, top + radius)
        pen.ellipse(edges, fill=(255, 255, 255), outline=_SHADOW)


def _write(
    page: Image.Image, place: tuple[int, int], tile_height: int, width: int, name: str, note: str
) -> None:
    pen, small, large = ImageDraw.Draw(page), load_font(SMALL), load_font(_NAME_SIZE)
    x, y = place[0], place[1] + tile_height + 8
    pen.text((x, y), truncate_text(name, large, width), TEXT, large)
    pen.text((x, y + 24), truncate_text(note, small, width), MUTED, small)


def query_figure(
    image: ImageLike,
    result: DetectorQueries,
    *,
    width: int = 1200,
    colormap: str = "magma",
    opacity: float = 0.7,
    smooth: bool = True,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure with all boxes on the image, and the map of each query, on one scale.

    Args:
        image: The original image.
        result: Result of `explain_queries` for it.
        width: Width of the figure in pixels.
        colormap: See `visattn.viz.maps.heatmap.overlay`.
        opacity: See `visattn.viz.maps.heatmap.overlay`.
        smooth: Whether to interpolate between cells.

    Raises:
        ValueError: If the maps lie on an image of another size.
    """
    original, maps = read_image(image), result.maps
    size = compute_tile_size(original.size, len(maps), width=width)
    values = maps.resize_to_image(size, smooth=smooth).numpy()
    sampled = result.points is not None
    drawn = [
        DrawnQuery(
            f"{name} {score:.2f}",
            f"query {query}" + _mass_note(float(each.values.sum()), sampled=sampled),
            (box[0], box[1], box[2], box[3]),
            map_values,
            None if result.points is None else result.points[index].numpy(),
        )
        for index, (name, score, query, box, each, map_values) in enumerate(
            zip(
                result.classes, result.scores, result.queries, result.boxes.tolist(), maps, values,
                strict=True,
            )
        )
    ]  # fmt: skip
    kind = "sampled points and what they read" if sampled else "cross-attention"
    parts = [Path(original.name).name, str(maps.metadata["model"]), f"{kind}, {maps.site}"]
    return query_panel(
        original.pixels,
        drawn,
        title="Where each query looked",
        subtitle=" \N{MIDDLE DOT} ".join(filter(None, parts)),
        vmax=maps.display_range()[1],
        width=width,
        colormap=colormap,
        opacity=opacity,
    )


def _mass_note(mass: float, *, sampled: bool) -> str:
    return f", {100 * mass:.0f} % of its weight on the photo" if sampled else ""
