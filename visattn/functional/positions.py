"""Positions: sines and cosines."""

import torch
from jaxtyping import Float
from torch import Tensor


def sincos_pos_embed(
    grid: tuple[int, int], embed_dim: int, *, device: torch.device | None = None
) -> Float[Tensor, "n {embed_dim}"]:
    """Return 2D sine-cosine position embeddings of the cells of a grid, row by row.

    The first half of a vector encodes the row, the second the column: sines and then cosines at
    embed_dim / 4 frequencies from 1 down to about 1 / 10,000.

    Args:
        grid: Height and width of the grid.
        embed_dim: Dimension of the embedding, a multiple of 4.
        device: Device of the result.

    Example:
        >>> sincos_pos_embed((1, 2), 4)
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.0000, 1.0000, 0.8415, 0.5403]])

    Source:
        Chen et al. 2021, arXiv:2104.02057, appendix; Vaswani et al. 2017, arXiv:1706.03762,
        section 3.5, for one axis.
    """
    frequencies = inverse_frequencies(embed_dim // 4, 10000.0, device)
    angles = (torch.arange(n, device=device)[:, None] * frequencies for n in grid)
    rows, columns = (torch.cat((angle.sin(), angle.cos()), -1) for angle in angles)
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
