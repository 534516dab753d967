"""Attention of each place of a grid to those around it."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from visattn.functional.attention.softmax import attention
from visattn.functional.attention.window import weights_over_keys


def neighborhood_attention(
    queries: Float[Tensor, "*b y x d"],
    keys: Float[Tensor, "*b y x d"],
    values: Float[Tensor, "*b y x e"],
    *,
    kernel: tuple[int, int],
    scale: float | None = None,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "*b y x e"], Float[Tensor, "*b y*x y*x"] | None]:
    """Return attention of each place to the places around it.

    All neighborhoods have one size: near an edge they move inwards, so that the place itself is
    no longer their middle. With p places in one it takes n p (d + e) multiplications and, since
    neighbors are laid out beside each place, n p (d + e) numbers for the n = y x places; full
    attention takes n² (d + e) multiplications. A neighborhood as large as the grid is full
    attention.

    Args:
        queries: What each place looks for.
        keys: What each place offers.
        values: What each place gives.
        kernel: Height and width of a neighborhood, both odd; cut down to the grid.
        scale: Factor of the products; 1 / sqrt(d) if None.
        need_weights: Whether to lay the weights out over all pairs of places, n² numbers that are
            zero outside the neighborhoods; if not, the fused kernel is used.

    Raises:
        ValueError: If a neighborhood has no middle.

    Example:
        >>> x = torch.tensor([0.0, 3.0, 6.0, 9.0]).reshape(1, 4, 1)
        >>> zero = torch.zeros_like(x)
        >>> neighborhood_attention(zero, zero, x, kernel=(1, 3))[0].flatten()
        tensor([3., 3., 6., 6.])

    Source:
        Hassani et al. 2023, arXiv:2204.07143, equations 1 to 3. Deviation: no bias of relative
        positions.
    """
    grid = (queries.shape[-3], queries.shape[-2])
    places = neighbor_places(grid, kernel, device=queries.device)
    seen, weights = attention(
        queries.flatten(-3, -2).unsqueeze(-2),
        *(part.flatten(-3, -2)[..., places, :] for part in (keys, values)),
        scale=scale,
        need_weights=need_weights,
    )
    seen = seen.reshape(values.shape)
    if weights is None:
        return seen, None
    return seen, weights_over_keys(weights.squeeze(-2), places, places.shape[0])


def neighbor_places(
    grid: tuple[int, int], kernel: tuple[int, int], *, device: torch.device | None = None
) -> Int[Tensor, "n p"]:
    """Return the p places around each of the n of a grid, all counted row by row.

    Args:
        grid: Height and width of the grid.
        kernel: Height and width of a neighborhood, both odd; cut down to the grid.
        device: Where the numbers are needed.

    Raises:
        ValueError: If a neighborhood has no middle.

    Example:
        >>> neighbor_places((1, 4), (1, 3))
        tensor([[0, 1, 2], [0, 1, 2], [1, 2, 3], [1, 2, 3]])
    """
    check_middle(kernel)
    rows = _line_of_neighbors(grid[0], kernel[0], device)
    columns = _line_of_neighbors(grid[1], kernel[1], device)
    places = rows[:, None, :, None] * grid[1] + columns[None, :, None, :]
    return places.flatten(2).flatten(0, 1)


def check_middle(kernel: tuple[int, int]) -> None:
    """Let a neighborhood pass that has a middle.

    Raises:
        ValueError: If one of its sides is even or below 1.

    Example:
        >>> check_middle((3, 5))
    """
    if min(kernel) < 1 or kernel[0] % 2 == 0 or kernel[1] % 2 == 0:
        raise ValueError(
            "both sides of a neighborhood must be odd, so that it has a middle, "
            f"got {kernel[0]} x {kernel[1]}"
        )


def _line_of_neighbors(
    size: int, kernel: int, device: torch.device | None
) -> Int[Tensor, "size p"]:
    length = min(kernel, size)
    first = (torch.arange(size, device=device) - kernel // 2).clamp(0, size - length)
    return first.unsqueeze(-1) + torch.arange(length, device=device)
