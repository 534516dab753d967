"""The assignment is the cheapest of all, by trying every permutation."""

from itertools import permutations

import pytest
import torch
from torch import Tensor

from visattn.functional.matching import linear_sum_assignment


def cheapest(cost: Tensor) -> float:
    """Return the smallest total cost over all injections of rows into columns."""
    rows, columns = cost.shape
    if rows > columns:
        return cheapest(cost.T)
    table = cost.tolist()
    return min(
        sum(table[row][column] for row, column in enumerate(picked))
        for picked in permutations(range(columns), rows)
    )


@pytest.mark.parametrize("shape", [(1, 1), (3, 3), (5, 5), (2, 7), (7, 2), (4, 6)])
@pytest.mark.parametrize("ties", [False, True])
def test_no_permutation_is_cheaper(shape: tuple[int, int], ties: bool) -> None:
    for seed in range(20):
        cost = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).double()
        cost = cost.round() if ties else cost
        rows, columns = linear_sum_assignment(cost)
        assert rows == sorted(set(rows))
        assert len(set(columns)) == len(rows) == min(shape)
        assert float(cost[rows, columns].sum()) == pytest.approx(cheapest(cost), abs=1e-9)


def test_equals_scipy() -> None:
    optimize = pytest.importorskip("scipy.optimize")
    for seed in range(20):
        cost = torch.rand(31, 17, generator=torch.Generator().manual_seed(seed)).double()
        rows, columns = linear_sum_assignment(cost)
        expected = optimize.linear_sum_assignment(cost.numpy())
        assert (rows, columns) == tuple(part.tolist() for part in expected)


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (0, 0)])
def test_nothing_to_assign(shape: tuple[int, int]) -> None:
    assert linear_sum_assignment(torch.zeros(shape)) == ([], [])


def test_costs_must_be_finite() -> None:
    with pytest.raises(ValueError, match="must be finite"):
        linear_sum_assignment(torch.tensor([[1.0, torch.nan]]))
