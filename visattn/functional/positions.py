"""Positions: sines and cosines, learned embeddings."""

import torch
from jaxtyping import Float
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
