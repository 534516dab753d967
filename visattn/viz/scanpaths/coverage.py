"""Figure of glimpse locations on many images: the mean scan path and a heat map per glimpse."""

from functools import partial

import numpy as np
import torch
from jaxtyping import Float, UInt8
from PIL import Image, ImageDraw
from torch import Tensor

from visattn.results.values import ScanPath
from visattn.viz.heatmap import overlay, resize_image, resize_map
from visattn.viz.scanpaths.path import (
    draw_scan_path,
    glimpse_colors,
    paste_number_marker,
    patch_to_rgb,
)
from visattn.viz.text import load_font, truncate_text
from visattn.viz.tiles import (
    BACKGROUND,
    GAP,
    LEGEND_HEIGHT,
    MARGIN,
    MUTED,
    SMALL,
    TEXT,
    Legend,
    TileGrid,
    compute_tile_grid,
)

_TITLE_SIZE = 25
_CAPTION_HEIGHT = 34
_WIDTH = 1200


def coverage_panel(
    image: UInt8[np.ndarray, "y x 3"],
    boxes: Float[np.ndarray, "_ 4"],
    mean_map: Float[np.ndarray, "y x"],
    maps: Float[np.ndarray, "t y x"],
    *,
    title: str,
    note: str = "",
) -> UInt8[np.ndarray, "height 1200 3"]:
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

    Raises:
        ValueError: If the numbers of glimpses and maps differ.

    Example:
        >>> blank, boxes = np.zeros((28, 28, 3), np.uint8), np.array([[7.0, 7, 21, 21]])
        >>> maps = np.zeros((1, 28, 28))
        >>> coverage_panel(blank, boxes, maps[0], maps, title="2 images").shape[1]
        1200
    """
    if not len(maps) or len(maps) != len(boxes):
        raise ValueError(
            f"each glimpse needs a map, got {len(maps)} maps for {len(boxes)} glimpses"
        )
    grid = compute_tile_grid(image.shape[:2], len(maps) + 2, _WIDTH)
    small = resize_image(image, grid.tile_size)
    vmax = max(float(maps.max()), float(mean_map.max()), 1e-6)
    scale = np.array(grid.tile_size[::-1]) / np.array(image.shape[1::-1])
    path = draw_scan_path(small, (boxes * np.tile(scale, 2))[:, None])

    def draw_heatmap(values: np.ndarray) -> np.ndarray:
        return overlay(small, resize_map(values, grid.tile_size), vmax=vmax)

    tiles = [path, draw_heatmap(mean_map), *map(draw_heatmap, maps)]
    page, pen = _create_page(grid, title, note)
    colors = glimpse_colors(len(maps))
    for index, tile in enumerate(tiles):
        row, column = divmod(index, grid.columns)
        x = MARGIN + column * (grid.cell_width + GAP)
        y = MARGIN + 2 * _TITLE_SIZE + 12 + row * (grid.tile_size[0] + _CAPTION_HEIGHT + GAP)
        page.paste(Image.fromarray(tile), (x, y))
        text_top = y + grid.tile_size[0] + 8
        if index < 2:
            text = ("mean path, \N{PLUS-MINUS SIGN} 1 standard deviation", "all glimpses")[index]
            pen.text(
                (x, text_top),
                truncate_text(text, load_font(SMALL), grid.cell_width),
                MUTED,
                load_font(SMALL),
            )
        else:
            paste_number_marker(page, (x, text_top - 2), index - 1, colors[index - 2])
    place = (MARGIN, page.height - LEGEND_HEIGHT)
    label = "mean resolution at which pixels were seen (1: that of the input, on every image)"
    Legend(partial(overlay, vmax=vmax), (0.0, vmax), label).draw(page, place)
    return np.array(page)


def _create_page(grid: TileGrid, title: str, note: str) -> tuple[Image.Image, ImageDraw.ImageDraw]:
    height = (
        2 * MARGIN
        + 2 * _TITLE_SIZE
        + grid.rows * (grid.tile_size[0] + _CAPTION_HEIGHT + GAP)
        + LEGEND_HEIGHT
        - 24
    )
    page = Image.new("RGB", (_WIDTH, height), BACKGROUND)
    pen = ImageDraw.Draw(page)
    text_width = _WIDTH - 2 * MARGIN
    large = load_font(_TITLE_SIZE)
    small = load_font(SMALL)
    pen.text((MARGIN, MARGIN - 6), truncate_text(title, large, text_width), TEXT, large)
    pen.text(
        (MARGIN, MARGIN + _TITLE_SIZE + 6), truncate_text(note, small, text_width), MUTED, small
    )
    return page, pen


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

    def panel(self) -> UInt8[np.ndarray, "height width 3"]:
        """Return a figure with the mean path and a heat map for each glimpse.

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
        )
