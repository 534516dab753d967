"""Figure of glimpse locations on many images: the mean scan path and a heat map per glimpse."""

from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from visattn.results.values import ScanPath
from visattn.viz.canvas import MUTED, TEXT, Canvas
from visattn.viz.heatmap import DrawOptions, overlay, resize_image, resize_map
from visattn.viz.rendering import Figure
from visattn.viz.scanpaths.path import (
    MARKER,
    MARKER_RADIUS,
    draw_number_marker,
    draw_scan_path,
    glimpse_colors,
    patch_to_rgb,
)
from visattn.viz.text import load_font, truncate_text
from visattn.viz.tiles import (
    GAP,
    LEGEND_HEIGHT,
    MARGIN,
    MIN_WIDTH,
    SMALL,
    Legend,
    TileGrid,
    check_width,
    compute_tile_grid,
)

_TITLE_SIZE = 25
_CAPTION_HEIGHT = 34
_DEFAULTS = DrawOptions()


def coverage_panel(
    image: UInt8[np.ndarray, "y x 3"],
    boxes: Float[np.ndarray, "_ 4"],
    mean_map: Float[np.ndarray, "y x"],
    maps: Float[np.ndarray, "t y x"],
    *,
    title: str,
    note: str = "",
    drawing: DrawOptions = _DEFAULTS,
) -> Figure:
    """Return a figure of the distribution of glimpse locations over many images.

    Args:
        image: Mean of all images.
        boxes: For each glimpse, the mean location plus and minus a standard deviation: left, top,
            right and bottom in pixels.
        mean_map: Sharpest resolution at which each pixel was seen, between 0 and 1; mean over
            images.
        maps: The same for each glimpse.
        title: Title of the figure.
        note: Line below the title.
        drawing: Width and scale of the figure.

    Raises:
        ValueError: If the numbers of glimpses and maps differ.

    Example:
        >>> blank, boxes = np.zeros((28, 28, 3), np.uint8), np.array([[7.0, 7, 21, 21]])
        >>> maps = np.zeros((1, 28, 28))
        >>> coverage_panel(blank, boxes, maps[0], maps, title="2 images").image.width
        1200
    """
    if not len(maps) or len(maps) != len(boxes):
        raise ValueError(
            f"each glimpse needs a map, got {len(maps)} maps for {len(boxes)} glimpses"
        )
    check_width(drawing, MIN_WIDTH)
    titles = (title, note)
    draw = partial(_draw_panel, image, boxes, mean_map, maps, titles, drawing.page_width)
    return Figure(draw, drawing.zoom)


def _draw_panel(
    image: UInt8[np.ndarray, "y x 3"],
    boxes: Float[np.ndarray, "_ 4"],
    mean_map: Float[np.ndarray, "y x"],
    maps: Float[np.ndarray, "t y x"],
    titles: tuple[str, str],
    width: int,
    detail: float,
) -> Canvas:
    """Return the drawing of the mean path and the maps."""
    grid = compute_tile_grid(image.shape[:2], len(maps) + 2, width, detail)
    small = resize_image(image, grid.pixels)
    vmax = max(float(maps.max()), float(mean_map.max()), 1e-6)
    scale = np.array(grid.tile_size[::-1]) / np.array(image.shape[1::-1])
    path = draw_scan_path(small, (boxes * np.tile(scale, 2))[:, None], detail=detail)

    def draw_heatmap(values: np.ndarray) -> np.ndarray:
        return overlay(small, resize_map(values, grid.pixels), vmax=vmax, hatched=True)

    tiles = [draw_heatmap(mean_map), *map(draw_heatmap, maps)]
    page = _create_page(grid, titles, width)
    colors = glimpse_colors(len(maps))
    for index, tile in enumerate([path, *tiles]):
        row, column = divmod(index, grid.columns)
        x = MARGIN + column * (grid.cell_width + GAP)
        y = MARGIN + 2 * _TITLE_SIZE + 12 + row * (grid.tile_size[0] + _CAPTION_HEIGHT + GAP)
        if isinstance(tile, Canvas):
            page.place(tile, (x, y))
        else:
            page.paste(tile, (x, y), grid.tile_size)
        text_top = y + grid.tile_size[0] + 8
        if index < 2:
            text = ("mean path, \N{PLUS-MINUS SIGN} 1 standard deviation", "all glimpses")[index]
            page.text(
                (x, text_top),
                truncate_text(text, load_font(SMALL), grid.cell_width),
                MUTED,
                load_font(SMALL),
            )
        else:
            center = (x + MARKER / 2, text_top - 2 + MARKER / 2)
            draw_number_marker(page, center, index - 1, colors[index - 2], MARKER_RADIUS)
    place = (MARGIN, page.height - LEGEND_HEIGHT)
    label = "mean resolution at which pixels were seen (1: that of the input, on every image)"
    Legend(partial(overlay, vmax=vmax), (0.0, vmax), label).draw(page, place)
    return page


def _create_page(grid: TileGrid, titles: tuple[str, str], width: int) -> Canvas:
    height = (
        2 * MARGIN
        + 2 * _TITLE_SIZE
        + grid.rows * (grid.tile_size[0] + _CAPTION_HEIGHT + GAP)
        + LEGEND_HEIGHT
        - 24
    )
    page = Canvas(width, height, detail=grid.detail)
    title, note = titles
    text_width = width - 2 * MARGIN
    large = load_font(_TITLE_SIZE)
    small = load_font(SMALL)
    page.text((MARGIN, MARGIN - 6), truncate_text(title, large, text_width), TEXT, large)
    page.text(
        (MARGIN, MARGIN + _TITLE_SIZE + 6), truncate_text(note, small, text_width), MUTED, small
    )
    return page


class Coverage:
    """Mean scan path and mean resolution maps over many images.

    Args:
        policy: Description of the policy for the figure.

    Example:
        >>> Coverage().count
        0
    """

    def __init__(self, policy: str = "") -> None:
        self.policy = policy
        self.count = 0
        self._sums: list[Float[Tensor, "*axes"]] = []

    def add(self, scan: ScanPath) -> None:
        """Add a scan path.

        Raises:
            ValueError: If its number of glimpses or its grid differs from the others.
        """
        values = scan.maps.values.double()
        locations = scan.locations.double()
        pixels = scan.pixels.double()
        terms = [values, values.amax(0), locations, locations**2, pixels]
        if self._sums and any(a.shape != b.shape for a, b in zip(self._sums, terms, strict=True)):
            raise ValueError(
                "scan paths must come from one model: expected maps of shape "
                f"{list(self._sums[0].shape)}, got {list(values.shape)}"
            )
        self._sums = [a + b for a, b in zip(self._sums or [0.0] * 5, terms, strict=True)]
        self.count += 1

    def panel(self, **options: Any) -> Figure:
        """Return a figure with the mean path and a heat map for each glimpse.

        Args:
            options: `width` and `scale`, see `DrawOptions`.

        Raises:
            ValueError: If no scan path was added.
        """
        if not self.count:
            raise ValueError("coverage needs at least one scan path, got none")
        maps, overall, mean, squares, pixels = (total / self.count for total in self._sums)
        std = (squares - mean**2).clamp(min=0).sqrt()
        # From [-1, 1] to pixels.
        half = mean.new_tensor([maps.shape[2], maps.shape[1]]) / 2
        boxes = torch.cat([(mean - std + 1) * half, (mean + std + 1) * half], -1)
        images = f"{self.count:,} image{'' if self.count == 1 else 's'}"
        return coverage_panel(
            patch_to_rgb(pixels.round().byte().numpy()),
            boxes.numpy(),
            overall.numpy(),
            maps.numpy(),
            title=f"Coverage of {images}",
            note=self.policy,
            drawing=DrawOptions(**options),
        )
