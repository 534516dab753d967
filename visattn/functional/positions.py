"""Scores of where a key lies as seen from its query, on a grid of any size."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def relative_offsets(
    size: int, reach: int, *, device: torch.device | None = None
) -> Int[Tensor, "size size"]:
    """Return which row of a table of offsets a query (first axis) reads for a key (second).

    Row `reach` of the table is the query's own place, the row after it the place one further on.
    Offsets beyond the reach read the first or the last row, so that a table fits every size.

    Args:
        size: Number of places in a line.
        reach: Farthest offset that has a row of its own; the table has 2 · reach + 1 of them.
        device: Where the numbers are needed.

    Raises:
        ValueError: If size is below 1, or reach below 0.

    Example:
        >>> relative_offsets(4, 2)
        tensor([[2, 3, 4, 4], [1, 2, 3, 4], [0, 1, 2, 3], [0, 0, 1, 2]])

    Source:
        Shaw et al. 2018, arXiv:1803.02155, section 3.2.
    """
    if size < 1 or reach < 0:
        raise ValueError(
            f"size must be at least 1 and reach at least 0, got size={size}, reach={reach}"
        )
    places = torch.arange(size, device=device)
    return (places - places[:, None]).clamp(-reach, reach) + reach


def relative_position_scores(
    queries: Float[Tensor, "*b y x d"],
    rows: Float[Tensor, "r d"],
    columns: Float[Tensor, "s d"],
) -> Float[Tensor, "*b y*x y*x"]:
    """Return what each query says of each key's place: the products with its two offsets, summed.

    The scores are not scaled; queries that are scaled give scores that are. One line of the grid
    is multiplied with each table, not each pair of places: n (y + x) d multiplications, and n²
    numbers in the result.

    Args:
        queries: On their grid, row by row.
        rows: A vector for each vertical offset, upwards first; an odd number of them.
        columns: A vector for each horizontal offset, leftwards first; an odd number of them.

    Raises:
        ValueError: If a table has an even number of rows, and so no middle.

    Example:
        >>> one = torch.ones(2, 1, 1)  # a column of two places
        >>> relative_position_scores(one, torch.tensor([[-1.0], [0], [5]]), torch.zeros(1, 1))
        tensor([[ 0.,  5.],
                [-1.,  0.]])

    Source:
        Srinivas et al. 2021, arXiv:2101.11605, figure 4; Ramachandran et al. 2019,
        arXiv:1906.05909, equation 3. Deviation: offsets beyond a table share its last row.
    """
    across, down = (
        _offset_vectors(queries.shape[-2], columns),
        _offset_vectors(queries.shape[-3], rows),
    )
    by_column = torch.einsum("...yxd,xwd->...yxw", queries, across)
    by_row = torch.einsum("...yxd,yud->...yxu", queries, down)
    scores = by_row.unsqueeze(-1) + by_column.unsqueeze(-2)
    return scores.flatten(-2).flatten(-3, -2)


def _offset_vectors(size: int, table: Float[Tensor, "r d"]) -> Float[Tensor, "size size d"]:
    if table.shape[0] % 2 == 0:
        raise ValueError(
            "a table of offsets must have 2 · reach + 1 rows, the middle one for the query's own "
            f"place, got {table.shape[0]}"
        )
    return table[relative_offsets(size, table.shape[0] // 2, device=table.device)]
