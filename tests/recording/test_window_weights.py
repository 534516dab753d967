"""Weights inside windows as dense weights, against a loop."""

import pytest
import torch
from windows import swin_windows

from visattn.recording.window_weights import dense_to_window_weights, window_weights_to_dense

CASES = [
    ((6, 10), (3, 5), (0, 0)),
    ((6, 10), (3, 5), (1, 2)),
    ((5, 7), (2, 3), (1, 1)),
    ((2, 7), (5, 3), (2, 1)),
]


@pytest.mark.parametrize(("grid", "window", "shift"), CASES)
def test_window_weights_to_dense_matches_a_loop_and_inverts(
    grid: tuple[int, int], window: tuple[int, int], shift: tuple[int, int]
) -> None:
    places = swin_windows(grid, window, shift)
    count = grid[0] * grid[1]
    generator = torch.Generator().manual_seed(3)
    weights = torch.rand(2, 3, *places.shape, places.shape[1], generator=generator).double()
    expected = torch.zeros(2, 3, count, count, dtype=torch.float64)
    for number, slots in enumerate(places.tolist()):
        for asking, row in enumerate(slots):
            for offered, column in enumerate(slots):
                if row >= 0 and column >= 0:
                    expected[:, :, row, column] = weights[:, :, number, asking, offered]
    dense = window_weights_to_dense(weights, places, count)
    assert torch.equal(dense, expected)
    rows = [count - 1, 0]
    assert torch.equal(window_weights_to_dense(weights, places, count, rows), expected[:, :, rows])
    assert torch.equal(dense_to_window_weights(dense, weights, places), weights)
