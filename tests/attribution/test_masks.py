"""Occlusion windows and RISE masks."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from visattn.attribution.perturbation import occlusion_windows, rise_grids, rise_masks, window_masks


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 23), st.integers(1, 29), st.integers(1, 31), st.integers(1, 31))
def test_windows_cover_the_image_and_stay_inside(
    rows: int, columns: int, side: int, step: int
) -> None:
    step = min(step, side)
    windows = occlusion_windows((rows, columns), window_size=(side, side), stride=(step, step))
    masks = window_masks(windows, (rows, columns))
    assert masks.any(0).all()
    assert masks.flatten(1).any(1).all()
    assert (windows >= 0).all()
    assert (windows[:, 2] <= columns).all()
    assert (windows[:, 3] <= rows).all()


def test_masks_are_true_inside_their_window() -> None:
    windows = occlusion_windows((5, 7), window_size=(2, 3), stride=(2, 3))
    masks = window_masks(windows, (5, 7))
    for mask, (left, top, right, bottom) in zip(masks, windows.tolist(), strict=True):
        for y in range(5):
            for x in range(7):
                assert bool(mask[y, x]) == (top <= y < bottom and left <= x < right)


def test_grids_are_a_prefix_of_more_grids() -> None:
    grids, shifts = rise_grids(11, num_cells=5, keep_probability=0.4, seed=3)
    few = rise_grids(4, num_cells=5, keep_probability=0.4, seed=3)
    assert torch.equal(few[0], grids[:4])
    assert torch.equal(few[1], shifts[:4])
    assert set(grids.unique().tolist()) == {0.0, 1.0}


def test_rise_masks_are_crops_of_upsampled_grids() -> None:
    size, cells = (11, 17), 3
    grids, shifts = rise_grids(5, num_cells=cells, keep_probability=0.5, seed=1)
    result = rise_masks(grids, shifts, size)
    cell = (4, 6)  # 11 / 3 and 17 / 3, rounded up
    for mask, grid, shift in zip(result, grids, shifts.tolist(), strict=True):
        top, left = int(shift[0] * cell[0]), int(shift[1] * cell[1])
        for y in range(size[0]):
            for x in range(size[1]):
                down = (y + top + 0.5) / ((cells + 1) * cell[0]) * cells - 0.5
                across = (x + left + 0.5) / ((cells + 1) * cell[1]) * cells - 0.5
                assert float(mask[y, x]) == pytest.approx(between(grid, down, across), abs=1e-5)


def between(grid: torch.Tensor, down: float, across: float) -> float:
    """Return a bilinearly interpolated value of a grid."""
    last = len(grid) - 1
    down, across = min(max(down, 0), last), min(max(across, 0), last)
    y, x = min(int(down), last - 1), min(int(across), last - 1)
    a, b = down - y, across - x
    upper = (1 - b) * float(grid[y, x]) + b * float(grid[y, x + 1])
    lower = (1 - b) * float(grid[y + 1, x]) + b * float(grid[y + 1, x + 1])
    return (1 - a) * upper + a * lower


def test_mean_of_masks_is_the_keep_probability() -> None:
    masks = rise_masks(*rise_grids(800, num_cells=7, keep_probability=0.3, seed=0), (13, 19))
    assert masks.mean() == pytest.approx(0.3, abs=0.01)
