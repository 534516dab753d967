"""Positions as rotations of queries and keys, so that their products depend on the offset alone."""

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.functional.positions.sincos import falling_frequencies


def grid_rotations(
    grid: tuple[int, int],
    width: int,
    *,
    base: float = 100.0,
    device: torch.device | None = None,
) -> tuple[Float[Tensor, "n {width}//2"], Float[Tensor, "n {width}//2"]]:
    """Return the cosines and the sines of the angles by which the cells of a grid are turned.

    Of the width / 2 pairs of channels the first half is turned by the number of the row, the second
    by that of the column, each times frequencies from 1 down towards 1 / base.

    Args:
        grid: Height and width of the grid.
        width: Of a head.
        base: What the lowest frequency is nearly one over.
        device: Where the numbers are needed.

    Raises:
        ValueError: If four does not divide the width of a head.

    Example:
        >>> cosines, sines = grid_rotations((1, 2), 4)
        >>> sines
        tensor([[0.0000, 0.0000], [0.0000, 0.8415]])

    Source:
        Su et al. 2021, arXiv:2104.09864, equation 15, for one axis; Heo et al. 2024,
        arXiv:2403.13298, equation 6, for two.
    """
    if width < 4 or width % 4:
        raise ValueError(
            f"rotations need heads of a width that 4 divides, got {width}; change the number of "
            "heads or the width"
        )
    frequencies = falling_frequencies(width // 4, base, device)
    rows, columns = (torch.arange(size, device=device)[:, None] * frequencies for size in grid)
    spread = (*grid, width // 4)
    angles = torch.cat((rows[:, None].expand(spread), columns[None].expand(spread)), -1)
    angles = angles.flatten(0, 1)
    return angles.cos(), angles.sin()


def rotated(
    x: Float[Tensor, "*b n d"],
    cosines: Float[Tensor, "*#b n d//2"],
    sines: Float[Tensor, "*#b n d//2"],
) -> Float[Tensor, "*b n d"]:
    """Return vectors of which each pair of channels is turned by an angle of its own.

    The product of two turned vectors depends on the difference of their angles. It is found in the
    wider of the types, and comes in that of x.

    Example:
        >>> quarter = torch.tensor([[0.0]]), torch.tensor([[1.0]])
        >>> rotated(torch.tensor([[2.0, 3.0]]), *quarter)
        tensor([[-3., 2.]])
    """
    even, odd = x[..., 0::2], x[..., 1::2]
    turned = (even * cosines - odd * sines, odd * cosines + even * sines)
    return torch.stack(turned, -1).flatten(-2).to(x.dtype)
