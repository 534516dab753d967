"""Positions of the cells of a grid as vectors, for grids of any size."""

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import interpolate

Rule = Literal["timm", "plain", "dino"]


def sine_positions(
    grid: tuple[int, int],
    width: int,
    *,
    base: float = 10000.0,
    device: torch.device | None = None,
) -> Float[Tensor, "n {width}"]:
    """Return a vector for each cell of a grid, row by row, that nobody has to learn.

    The first half of a vector tells the row, the second the column: each with the sines and then
    the cosines of the cell's number times width / 4 frequencies, from 1 down towards 1 / base.

    Args:
        grid: Height and width of the grid.
        width: Of a vector.
        base: What the lowest frequency is nearly one over.
        device: Where the numbers are needed.

    Raises:
        ValueError: If four does not divide the width.

    Example:
        >>> sine_positions((1, 2), 4)
        tensor([[0.0000, 1.0000, 0.0000, 1.0000],
                [0.0000, 1.0000, 0.8415, 0.5403]])

    Source:
        Chen et al. 2021, arXiv:2104.02057, appendix; Vaswani et al. 2017, arXiv:1706.03762,
        section 3.5, for one axis.
    """
    if width < 4 or width % 4:
        raise ValueError(f"sine positions need a width that 4 divides, got {width}")
    frequencies = falling_frequencies(width // 4, base, device)
    rows, columns = (_waves(size, frequencies) for size in grid)
    spread = (*grid, width // 2)
    both = torch.cat((rows[:, None].expand(spread), columns[None].expand(spread)), -1)
    return both.flatten(0, 1)


def falling_frequencies(
    count: int, base: float, device: torch.device | None = None
) -> Float[Tensor, " {count}"]:
    """Return frequencies that fall by one factor, from 1 to just above 1 / base.

    Example:
        >>> falling_frequencies(2, 100.0)
        tensor([1.0000, 0.1000])
    """
    return base ** (-torch.arange(count, device=device, dtype=torch.float32) / count)


def resampled_positions(
    positions: Float[Tensor, "n c"],
    grid: tuple[int, int],
    new: tuple[int, int],
    *,
    rule: Rule = "timm",
) -> Float[Tensor, "m c"]:
    """Return learnt positions of one grid for the cells of another that covers the same image.

    Args:
        positions: Of the cells, row by row.
        grid: Height and width of the grid that they were learnt on.
        new: Height and width of the grid that they are wanted for.
        rule: `timm` is bicubic and averages where the grid grows coarser; `plain` is bicubic
            without averaging, as in Hugging Face's ViT; `dino` is `plain` with a tenth of a cell
            added to the new size, as in DINO and DINOv2 without registers.

    Raises:
        ValueError: If the rule is unknown or the positions do not fit their grid.

    Example:
        >>> resampled_positions(torch.tensor([[1.0], [3.0]]), (2, 1), (2, 1))
        tensor([[1.], [3.]])
    """
    if rule not in get_args(Rule):
        raise ValueError(f"rule must be one of {', '.join(get_args(Rule))}, got {rule!r}")
    if positions.shape[0] != grid[0] * grid[1]:
        raise ValueError(
            f"there must be a position for each cell of the grid of {grid[0]} x {grid[1]}, "
            f"got {positions.shape[0]}"
        )
    laid = positions.float().reshape(*grid, -1).permute(2, 0, 1).unsqueeze(0)
    if rule == "dino":
        growth = [(to + 0.1) / size for to, size in zip(new, grid, strict=True)]
        laid = interpolate(laid, scale_factor=growth, mode="bicubic")
    else:
        laid = interpolate(laid, size=new, mode="bicubic", antialias=rule == "timm")
    return laid[0].flatten(1).mT.to(positions.dtype)


def _waves(size: int, frequencies: Float[Tensor, " f"]) -> Float[Tensor, "{size} w"]:
    places = torch.arange(size, device=frequencies.device, dtype=torch.float32)
    angles = places[:, None] * frequencies
    return torch.cat((angles.sin(), angles.cos()), -1)
