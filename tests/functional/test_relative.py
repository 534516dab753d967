"""Relative position scores against loops."""

import pytest
import torch
from random_numbers import numbers

from visattn.functional.positions import relative_position_index, relative_position_scores


@pytest.mark.parametrize("reach", [1, 2, 7])
def test_relative_scores_match_the_equation(reach: int) -> None:
    queries = numbers(2, 3, 5, 7)
    rows, columns = numbers(2 * reach + 1, 7, seed=1), numbers(2 * reach + 1, 7, seed=2)
    scores = relative_position_scores(queries, rows, columns)
    assert scores.shape == (2, 15, 15)
    for b in range(2):
        for n in range(15):
            for m in range(15):
                y, x, u, w = n // 5, n % 5, m // 5, m % 5
                down = rows[reach + max(-reach, min(reach, u - y))]
                across = columns[reach + max(-reach, min(reach, w - x))]
                expected = queries[b, y, x] @ (down + across)
                torch.testing.assert_close(scores[b, n, m], expected)


def test_leading_axes_are_batch_axes() -> None:
    queries, rows, columns = numbers(2, 3, 5, 7, 11), numbers(5, 11), numbers(3, 11, seed=1)
    both = relative_position_scores(queries, rows, columns)
    torch.testing.assert_close(both[1, 2], relative_position_scores(queries[1, 2], rows, columns))


def test_gradients() -> None:
    parts = numbers(2, 3, 2), numbers(3, 2, seed=1), numbers(5, 2, seed=2)
    for part in parts:
        part.requires_grad_()
    assert torch.autograd.gradcheck(relative_position_scores, parts)


def test_tables_must_have_odd_size() -> None:
    with pytest.raises(ValueError, match=r"an odd number of rows.* got 4"):
        relative_position_scores(numbers(2, 3, 5), numbers(4, 5), numbers(3, 5))


def test_grid_sizes_must_be_positive() -> None:
    with pytest.raises(ValueError, match="got size=0, max_offset=2"):
        relative_position_index(0, 2)
    with pytest.raises(ValueError, match="got size=3, max_offset=-1"):
        relative_position_index(3, -1)
