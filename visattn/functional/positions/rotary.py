"""Rotary position embedding (RoPE) for two-dimensional grids."""

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.functional.positions.sincos import inverse_frequencies


def rotary_cos_sin(
    grid: tuple[int, int],
    head_dim: int,
    *,
    temperature: float = 100.0,
    device: torch.device | None = None,
) -> tuple[Float[Tensor, "n {head_dim}//2"], Float[Tensor, "n {head_dim}//2"]]:
    """Return cosines and sines of the axial rotation angles of the cells of a grid.

    The first half of the head_dim / 2 channel pairs is rotated by the row, the second half by the
    column, with frequencies from 1 down to about 1 / temperature.

    Args:
        grid: Height and width of the grid.
        head_dim: Dimension of a head.
        temperature: Inverse of the lowest frequency, approximately.
        device: Device of the result.

    Raises:
        ValueError: If the head dimension is not divisible by 4.

    Example:
        >>> cosines, sines = rotary_cos_sin((1, 2), 4)
        >>> sines
        tensor([[0.0000, 0.0000], [0.0000, 0.8415]])

    Source:
        Su et al. 2021, arXiv:2104.09864, equation 15, for one axis; Heo et al. 2024,
        arXiv:2403.13298, equation 6, for two.
    """
    if head_dim < 4 or head_dim % 4:
        raise ValueError(
            f"rotary embeddings need a head dimension divisible by 4, got {head_dim}; change "
            "num_heads or embed_dim"
        )
    frequencies = inverse_frequencies(head_dim // 4, temperature, device)
    rows, columns = (torch.arange(size, device=device)[:, None] * frequencies for size in grid)
    shape = (*grid, head_dim // 4)
    angles = torch.cat((rows[:, None].expand(shape), columns[None].expand(shape)), -1)
    angles = angles.flatten(0, 1)
    return angles.cos(), angles.sin()


def apply_rotary(
    x: Float[Tensor, "*b n d"],
    cosines: Float[Tensor, "*#b n d//2"],
    sines: Float[Tensor, "*#b n d//2"],
) -> Float[Tensor, "*b n d"]:
    """Rotate each pair of channels by its angle.

    The dot product of two rotated vectors depends on the difference of their angles only. The
    computation runs in the wider dtype; the result has the dtype of x.

    Example:
        >>> quarter = torch.tensor([[0.0]]), torch.tensor([[1.0]])
        >>> apply_rotary(torch.tensor([[2.0, 3.0]]), *quarter)
        tensor([[-3., 2.]])
    """
    even, odd = x[..., 0::2], x[..., 1::2]
    rotated = (even * cosines - odd * sines, odd * cosines + even * sines)
    return torch.stack(rotated, -1).flatten(-2).to(x.dtype)
