"""Regions of the photo on grids of the network, and as runs."""

import pytest
import torch
from hypothesis import given, strategies as st

from visattn.attribution.regions import mask_from_runs, mask_on_grid, mask_to_runs
from visattn.geometry.affine import Geometry


@given(bits=st.lists(st.booleans(), min_size=6, max_size=6))
def test_runs_give_the_mask_back(bits: list[bool]) -> None:
    mask = torch.tensor(bits).view(2, 3)
    assert torch.equal(mask_from_runs(*mask_to_runs(mask)), mask)


@pytest.mark.parametrize("pixel", [(0, 0), (0, 7), (3, 0), (3, 7), (2, 5)])
def test_a_pixel_lies_in_the_cell_around_it(pixel: tuple[int, int]) -> None:
    mask = torch.zeros(4, 8)
    mask[pixel] = 1
    for grid in ((4, 8), (2, 4)):
        expected = torch.zeros(grid, dtype=torch.bool)
        expected[pixel[0] * grid[0] // 4, pixel[1] * grid[1] // 8] = True
        assert torch.equal(mask_on_grid(mask, Geometry.identity((4, 8)), grid), expected)
