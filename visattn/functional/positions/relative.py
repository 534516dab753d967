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


def relative_biases(
    table: Float[Tensor, "h r s"],
    asking: Int[Tensor, "*w q"],
    offered: Int[Tensor, "*w m"],
    width: int,
    *,
    before: int = 0,
) -> Float[Tensor, "h *w q m"]:
    """Return the number that a table holds for the offset of each key from its query.

    Args:
        table: A number for each vertical offset (rows, upwards first) and each horizontal one; an
            odd number of both. Offsets beyond it read its edge.
        asking: Tokens that ask; those of the grid are counted row by row.
        offered: Tokens that they look at.
        width: Cells in a row of the grid.
        before: Tokens before the grid, which have no place: their biases are zero, and so are those
            of tokens below zero.

    Raises:
        ValueError: If the table has no middle.

    Example:
        >>> table, tokens = torch.tensor([[[1.0, 2.0, 3.0]]]), torch.arange(2)
        >>> relative_biases(table, tokens, tokens, 2)
        tensor([[[2., 3.], [1., 2.]]])

    Source:
        Liu et al. 2021, arXiv:2103.14030, equation 4.
    """
    height, across = table.shape[1:]
    if height % 2 == 0 or across % 2 == 0:
        raise ValueError(
            f"a table of offsets must have odd sides and so a middle, got {height} x {across}"
        )
    query, key = (asking - before).unsqueeze(-1), (offered - before).unsqueeze(-2)
    down = (key // width - query // width).clamp(-(height // 2), height // 2) + height // 2
    right = (key % width - query % width).clamp(-(across // 2), across // 2) + across // 2
    found = table.flatten(1).index_select(1, (down * across + right).flatten())
    return found.reshape(-1, *down.shape) * ((query >= 0) & (key >= 0))


def _offset_vectors(size: int, table: Float[Tensor, "r d"]) -> Float[Tensor, "size size d"]:
    if table.shape[0] % 2 == 0:
        raise ValueError(
            "a table of offsets must have 2 · reach + 1 rows, the middle one for the query's own "
            f"place, got {table.shape[0]}"
        )
    return table[relative_offsets(size, table.shape[0] // 2, device=table.device)]
