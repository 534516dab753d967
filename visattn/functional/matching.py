"""Assignment of minimal total cost between rows and columns (the Hungarian method)."""

from collections.abc import Sequence
from typing import Any, cast

from jaxtyping import Float
from torch import Tensor


def linear_sum_assignment(cost: Float[Tensor, "n m"]) -> tuple[list[int], list[int]]:
    """Return the pairs of distinct rows and columns whose costs have the smallest sum.

    Every row gets a column, or every column a row, whichever are fewer. Each further row is
    assigned along a shortest augmenting path with non-negative reduced costs, which takes
    O(min² · max) operations. It runs on the CPU, in Python.

    Args:
        cost: Finite costs.

    Returns:
        Rows in ascending order, and the column of each.

    Raises:
        ValueError: If a cost is not finite.

    Example:
        >>> import torch
        >>> linear_sum_assignment(torch.tensor([[4.0, 1.0, 2.0], [2.0, 0.0, 5.0]]))
        ([0, 1], [2, 1])

    Source:
        Crouse 2016, "On implementing 2D rectangular assignment algorithms", algorithm 1, which is
        that of Jonker and Volgenant 1987 without its initialization.
    """
    if not bool(cost.isfinite().all()):
        raise ValueError("the costs of an assignment must be finite, got NaN or infinity")
    transposed = cost.shape[0] > cost.shape[1]
    costs: Any = cost.mT if transposed else cost
    table = cast("list[list[float]]", costs.double().tolist())
    columns = _assign_rows(table)
    pairs = [(column, row) if transposed else (row, column) for row, column in enumerate(columns)]
    return [row for row, _ in sorted(pairs)], [column for _, column in sorted(pairs)]


def _assign_rows(cost: Sequence[Sequence[float]]) -> list[int]:
    """Return the column of each row; there are at least as many columns as rows."""
    num_columns = len(cost[0]) if cost else 0
    row_price, column_price = [0.0] * len(cost), [0.0] * num_columns
    row_of = [-1] * num_columns
    for start in range(len(cost)):
        distance, previous, done, end = _shortest_path(start, cost, row_price, column_price, row_of)
        row_price[start] += distance[end]
        for column in done:
            if row_of[column] >= 0:
                row_price[row_of[column]] += distance[end] - distance[column]
            column_price[column] -= distance[end] - distance[column]
        while end >= 0:  # shift the assignments along the path by one
            before = previous[end]
            row_of[end] = start if before < 0 else row_of[before]
            end = before
    columns = [-1] * len(cost)
    for column, row in enumerate(row_of):
        if row >= 0:
            columns[row] = column
    return columns


def _shortest_path(
    start: int,
    cost: Sequence[Sequence[float]],
    row_price: Sequence[float],
    column_price: Sequence[float],
    row_of: Sequence[int],
) -> tuple[list[float], list[int], list[int], int]:
    """Return a shortest augmenting path from a row to a free column, in reduced costs.

    Returns:
        The distance of each column, the column before each on its path (-1: the start), the
        columns whose distance is final, and the free column at the end.
    """
    num_columns = len(column_price)
    distance, previous = [float("inf")] * num_columns, [-1] * num_columns
    left, done = list(range(num_columns)), list[int]()
    row, last, length = start, -1, 0.0
    while True:
        offset, costs = length - row_price[row], cost[row]
        for column in left:
            candidate = offset + costs[column] - column_price[column]
            if candidate < distance[column]:
                distance[column], previous[column] = candidate, last
        last = min(left, key=lambda column: (distance[column], row_of[column] >= 0))
        left.remove(last)
        done.append(last)
        if row_of[last] < 0:
            return distance, previous, done, last
        row, length = row_of[last], distance[last]
