"""Neighborhood attention: each position of a grid attends to the positions around it."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from visattn.functional.attention.softmax import dot_product_attention
from visattn.functional.attention.window import scatter_weights


def neighborhood_attention(
    queries: Float[Tensor, "*b y x d"],
    keys: Float[Tensor, "*b y x d"],
    values: Float[Tensor, "*b y x e"],
    *,
    kernel_size: tuple[int, int],
    scale: float | None = None,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "*b y x e"], Float[Tensor, "*b y*x y*x"] | None]:
    """Return attention of each position to its neighborhood.

    All neighborhoods have the same size: near a border they shift inwards. With p positions per
    neighborhood this takes n p (d + e) multiplications and n p (d + e) numbers for n = y x
    positions; full attention takes n² (d + e) multiplications. A neighborhood as large as the grid
    is full attention.

    Args:
        queries: Query of each position.
        keys: Key of each position.
        values: Value of each position.
        kernel_size: Height and width of a neighborhood, both odd; limited to the grid.
        scale: Factor of the dot products; 1 / sqrt(d) if None.
        need_weights: Whether to return dense weights over all pairs of positions, n² numbers that
            are zero outside the neighborhoods; if not, a fused kernel is used.

    Raises:
        ValueError: If the kernel size is not odd.

    Example:
        >>> x = torch.tensor([0.0, 3.0, 6.0, 9.0]).reshape(1, 4, 1)
        >>> zero = torch.zeros_like(x)
        >>> neighborhood_attention(zero, zero, x, kernel_size=(1, 3))[0].flatten()
        tensor([3., 3., 6., 6.])

    Source:
        Hassani et al. 2023, arXiv:2204.07143, equations 1 to 3. Deviation: no relative position
        bias.
    """
    grid = (queries.shape[-3], queries.shape[-2])
    indices = neighborhood_indices(grid, kernel_size, device=queries.device)
    output, weights = dot_product_attention(
        queries.flatten(-3, -2).unsqueeze(-2),
        *(part.flatten(-3, -2)[..., indices, :] for part in (keys, values)),
        scale=scale,
        need_weights=need_weights,
    )
    output = output.reshape(values.shape)
    if weights is None:
        return output, None
    return output, scatter_weights(weights.squeeze(-2), indices, indices.shape[0])


def neighborhood_indices(
    grid: tuple[int, int], kernel_size: tuple[int, int], *, device: torch.device | None = None
) -> Int[Tensor, "n p"]:
    """Return the row-major indices of the p neighbors of each of the n positions of a grid.

    Args:
        grid: Height and width of the grid.
        kernel_size: Height and width of a neighborhood, both odd; limited to the grid.
        device: Device of the result.

    Raises:
        ValueError: If the kernel size is not odd.

    Example:
        >>> neighborhood_indices((1, 4), (1, 3))
        tensor([[0, 1, 2], [0, 1, 2], [1, 2, 3], [1, 2, 3]])
    """
    check_odd_kernel(kernel_size)
    rows = _neighbor_axis(grid[0], kernel_size[0], device)
    columns = _neighbor_axis(grid[1], kernel_size[1], device)
    indices = rows[:, None, :, None] * grid[1] + columns[None, :, None, :]
    return indices.flatten(2).flatten(0, 1)


def check_odd_kernel(kernel_size: tuple[int, int]) -> None:
    """Check the kernel size of a neighborhood.

    Raises:
        ValueError: If a side is even or below 1.

    Example:
        >>> check_odd_kernel((3, 5))
    """
    if min(kernel_size) < 1 or kernel_size[0] % 2 == 0 or kernel_size[1] % 2 == 0:
        raise ValueError(
            f"both sides of a neighborhood must be odd, got {kernel_size[0]} x {kernel_size[1]}"
        )


def _neighbor_axis(size: int, kernel: int, device: torch.device | None) -> Int[Tensor, "size p"]:
    length = min(kernel, size)
    first = (torch.arange(size, device=device) - kernel // 2).clamp(0, size - length)
    return first.unsqueeze(-1) + torch.arange(length, device=device)
