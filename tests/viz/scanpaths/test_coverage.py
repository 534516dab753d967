"""Coverage of many glimpses on a page."""

import numpy as np
import pytest

from visattn.viz.canvas import BACKGROUND
from visattn.viz.heatmap import overlay, resize_image, resize_map
from visattn.viz.scanpaths.coverage import coverage_panel
from visattn.viz.tiles import MARGIN, compute_tile_grid

RNG = np.random.default_rng(1)


def spreads(count: int, size: tuple[int, int]) -> np.ndarray:
    middles = RNG.uniform(0, 1, (count, 2)) * size[::-1]
    return np.concatenate([middles - 2, middles + 2], 1)


@pytest.mark.parametrize("size", [(28, 28), (31, 97), (97, 13), (1, 1)])
@pytest.mark.parametrize("count", [1, 6, 19])
def test_pages_of_any_network(size: tuple[int, int], count: int) -> None:
    maps = RNG.random((count, *size))
    panel = np.asarray(
        coverage_panel(
            np.zeros((*size, 3), np.uint8), spreads(count, size), maps.max(0), maps, title="t" * 300
        ).image
    )
    assert panel.shape[1] == 1200
    for edge in (panel[:20], panel[-20:], panel[:, : MARGIN - 1], panel[:, -20:]):
        assert (edge == BACKGROUND).all()


def test_tiles_share_a_scale() -> None:
    blank = np.full((20, 30, 3), 90, np.uint8)
    maps = np.stack([np.full((20, 30), 0.2), np.full((20, 30), 0.8)])
    panel = np.asarray(
        coverage_panel(blank, spreads(2, (20, 30)), maps.max(0), maps, title="2 images").image
    )
    grid = compute_tile_grid((20, 30), 4, 1200)
    small = resize_image(blank, grid.tile_size)
    top = MARGIN + 62
    for column, value in enumerate((0.8, 0.2, 0.8), start=1):
        row, place = divmod(column, grid.columns)
        x, y = MARGIN + place * (grid.cell_width + 22), top + row * (grid.tile_size[0] + 56)
        expected = overlay(small, resize_map(np.full((20, 30), value), grid.tile_size), vmax=0.8)
        np.testing.assert_array_equal(
            panel[y : y + grid.tile_size[0], x : x + grid.tile_size[1]], expected
        )


def test_zero_coverage_is_drawn() -> None:
    maps = np.zeros((2, 7, 9))
    assert np.asarray(
        coverage_panel(
            np.zeros((7, 9, 3), np.uint8), spreads(2, (7, 9)), maps[0], maps, title="none"
        ).image
    ).any()


def test_each_glimpse_has_a_map() -> None:
    maps = np.zeros((2, 7, 9))
    with pytest.raises(ValueError, match="each glimpse needs a map, got 2 maps for 3 glimpses"):
        np.asarray(
            coverage_panel(
                np.zeros((7, 9, 3), np.uint8), spreads(3, (7, 9)), maps[0], maps, title="none"
            ).image
        )
