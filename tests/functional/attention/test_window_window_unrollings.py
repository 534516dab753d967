"""Windows laid out over the grid: as a loop does it, and back."""

import pytest
import torch

from visattn.functional.attention.window import (
    dense_to_window_weights,
    padded_window_indices,
    window_weights_to_dense,
)

CASES = [
    ((6, 10), (3, 5), (0, 0)),
    ((6, 10), (3, 5), (1, 2)),
    ((5, 7), (2, 3), (1, 1)),
    ((2, 7), (5, 3), (2, 1)),
]


@pytest.mark.parametrize(("grid", "window", "shift"), CASES)
def test_laid_out_as_a_loop_does_it(
    grid: tuple[int, int], window: tuple[int, int], shift: tuple[int, int]
) -> None:
    places, _ = padded_window_indices(grid, window, shift)
    count = grid[0] * grid[1]
    generator = torch.Generator().manual_seed(3)
    weights = torch.rand(2, 3, *places.shape, places.shape[1], generator=generator).double()
    expected = torch.zeros(2, 3, count, count, dtype=torch.float64)
    for number, slots in enumerate(places.tolist()):
        for asking, row in enumerate(slots):
            for offered, column in enumerate(slots):
                if row >= 0 and column >= 0:
                    expected[:, :, row, column] = weights[:, :, number, asking, offered]
    laid = window_weights_to_dense(weights, places, count)
    assert torch.equal(laid, expected)
    rows = [count - 1, 0]
    assert torch.equal(window_weights_to_dense(weights, places, count, rows), expected[:, :, rows])
    assert torch.equal(dense_to_window_weights(laid, weights, places), weights)
