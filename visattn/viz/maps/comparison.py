"""Figure that compares the maps of several attribution methods on one image."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.viz.layout.grid import MARGIN, compute_tile_grid, create_titled_page
from visattn.viz.layout.text import load_font, truncate_text, wrap_text
from visattn.viz.maps.heatmap import Style, overlay
from visattn.viz.maps.legend import LEGEND_HEIGHT, MUTED, SMALL, TEXT, TRACK, draw_legend
from visattn.viz.maps.resize import resize_image, resize_map

_NAME_SIZE, _CAPTION_HEIGHT = 17, 56  # font size of names; height of the text below a tile


@dataclass(frozen=True, eq=False)
class MethodMap:
    """The map of one method.

    Args:
        name: Name of the method.
        values: Over the whole image, at any size; NaN outside the model's input. None if there is
            no map.
        vmin: Value at the lower end of the colormap.
        vmax: Value at the upper end of the colormap.
        signed: Whether the map has negative values, which count against the target.
        note: Annotation; without a map, the reason.

    Example:
        >>> MethodMap("Grad-CAM", np.zeros((3, 4))).vmax
        1.0
    """

    name: str
    values: Float[np.ndarray, "y x"] | None
    vmin: float = 0.0
    vmax: float = 1.0
    signed: bool = False
    note: str = ""


def comparison_panel(
    image: UInt8[np.ndarray, "y x 3"],
    maps: Sequence[MethodMap],
    *,
    title: str,
    subtitle: str = "",
    colormap: str = "magma",
    opacity: float = 0.7,
    style: Style = "heat",
    width: int = 1200,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a figure with the image and the map of each method.

    Methods measure different quantities, so each has its own value range, printed below its tile.

    Args:
        image: RGB, of any size and proportions.
        maps: At least one; drawn at the size that `compute_tile_size` returns.
        title: Title of the figure.
        subtitle: Second line of the title, smaller.
        colormap: See `visattn.viz.maps.heatmap.overlay`.
        opacity: See `visattn.viz.maps.heatmap.overlay`.
        style: See `visattn.viz.maps.heatmap.overlay`.
        width: Width of the figure in pixels, at least 480.

    Raises:
        ValueError: If there is no map, or the figure is too narrow.

    Example:
        >>> maps = [MethodMap("rollout", np.zeros((30, 40)))]
        >>> page = comparison_panel(np.zeros((30, 40, 3), np.uint8), maps, title="dog", width=600)
        >>> page.shape[1]
        600
    """
    if not maps or width < 480:
        raise ValueError(
            f"a comparison needs at least one map and a width of 480 pixels, got {len(maps)} maps "
            f"and {width} pixels"
        )
    grid = compute_tile_grid((image.shape[0], image.shape[1]), len(maps) + 1, width)
    draw = partial(overlay, colormap=colormap, opacity=opacity, style=style)
    signed = any(entry.signed for entry in maps)
    footer = LEGEND_HEIGHT * (2 if signed else 1)
    page, places = create_titled_page(
        title, grid, width, _CAPTION_HEIGHT, footer, subtitle=subtitle
    )
    small = resize_image(image, grid.tile_size)
    pen = ImageDraw.Draw(page)
    page.paste(Image.fromarray(small), places[0])
    size = f"{image.shape[1]} \N{MULTIPLICATION SIGN} {image.shape[0]}"
    _write(pen, places[0], grid.tile_size[0], grid.cell_width, "Image", size)
    for entry, place in zip(maps, places[1:], strict=False):
        if entry.values is None:
            _draw_placeholder(pen, place, grid.tile_size, entry.note)
            _write(pen, place, grid.tile_size[0], grid.cell_width, entry.name, "no map")
            continue
        values = resize_map(entry.values, grid.tile_size)
        tile = draw(small, values, vmin=entry.vmin, vmax=entry.vmax, signed=entry.signed)
        page.paste(Image.fromarray(tile), place)
        note = entry.note or format_range(entry.vmin, entry.vmax, signed=entry.signed)
        _write(pen, place, grid.tile_size[0], grid.cell_width, entry.name, note)
    _draw_legends(page, footer, draw, maps)
    return np.array(page)


def _draw_legends(
    page: Image.Image, footer: int, draw: partial[np.ndarray], maps: Sequence[MethodMap]
) -> None:
    has_nan = any(m.values is not None and bool(np.isnan(m.values).any()) for m in maps)
    plain, signed = (partial(draw, vmax=1.0, signed=sign) for sign in (False, True))
    place = (MARGIN, page.height - footer)
    draw_legend(
        page, place, plain, (0.0, 1.0), has_nan=has_nan,
        end_labels=("min", "max"), label="range of values below each image",
    )  # fmt: skip
    if any(entry.signed for entry in maps):
        place = (MARGIN, page.height - footer + LEGEND_HEIGHT - 8)
        draw_legend(
            page,
            place,
            signed,
            (-1.0, 1.0),
            end_labels=("negative", "positive"),
            label="signed maps",
        )


def format_range(vmin: float, vmax: float, *, signed: bool) -> str:
    """Return the value range of a map as text; that of a signed map is symmetric.

    Example:
        >>> format_range(0.0, 1.25, signed=False)
        '0 to 1.2'
    """
    lowest = -vmax if signed else vmin
    return f"{lowest:.2g} to {vmax:.2g}".replace("-", "\N{MINUS SIGN}")


def _write(
    pen: ImageDraw.ImageDraw,
    place: tuple[int, int],
    tile_height: int,
    width: int,
    name: str,
    note: str,
) -> None:
    (x, y), small = (place[0], place[1] + tile_height + 8), load_font(SMALL)
    pen.text((x, y), truncate_text(name, load_font(_NAME_SIZE), width), TEXT, load_font(_NAME_SIZE))
    pen.text((x, y + 24), truncate_text(note, small, width), MUTED, small)


def _draw_placeholder(
    pen: ImageDraw.ImageDraw, place: tuple[int, int], tile: tuple[int, int], reason: str
) -> None:
    """Draw an empty tile with the reason why there is no map."""
    (x, y), (height, width) = place, tile
    pen.rectangle((x, y, x + width - 1, y + height - 1), TRACK)
    lines = wrap_text(reason, load_font(SMALL), width - 20, max(1, (height - 20) // 16))
    for number, line in enumerate(lines):
        pen.text((x + 10, y + 10 + 16 * number), line, MUTED, load_font(SMALL))
