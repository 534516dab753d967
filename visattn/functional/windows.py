"""Local attention: tokens of windows and of neighborhoods."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from visattn.functional.attention import dot_product_attention


def diagonal_shifts(
    images: Float[Tensor, "b c y x"], offset: tuple[int, int]
) -> Float[Tensor, "b 5*c y x"]:
    """Return images with four diagonally shifted copies as additional channels.

    The copies are shifted down-right, down-left, up-right and up-left, with zero padding.

    Example:
        >>> dot = torch.zeros(1, 1, 3, 3)
        >>> dot[..., 1, 1] = 1
        >>> diagonal_shifts(dot, (1, 1))[0].nonzero()
        tensor([[0, 1, 1], [1, 2, 2], [2, 2, 0], [3, 0, 2], [4, 0, 0]])

    Source:
        Lee et al. 2021, arXiv:2112.13492, equation 6, and the authors' code: all four diagonals, by
        half a patch.
    """
    # Negative padding crops: each copy gains on one side what it loses on the other.
    down, right = offset
    moves = ((down, right), (down, -right), (-down, right), (-down, -right))
    copies = (pad(images, (dx, -dx, dy, -dy)) for dy, dx in moves)
    return torch.cat((images, *copies), 1)


def window_slots(indices: Int[Tensor, "w p"], count: int) -> Int[Tensor, " {count}"]:
    """Return the slot of each position, counted window by window: the inverse of window indices.

    Indices of -1 are padding.

    Example:
        >>> window_slots(torch.tensor([[1, 2], [-1, 0]]), 3)
        tensor([3, 0, 1])
    """
    # Padding is -1 and sorts to the front; behind it the slots follow in the order of positions.
    return indices.flatten().argsort()[indices.numel() - count :]


def scatter_weights(
    weights: Float[Tensor, "*b n p"], indices: Int[Tensor, "n p"], count: int
) -> Float[Tensor, "*b n {count}"]:
    """Return weights over p keys per query as dense weights over all keys.

    Negative indices are padding, whose weights are zero.

    Example:
        >>> scatter_weights(torch.tensor([[0.25, 0.75]]), torch.tensor([[2, 0]]), 3)
        tensor([[0.7500, 0.0000, 0.2500]])
    """
    # Padding has weight 0, so that it may be added to the cell 0 that the clamp turns it into.
    dense = weights.new_zeros((*weights.shape[:-1], count))
    return dense.scatter_add(-1, indices.clamp(min=0).expand(weights.shape), weights)


def window_weights_to_dense(
    weights: Float[Tensor, "b h w p p"],
    indices: Int[Tensor, "w p"],
    count: int,
    rows: slice | list[int] | None = None,
) -> Float[Tensor, "b h r {count}"]:
    """Return weights inside windows as dense weights over all tokens, 0 outside the window.

    A row sums to less than 1 if padding of its window received weight.

    Args:
        indices: Token of each slot, each token once; -1 for padding.
        rows: Tokens whose rows are returned; all if None.

    Example:
        >>> halves = torch.full((1, 1, 2, 2, 2), 0.5)
        >>> window_weights_to_dense(halves, torch.tensor([[1, 2], [-1, 0]]), 3)[0, 0]
        tensor([[0.5000, 0.0000, 0.0000],
                [0.0000, 0.5000, 0.5000],
                [0.0000, 0.5000, 0.5000]])

    Source:
        Liu et al. 2021, arXiv:2103.14030, section 3.2.
    """
    weights = weights.masked_fill((indices < 0).unsqueeze(1), 0.0)
    slots = window_slots(indices, count)
    slots = slots if rows is None else slots[rows]
    own = weights.flatten(2, 3)[:, :, slots]
    return scatter_weights(own, indices[slots // indices.shape[1]], count)


def dense_to_window_weights(
    dense: Float[Tensor, "b h n n"],
    weights: Float[Tensor, "b h w p p"],
    indices: Int[Tensor, "w p"],
) -> Float[Tensor, "b h w p p"]:
    """Return dense weights as weights inside windows: the inverse of `window_weights_to_dense`.

    Args:
        weights: Weights inside windows, used for padding.
        indices: Token of each slot, each token once; -1 for padding.

    Example:
        >>> indices = torch.tensor([[1, 2], [-1, 0]])
        >>> weights = torch.rand(1, 1, 2, 2, 2)
        >>> dense = window_weights_to_dense(weights, indices, 3)
        >>> torch.equal(dense_to_window_weights(dense, weights, indices), weights)
        True
    """
    tokens = indices.clamp(min=0)
    rows = dense[:, :, tokens.flatten()].reshape(*weights.shape[:4], dense.shape[3])
    own = rows.gather(-1, tokens.unsqueeze(1).expand(weights.shape))
    # Dense weights know nothing of padding slots: these keep the weights that they had.
    valid = indices >= 0
    return torch.where(valid.unsqueeze(-1) & valid.unsqueeze(-2), own, weights)


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
        *(tensor.flatten(-3, -2)[..., indices, :] for tensor in (keys, values)),
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

    The kernel has odd sides and is limited to the grid.

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
