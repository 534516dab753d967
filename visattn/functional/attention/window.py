"""Attention inside the windows of a grid, which may be shifted."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from visattn.functional.attention.softmax import attention


def window_attention(
    queries: Float[Tensor, "*b y x d"],
    keys: Float[Tensor, "*b y x d"],
    values: Float[Tensor, "*b y x e"],
    *,
    window: tuple[int, int],
    shift: tuple[int, int] = (0, 0),
    scale: float | None = None,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "*b y x e"], Float[Tensor, "*b y*x y*x"] | None]:
    """Return attention of each place to its own window of the grid.

    Windows tile the grid from its first place, or from `shift` places further on, with smaller
    windows before. Grids of any size do: the last windows are smaller, nothing is padded that
    could be attended to. With p places a window it takes n p (d + e) multiplications and n p
    numbers for the n = y x places, instead of n² (d + e) and n²; without weights the fused kernel
    keeps those numbers away. A window as large as the grid is full attention.

    Args:
        queries: What each place looks for.
        keys: What each place offers.
        values: What each place gives.
        window: Height and width of a window.
        shift: By how much windows are moved down and to the right; half a window in every second
            layer lets neighbors across a border meet. Not along an axis that one window covers.
        scale: Factor of the products; 1 / sqrt(d) if None.
        need_weights: Whether to lay the weights out over all pairs of places, n² numbers that are
            zero outside the windows.

    Raises:
        ValueError: If a window has no places, or a shift is negative or not below its window.

    Example:
        >>> x = torch.tensor([1.0, 3.0, 5.0, 7.0]).reshape(1, 4, 1)
        >>> zero = torch.zeros_like(x)
        >>> window_attention(zero, zero, x, window=(1, 2))[0].flatten()
        tensor([2., 2., 6., 6.])
        >>> window_attention(zero, zero, x, window=(1, 2), shift=(0, 1))[0].flatten()
        tensor([1., 4., 4., 7.])

    Source:
        Liu et al. 2021, arXiv:2103.14030, section 3.2. Deviations: no bias of relative positions;
        places that fill up the last windows are masked.
    """
    grid = (queries.shape[-3], queries.shape[-2])
    places, mask = window_places(grid, window, shift, device=queries.device)
    seen, weights = attention(
        *(part.flatten(-3, -2)[..., places.clamp(min=0), :] for part in (queries, keys, values)),
        mask=mask,
        scale=scale,
        need_weights=need_weights,
    )
    slots = slots_of_places(places, grid[0] * grid[1])
    seen = seen.flatten(-3, -2)[..., slots, :].reshape(values.shape)
    if weights is None:
        return seen, None
    rows = weights.flatten(-3, -2)[..., slots, :]
    return seen, weights_over_keys(rows, places[slots // places.shape[1]], slots.shape[0])


def window_places(
    grid: tuple[int, int],
    window: tuple[int, int],
    shift: tuple[int, int] = (0, 0),
    *,
    device: torch.device | None = None,
) -> tuple[Int[Tensor, "w p"], Bool[Tensor, "w p p"] | None]:
    """Return the places that each of w windows of p slots holds, and which may see which.

    Shifted windows run over the edge and hold what lies on the far side, so that there are no more
    of them; the mask keeps the two apart.

    Args:
        grid: Height and width of the grid.
        window: Height and width of a window.
        shift: By how much windows are moved down and to the right.
        device: Where the numbers are needed.

    Returns:
        Places counted row by row, -1 for a slot without any, and the mask (True = may attend), or
        None if all slots of a window may see each other.

    Raises:
        ValueError: If a window has no places, or a shift is negative or not below its window.

    Example:
        >>> window_places((1, 3), (1, 2), (0, 1))[0]
        tensor([[ 1,  2], [-1,  0]])
    """
    rows, bands = _line_of_windows(grid[0], window[0], shift[0], device)
    columns, strips = _line_of_windows(grid[1], window[1], shift[1], device)
    places = _crossed(rows, columns, grid[1])
    if places.numel() == grid[0] * grid[1] and shift == (0, 0):
        return places, None
    pieces = _crossed(bands, strips, grid[1] + 1)
    same = pieces.unsqueeze(-1) == pieces.unsqueeze(-2)
    return places, same & (places >= 0).unsqueeze(-2)


def filled_windows(
    grid: tuple[int, int],
    window: tuple[int, int],
    shift: tuple[int, int] = (0, 0),
    *,
    device: torch.device | None = None,
) -> tuple[Int[Tensor, "w p"], Bool[Tensor, "w p p"] | None]:
    """Return the places of windows that are filled up with empty slots, which may be seen too.

    The grid is first turned by the shift, so that its first rows and columns come last, then filled
    up behind them, then cut into windows. In the last windows of a row or a column the last `shift`
    slots are kept apart from those before: these are the places that came round, or, where slots
    are empty, some of them only. On grids that windows tile this is `window_places`.

    Args:
        grid: Height and width of the grid.
        window: Height and width of a window, which may be larger than the grid.
        shift: By how much windows are moved down and to the right.
        device: Where the numbers are needed.

    Returns:
        Places counted row by row, -1 for an empty slot, and the mask (True = may attend), or None
        if all slots of a window may see each other.

    Raises:
        ValueError: If a window has no places, or a shift is negative or not below its window.

    Example:
        >>> places, mask = filled_windows((1, 3), (1, 2), (0, 1))
        >>> places, mask[1]
        (tensor([[ 1,  2], [ 0, -1]]), tensor([[ True, False], [False,  True]]))

    Source:
        Liu et al. 2021, arXiv:2103.14030, section 3.2 and figure 4; in what order a grid is turned
        and filled up, and where it is parted then, the paper leaves open: as in timm.
    """
    rows, bands = _filled_line(grid[0], window[0], shift[0], device)
    columns, strips = _filled_line(grid[1], window[1], shift[1], device)
    places = _crossed(rows, columns, grid[1])
    if shift == (0, 0):
        return places, None
    pieces = _crossed(bands, strips, 2)
    return places, pieces.unsqueeze(-1) == pieces.unsqueeze(-2)


def slots_of_places(places: Int[Tensor, "w p"], count: int) -> Int[Tensor, " {count}"]:
    """Return the slot, counted window by window, in which each place of the grid lies.

    Args:
        places: Those that the slots of each window hold, each once; -1 for none.
        count: How many places there are.

    Example:
        >>> slots_of_places(window_places((1, 3), (1, 2), (0, 1))[0], 3)
        tensor([3, 0, 1])
    """
    return places.flatten().argsort()[places.numel() - count :]


def weights_over_keys(
    weights: Float[Tensor, "*b n p"], places: Int[Tensor, "n p"], count: int
) -> Float[Tensor, "*b n {count}"]:
    """Return weights of each query over its own p keys as weights over all keys.

    Args:
        weights: Zero where there is no key.
        places: Which keys they belong to; below zero where there is none.
        count: How many keys there are in all.

    Example:
        >>> weights_over_keys(torch.tensor([[0.25, 0.75]]), torch.tensor([[2, 0]]), 3)
        tensor([[0.7500, 0.0000, 0.2500]])
    """
    empty = weights.new_zeros((*weights.shape[:-1], count))
    return empty.scatter_add(-1, places.clamp(min=0).expand(weights.shape), weights)


def check_window(window: int, shift: int) -> None:
    """Let a side of a window pass that has places and is moved by less than its size.

    Raises:
        ValueError: If it has no places, or the shift is negative or not below it.

    Example:
        >>> check_window(3, 2)
    """
    if window < 1 or not 0 <= shift < window:
        raise ValueError(
            "a window must have at least one place and be moved by less than its size and not "
            f"backwards, got window {window} and shift {shift}"
        )


def _line_of_windows(
    size: int, window: int, shift: int, device: torch.device | None
) -> tuple[Int[Tensor, "w p"], Int[Tensor, "w p"]]:
    """Return the places of a line in its windows, -1 for none, and the piece each belongs to."""
    check_window(window, shift)
    if window >= size:
        window, shift = size, 0
    filled = -(-size // window) * window
    places = (torch.arange(filled, device=device) + shift) % filled
    pieces = torch.div(places - shift, window, rounding_mode="floor") + 1
    places = torch.where(places < size, places, -1)
    return places.reshape(-1, window), pieces.reshape(-1, window)


def _filled_line(
    size: int, window: int, shift: int, device: torch.device | None
) -> tuple[Int[Tensor, "w p"], Int[Tensor, "w p"]]:
    """Return the places of a line that is filled up when turned, and 1 for its last `shift`."""
    check_window(window, shift)
    filled = -(-size // window) * window
    slots = torch.arange(filled, device=device)
    places = torch.where(slots < size, (slots + shift) % size, -1)
    last = (slots >= filled - shift).long()
    return places.reshape(-1, window), last.reshape(-1, window)


def _crossed(
    rows: Int[Tensor, "v q"], columns: Int[Tensor, "u r"], step: int
) -> Int[Tensor, "v*u q*r"]:
    """Return numbers of rows and columns as those of cells, -1 where one of the two has none."""
    down, right = rows[:, None, :, None], columns[None, :, None, :]
    cells = torch.where((down >= 0) & (right >= 0), down * step + right, -1)
    return cells.flatten(2).flatten(0, 1)


def unrolled_windows(
    weights: Float[Tensor, "b h w p p"],
    places: Int[Tensor, "w p"],
    count: int,
    rows: slice | list[int] | None = None,
) -> Float[Tensor, "b h r {count}"]:
    """Return weights inside windows as weights over all tokens, 0 outside of the window.

    A row sums to less than 1 where empty slots of its window took a share.

    Args:
        weights: Of the slots of each window over the slots of the same window.
        places: Which token each slot holds, each token once; -1 for none.
        count: How many tokens there are.
        rows: Whose rows are wanted; None for all.

    Example:
        >>> halves = torch.full((1, 1, 2, 2, 2), 0.5)
        >>> unrolled_windows(halves, torch.tensor([[1, 2], [-1, 0]]), 3)[0, 0]
        tensor([[0.5000, 0.0000, 0.0000],
                [0.0000, 0.5000, 0.5000],
                [0.0000, 0.5000, 0.5000]])

    Source:
        Liu et al. 2021, arXiv:2103.14030, section 3.2.
    """
    weights = weights.masked_fill((places < 0).unsqueeze(1), 0.0)
    slots = slots_of_places(places, count)
    slots = slots if rows is None else slots[rows]
    own = weights.flatten(2, 3)[:, :, slots]
    return weights_over_keys(own, places[slots // places.shape[1]], count)


def rolled_windows(
    laid: Float[Tensor, "b h n n"],
    weights: Float[Tensor, "b h w p p"],
    places: Int[Tensor, "w p"],
) -> Float[Tensor, "b h w p p"]:
    """Return weights over all tokens as weights inside windows, which `unrolled_windows` undoes.

    Args:
        laid: Over all tokens.
        weights: Inside windows; those of empty slots are taken from here.
        places: Which token each slot holds, each token once; -1 for none.

    Example:
        >>> places = torch.tensor([[1, 2], [-1, 0]])
        >>> weights = torch.rand(1, 1, 2, 2, 2)
        >>> torch.equal(rolled_windows(unrolled_windows(weights, places, 3), weights, places),
        ...     weights)
        True
    """
    known = places.clamp(min=0)
    rows = laid[:, :, known.flatten()].reshape(*weights.shape[:4], laid.shape[3])
    own = rows.gather(-1, known.unsqueeze(1).expand(weights.shape))
    held = places >= 0
    return torch.where(held.unsqueeze(-1) & held.unsqueeze(-2), own, weights)
