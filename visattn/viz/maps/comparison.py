"""One image through several methods, side by side, each on a scale of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw

from visattn.viz.layout.grid import MARGIN, tile_grid, titled_page
from visattn.viz.layout.text import shortened, typeface, wrapped
from visattn.viz.maps.heatmap import Style, overlay
from visattn.viz.maps.legend import HEIGHT, INK, SMALL, SOFT, TRACK, draw_legend
from visattn.viz.maps.resize import resized_image, resized_map

_NAME, _TEXT = 17, 56  # height of a name; of all that stands below a tile


@dataclass(frozen=True, eq=False)
class ComparedMap:
    """A map among others.

    Args:
        name: Of its method.
        values: Over the whole image, at any size; NaN where it was not seen. None if there is no
            map.
        low: The value that begins to show.
        high: The value that shows in full.
        signed: Whether values below zero speak against.
        note: In small print; why there is no map, if there is none.

    Example:
        >>> ComparedMap("Grad-CAM", np.zeros((3, 4))).high
        1.0
    """

    name: str
    values: Float[np.ndarray, "y x"] | None
    low: float = 0.0
    high: float = 1.0
    signed: bool = False
    note: str = ""


def comparison_panel(
    image: UInt8[np.ndarray, "y x 3"],
    maps: Sequence[ComparedMap],
    *,
    title: str,
    subtitle: str = "",
    colors: str = "magma",
    opacity: float = 0.7,
    style: Style = "heat",
    width: int = 1200,
) -> UInt8[np.ndarray, "height width 3"]:
    """Return a page with the image and, beside it, what each method shows on it.

    Methods measure different things, so each has its own scale, whose ends stand below its tile.

    Args:
        image: RGB, of any size and proportions.
        maps: At least one. `tile_size` says the size at which they are drawn.
        title: Of the page.
        subtitle: In small print.
        colors: See `visattn.viz.maps.heatmap.overlay`.
        opacity: See `visattn.viz.maps.heatmap.overlay`.
        style: See `visattn.viz.maps.heatmap.overlay`.
        width: Of the page, in pixels, at least 480. The height follows.

    Raises:
        ValueError: If there is no map, or the page is too narrow.

    Example:
        >>> maps = [ComparedMap("rollout", np.zeros((30, 40)))]
        >>> page = comparison_panel(np.zeros((30, 40, 3), np.uint8), maps, title="dog", width=600)
        >>> page.shape[1]
        600
    """
    if not maps or width < 480:
        raise ValueError(
            f"a page needs a map and 480 pixels of width, got {len(maps)} maps and {width}"
        )
    grid = tile_grid((image.shape[0], image.shape[1]), len(maps) + 1, width)
    drawn = partial(overlay, colors=colors, opacity=opacity, style=style)
    signed = any(one.signed for one in maps)
    foot = HEIGHT * (2 if signed else 1)
    page, places = titled_page(title, grid, width, _TEXT, foot, subtitle=subtitle)
    small = resized_image(image, grid.tile)
    pen = ImageDraw.Draw(page)
    page.paste(Image.fromarray(small), places[0])
    size = f"{image.shape[1]} \N{MULTIPLICATION SIGN} {image.shape[0]}"
    _write(pen, places[0], grid.tile[0], grid.cell, "LoadedImage", size)
    for one, place in zip(maps, places[1:], strict=False):
        if one.values is None:
            _excuse(pen, place, grid.tile, one.note)
            _write(pen, place, grid.tile[0], grid.cell, one.name, "no map")
            continue
        values = resized_map(one.values, grid.tile)
        tile = drawn(small, values, low=one.low, high=one.high, signed=one.signed)
        page.paste(Image.fromarray(tile), place)
        _write(pen, place, grid.tile[0], grid.cell, one.name, one.note or _ends(one))
    _draw_legends(page, foot, drawn, maps)
    return np.array(page)


def _draw_legends(
    page: Image.Image, foot: int, drawn: partial[np.ndarray], maps: Sequence[ComparedMap]
) -> None:
    unseen = any(one.values is not None and bool(np.isnan(one.values).any()) for one in maps)
    plain, signed = (partial(drawn, high=1.0, signed=sign) for sign in (False, True))
    place = (MARGIN, page.height - foot)
    draw_legend(
        page, place, plain, (0.0, 1.0), unseen=unseen,
        ends=("low", "high"), name="low and high are the numbers below each image",
    )  # fmt: skip
    if any(one.signed for one in maps):
        place = (MARGIN, page.height - foot + HEIGHT - 8)
        draw_legend(
            page, place, signed, (-1.0, 1.0), ends=("against", "for"), name="where there are signs"
        )


def _ends(one: ComparedMap) -> str:
    first = -one.high if one.signed else one.low
    return f"{first:.2g} to {one.high:.2g}".replace("-", "\N{MINUS SIGN}")


def _write(
    pen: ImageDraw.ImageDraw, place: tuple[int, int], tall: int, width: int, name: str, note: str
) -> None:
    (x, y), small = (place[0], place[1] + tall + 8), typeface(SMALL)
    pen.text((x, y), shortened(name, typeface(_NAME), width), INK, typeface(_NAME))
    pen.text((x, y + 24), shortened(note, small, width), SOFT, small)


def _excuse(
    pen: ImageDraw.ImageDraw, place: tuple[int, int], tile: tuple[int, int], reason: str
) -> None:
    """Draw an empty tile with a reason in it."""
    (x, y), (tall, wide) = place, tile
    pen.rectangle((x, y, x + wide - 1, y + tall - 1), TRACK)
    lines = wrapped(reason, typeface(SMALL), wide - 20, max(1, (tall - 20) // 16))
    for number, line in enumerate(lines):
        pen.text((x + 10, y + 10 + 16 * number), line, SOFT, typeface(SMALL))
