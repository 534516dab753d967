"""Relative positions: index tables, position scores (BoTNet) and position bias (Swin)."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def relative_position_index(
    size: int, max_offset: int, *, device: torch.device | None = None
) -> Int[Tensor, "size size"]:
    """Return the index of each query (dim 0) and key (dim 1) into a table of relative positions.

    Index `max_offset` is offset 0. Larger offsets are clipped, so that a table fits every size.

    Args:
        size: Number of positions along the axis.
        max_offset: Largest offset; the table has 2 · max_offset + 1 rows.
        device: Device of the result.

    Raises:
        ValueError: If size is below 1, or max_offset below 0.

    Example:
        >>> relative_position_index(4, 2)
        tensor([[2, 3, 4, 4], [1, 2, 3, 4], [0, 1, 2, 3], [0, 0, 1, 2]])

    Source:
        Shaw et al. 2018, arXiv:1803.02155, section 3.2.
    """
    if size < 1 or max_offset < 0:
        raise ValueError(
            "size must be at least 1 and max_offset at least 0, "
            f"got size={size}, max_offset={max_offset}"
        )
    places = torch.arange(size, device=device)
    return (places - places[:, None]).clamp(-max_offset, max_offset) + max_offset


def relative_position_scores(
    queries: Float[Tensor, "*b y x d"],
    rows: Float[Tensor, "r d"],
    columns: Float[Tensor, "s d"],
) -> Float[Tensor, "*b y*x y*x"]:
    """Return relative position scores: query · (row offset embedding + column offset embedding).

    The scores are not scaled. They take n (y + x) d multiplications for n = y x positions, and n²
    numbers.

    Args:
        queries: Queries on their grid.
        rows: Embeddings of vertical offsets, upwards first; an odd number.
        columns: Embeddings of horizontal offsets, leftwards first; an odd number.

    Raises:
        ValueError: If a table has an even number of rows.

    Example:
        >>> queries = torch.ones(2, 1, 1)  # a grid of two rows and one column
        >>> relative_position_scores(queries, torch.tensor([[-1.0], [0], [5]]), torch.zeros(1, 1))
        tensor([[ 0.,  5.],
                [-1.,  0.]])

    Source:
        Srinivas et al. 2021, arXiv:2101.11605, figure 4; Ramachandran et al. 2019,
        arXiv:1906.05909, equation 3. Deviation: larger offsets are clipped.
    """
    across, down = (
        _offset_vectors(queries.shape[-2], columns),
        _offset_vectors(queries.shape[-3], rows),
    )
    by_column = torch.einsum("...yxd,xwd->...yxw", queries, across)
    by_row = torch.einsum("...yxd,yud->...yxu", queries, down)
    scores = by_row.unsqueeze(-1) + by_column.unsqueeze(-2)
    return scores.flatten(-2).flatten(-3, -2)


def relative_position_bias(
    table: Float[Tensor, "h r s"],
    query_tokens: Int[Tensor, "*w q"],
    key_tokens: Int[Tensor, "*w m"],
    grid_width: int,
    *,
    num_prefix_tokens: int = 0,
) -> Float[Tensor, "h *w q m"]:
    """Return the relative position bias of each pair of query and key tokens.

    Args:
        table: Bias of each head, vertical offset (upwards first) and horizontal offset; odd sizes.
            Larger offsets are clipped.
        query_tokens: Query tokens; tokens of the grid are row-major.
        key_tokens: Key tokens.
        grid_width: Width of the grid.
        num_prefix_tokens: Tokens before the grid. They have no position: their bias is zero, and so
            is that of negative tokens (padding).

    Raises:
        ValueError: If a side of the table is even.

    Example:
        >>> table, tokens = torch.tensor([[[1.0, 2.0, 3.0]]]), torch.arange(2)
        >>> relative_position_bias(table, tokens, tokens, 2)
        tensor([[[2., 3.], [1., 2.]]])

    Source:
        Liu et al. 2021, arXiv:2103.14030, equation 4.
    """
    height, across = table.shape[1:]
    if height % 2 == 0 or across % 2 == 0:
        raise ValueError(
            f"a table of relative positions must have odd sides, got {height} x {across}"
        )
    query, key = (
        (query_tokens - num_prefix_tokens).unsqueeze(-1),
        (key_tokens - num_prefix_tokens).unsqueeze(-2),
    )
    down = (key // grid_width - query // grid_width).clamp(
        -(height // 2), height // 2
    ) + height // 2
    right = (key % grid_width - query % grid_width).clamp(-(across // 2), across // 2) + across // 2
    bias = table.flatten(1).index_select(1, (down * across + right).flatten())
    return bias.reshape(-1, *down.shape) * ((query >= 0) & (key >= 0))


def _offset_vectors(size: int, table: Float[Tensor, "r d"]) -> Float[Tensor, "size size d"]:
    if table.shape[0] % 2 == 0:
        raise ValueError(
            f"a table of relative positions must have an odd number of rows, got {table.shape[0]}"
        )
    return table[relative_position_index(size, table.shape[0] // 2, device=table.device)]
