"""Local attention: tokens of windows and of neighborhoods."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from visattn.functional.attention import dot_product_attention


def random_token_indices(
    num_images: int, num_tokens: int, num_kept: int, *, device: torch.device | None = None
) -> Int[Tensor, "{num_images} {num_kept}"]:
    """Return sorted indices of a uniformly random subset of the tokens of each image.

    Raises:
        ValueError: If `num_kept` is not between 1 and `num_tokens`.

    Example:
        >>> random_token_indices(1, 3, 3)
        tensor([[0, 1, 2]])
    """
    if not 1 <= num_kept <= num_tokens:
        raise ValueError(f"num_kept must be from 1 to {num_tokens}, got {num_kept}")
    indices = torch.rand(num_images, num_tokens, device=device).topk(num_kept, dim=-1).indices
    return indices.sort(-1).values


def scatter_kept_weights(
    weights: Float[Tensor, "b *axes m"],
    kept_indices: Int[Tensor, "b _"],
    *,
    num_tokens: int,
    num_prefix_tokens: int = 0,
) -> Float[Tensor, "b *axes {num_tokens}"]:
    """Return weights over kept tokens as weights over all tokens; NaN for dropped tokens.

    Args:
        kept_indices: Indices of the kept tokens of each image, not counting prefix tokens.
        num_prefix_tokens: Leading tokens that are never dropped.

    Example:
        >>> scatter_kept_weights(torch.tensor([[0.25, 0.75]]), torch.tensor([[1]]), num_tokens=3,
        ...     num_prefix_tokens=1)
        tensor([[0.2500,    nan, 0.7500]])
    """
    always = torch.arange(num_prefix_tokens, device=kept_indices.device).expand(
        kept_indices.shape[0], -1
    )
    places = torch.cat((always, kept_indices + num_prefix_tokens), 1)
    places = places.view(kept_indices.shape[0], *(1,) * (weights.ndim - 2), -1).expand(
        weights.shape
    )
    empty = weights.new_full((*weights.shape[:-1], num_tokens), torch.nan)
    return empty.scatter(-1, places, weights)


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


def window_attention(
    queries: Float[Tensor, "*b y x d"],
    keys: Float[Tensor, "*b y x d"],
    values: Float[Tensor, "*b y x e"],
    *,
    window_size: tuple[int, int],
    shift_size: tuple[int, int] = (0, 0),
    scale: float | None = None,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "*b y x e"], Float[Tensor, "*b y*x y*x"] | None]:
    """Return attention of each position to the positions of its window.

    Windows tile the grid from its first position plus the shift. Grids of any size work: windows at
    the border are smaller and padding is masked. With p positions per window this takes n p (d + e)
    multiplications and n p weights for n = y x positions, instead of n² (d + e) and n²; without
    weights a fused kernel is used. A window as large as the grid is full attention.

    Args:
        queries: Query of each position.
        keys: Key of each position.
        values: Value of each position.
        window_size: Height and width of a window.
        shift_size: Shift of the windows down and to the right; half a window in every second layer
            connects neighboring windows. Ignored along an axis that one window covers.
        scale: Factor of the dot products; 1 / sqrt(d) if None.
        need_weights: Whether to return dense weights over all pairs of positions, n² numbers that
            are zero outside the windows.

    Raises:
        ValueError: If a window is empty, or a shift is negative or not below the window size.

    Example:
        >>> x = torch.tensor([1.0, 3.0, 5.0, 7.0]).reshape(1, 4, 1)
        >>> zero = torch.zeros_like(x)
        >>> window_attention(zero, zero, x, window_size=(1, 2))[0].flatten()
        tensor([2., 2., 6., 6.])
        >>> window_attention(zero, zero, x, window_size=(1, 2), shift_size=(0, 1))[0].flatten()
        tensor([1., 4., 4., 7.])

    Source:
        Liu et al. 2021, arXiv:2103.14030, section 3.2. Deviations: no relative position bias;
        padding of the last windows is masked.
    """
    grid = (queries.shape[-3], queries.shape[-2])
    indices, mask = window_indices(grid, window_size, shift_size, device=queries.device)
    output, weights = dot_product_attention(
        *(
            tensor.flatten(-3, -2)[..., indices.clamp(min=0), :]
            for tensor in (queries, keys, values)
        ),
        mask=mask,
        scale=scale,
        need_weights=need_weights,
    )
    slots = window_slots(indices, grid[0] * grid[1])
    output = output.flatten(-3, -2)[..., slots, :].reshape(values.shape)
    if weights is None:
        return output, None
    rows = weights.flatten(-3, -2)[..., slots, :]
    return output, scatter_weights(rows, indices[slots // indices.shape[1]], slots.shape[0])


def window_indices(
    grid: tuple[int, int],
    window_size: tuple[int, int],
    shift_size: tuple[int, int] = (0, 0),
    *,
    device: torch.device | None = None,
) -> tuple[Int[Tensor, "w p"], Bool[Tensor, "w p p"] | None]:
    """Return the positions in the p slots of each of w windows, and the attention mask.

    Shifted windows wrap around the border of the grid, so that their number stays the same; the
    mask separates positions from opposite borders.

    Returns:
        Row-major position of each slot, -1 for padding, and the mask (True = may attend), or None
        if all slots of a window may attend to each other.

    Raises:
        ValueError: If a window is empty, or a shift is negative or not below the window size.

    Example:
        >>> window_indices((1, 3), (1, 2), (0, 1))[0]
        tensor([[ 1,  2], [-1,  0]])
    """
    rows, row_regions = _window_axis(grid[0], window_size[0], shift_size[0], device)
    columns, column_regions = _window_axis(grid[1], window_size[1], shift_size[1], device)
    indices = _combine_axes(rows, columns, grid[1])
    if indices.numel() == grid[0] * grid[1] and shift_size == (0, 0):
        return indices, None
    # Regions are numbered up to the count of windows, at most that of columns: no two pairs of them
    # get one number.
    regions = _combine_axes(row_regions, column_regions, grid[1] + 1)
    same_region = regions.unsqueeze(-1) == regions.unsqueeze(-2)
    return indices, same_region & (indices >= 0).unsqueeze(-2)


def padded_window_indices(
    grid: tuple[int, int],
    window_size: tuple[int, int],
    shift_size: tuple[int, int] = (0, 0),
    *,
    device: torch.device | None = None,
) -> tuple[Int[Tensor, "w p"], Bool[Tensor, "w p p"] | None]:
    """Return the positions of windows on a padded grid, whose padding may be attended to.

    As in timm the grid is rolled by the shift, padded at the end and partitioned. In the last
    windows the mask separates the last `shift_size` slots from those before; with padding these are
    only some of the positions that wrapped around. On grids that windows tile this equals
    `window_indices`. The windows may be larger than the grid.

    Returns:
        Row-major position of each slot, -1 for padding, and the mask (True = may attend), or None
        if all slots of a window may attend to each other.

    Raises:
        ValueError: If a window is empty, or a shift is negative or not below the window size.

    Example:
        >>> indices, mask = padded_window_indices((1, 3), (1, 2), (0, 1))
        >>> indices, mask[1]
        (tensor([[ 1,  2], [ 0, -1]]), tensor([[ True, False], [False,  True]]))

    Source:
        Liu et al. 2021, arXiv:2103.14030, section 3.2 and figure 4. The paper leaves the order of
        rolling and padding open; it is that of timm.
    """
    rows, row_regions = _padded_window_axis(grid[0], window_size[0], shift_size[0], device)
    columns, column_regions = _padded_window_axis(grid[1], window_size[1], shift_size[1], device)
    indices = _combine_axes(rows, columns, grid[1])
    if shift_size == (0, 0):
        return indices, None
    regions = _combine_axes(row_regions, column_regions, 2)
    return indices, regions.unsqueeze(-1) == regions.unsqueeze(-2)


def window_slots(indices: Int[Tensor, "w p"], count: int) -> Int[Tensor, " {count}"]:
    """Return the slot of each position, counted window by window: the inverse of window indices.

    Indices of -1 are padding.

    Example:
        >>> window_slots(window_indices((1, 3), (1, 2), (0, 1))[0], 3)
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


def check_window(window_size: int, shift_size: int) -> None:
    """Check the size of a window along one axis, and its shift.

    Raises:
        ValueError: If the size is below 1, or the shift is negative or not below it.

    Example:
        >>> check_window(3, 2)
    """
    if window_size < 1 or not 0 <= shift_size < window_size:
        raise ValueError(
            "window_size must be at least 1, and shift_size at least 0 and below window_size; "
            f"got window_size={window_size}, shift_size={shift_size}"
        )


def _window_axis(
    size: int, window: int, shift: int, device: torch.device | None
) -> tuple[Int[Tensor, "w p"], Int[Tensor, "w p"]]:
    """Return the positions of one axis by window, -1 for padding, and the region of each."""
    # 7 positions in windows of 3, shifted by 1. Padding (-1) comes before the shift, so that it
    # wraps around with the positions; the region tells the two sides of the border apart.
    #
    #     positions   1 2 3 | 4 5 6 | -1 -1 0
    #     regions     1 1 1 | 2 2 2 |  3  3 0
    check_window(window, shift)
    if window >= size:
        window = size
        shift = 0
    padded = -(-size // window) * window
    positions = (torch.arange(padded, device=device) + shift) % padded
    regions = torch.div(positions - shift, window, rounding_mode="floor") + 1
    positions = torch.where(positions < size, positions, -1)
    return positions.reshape(-1, window), regions.reshape(-1, window)


def _padded_window_axis(
    size: int, window: int, shift: int, device: torch.device | None
) -> tuple[Int[Tensor, "w p"], Int[Tensor, "w p"]]:
    """Return the positions of one axis, rolled and padded, and 1 for its last `shift` slots."""
    # Here padding comes after the shift, behind what wrapped around, and the region marks as many
    # slots as were shifted. With padding these are other slots: position 0 is kept from the last
    # one only. The example of `_window_axis`, 7 positions:
    #
    #     positions   1 2 3 | 4 5 6 | 0 -1 -1
    #     regions     0 0 0 | 0 0 0 | 0  0  1
    check_window(window, shift)
    padded = -(-size // window) * window
    slots = torch.arange(padded, device=device)
    positions = torch.where(slots < size, (slots + shift) % size, -1)
    regions = (slots >= padded - shift).long()
    return positions.reshape(-1, window), regions.reshape(-1, window)


def _combine_axes(
    rows: Int[Tensor, "v q"], columns: Int[Tensor, "u r"], step: int
) -> Int[Tensor, "v*u q*r"]:
    """Return row-major cell indices from row and column indices; -1 if either is -1."""
    down = rows[:, None, :, None]
    right = columns[None, :, None, :]
    cells = torch.where((down >= 0) & (right >= 0), down * step + right, -1)
    return cells.flatten(2).flatten(0, 1)


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
