"""Positions: sines and cosines, learned embeddings, scores of relative positions."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import interpolate


def sincos_pos_embed(
    grid: tuple[int, int],
    embed_dim: int,
    *,
    temperature: float = 10000.0,
    device: torch.device | None = None,
) -> Float[Tensor, "n {embed_dim}"]:
    """Return 2D sine-cosine position embeddings of the cells of a grid, row by row.

    The first half of a vector encodes the row, the second the column: sines and then cosines at
    embed_dim / 4 frequencies from 1 down to about 1 / temperature.

    Args:
        grid: Height and width of the grid.
        embed_dim: Dimension of the embedding.
        temperature: Inverse of the lowest frequency, approximately.
        device: Device of the result.

    Raises:
        ValueError: If the dimension is not divisible by 4.

    Example:
        >>> sincos_pos_embed((1, 2), 4)
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.0000, 1.0000, 0.8415, 0.5403]])

    Source:
        Chen et al. 2021, arXiv:2104.02057, appendix; Vaswani et al. 2017, arXiv:1706.03762,
        section 3.5, for one axis.
    """
    if embed_dim < 4 or embed_dim % 4:
        raise ValueError(f"sine-cosine embeddings need embed_dim divisible by 4, got {embed_dim}")
    frequencies = inverse_frequencies(embed_dim // 4, temperature, device)
    rows, columns = (_sincos(size, frequencies) for size in grid)
    shape = (*grid, embed_dim // 2)
    both = torch.cat((rows[:, None].expand(shape), columns[None].expand(shape)), -1)
    return both.flatten(0, 1)


def inverse_frequencies(
    count: int, temperature: float, device: torch.device | None = None
) -> Float[Tensor, " {count}"]:
    """Return geometrically decreasing frequencies, from 1 to just above 1 / temperature.

    Example:
        >>> inverse_frequencies(2, 100.0)
        tensor([1.0000, 0.1000])
    """
    return temperature ** (-torch.arange(count, device=device, dtype=torch.float32) / count)


def resample_pos_embed(
    pos_embed: Float[Tensor, "n c"], old_grid: tuple[int, int], new_grid: tuple[int, int]
) -> Float[Tensor, "m c"]:
    """Resample learned position embeddings to another grid size, as timm does.

    Example:
        >>> resample_pos_embed(torch.tensor([[1.0], [3.0]]), (2, 1), (2, 1))
        tensor([[1.], [3.]])
    """
    image = pos_embed.float().reshape(*old_grid, -1).permute(2, 0, 1).unsqueeze(0)
    image = interpolate(image, size=new_grid, mode="bicubic", antialias=True)
    return image[0].flatten(1).mT.to(pos_embed.dtype)


def _sincos(size: int, frequencies: Float[Tensor, " f"]) -> Float[Tensor, "{size} w"]:
    places = torch.arange(size, device=frequencies.device, dtype=torch.float32)
    angles = places[:, None] * frequencies
    return torch.cat((angles.sin(), angles.cos()), -1)


def relative_position_index(
    size: int, max_offset: int, *, device: torch.device | None = None
) -> Int[Tensor, "size size"]:
    """Return the index of each query (dim 0) and key (dim 1) into a table of relative positions.

    Index `max_offset` is offset 0. Larger offsets are clipped, so that a table fits every size. The
    table has 2 · max_offset + 1 rows.

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
    across = _offset_vectors(queries.shape[-2], columns)
    down = _offset_vectors(queries.shape[-3], rows)
    # q · (r + s) = q · r + q · s: one product per row offset and one per column offset are added,
    # instead of one per pair of cells.
    by_column = torch.einsum("...yxd,xwd->...yxw", queries, across)
    by_row = torch.einsum("...yxd,yud->...yxu", queries, down)
    scores = by_row.unsqueeze(-1) + by_column.unsqueeze(-2)
    return scores.flatten(-2).flatten(-3, -2)


def _offset_vectors(size: int, table: Float[Tensor, "r d"]) -> Float[Tensor, "size size d"]:
    if table.shape[0] % 2 == 0:
        raise ValueError(
            f"a table of relative positions must have an odd number of rows, got {table.shape[0]}"
        )
    return table[relative_position_index(size, table.shape[0] // 2, device=table.device)]
