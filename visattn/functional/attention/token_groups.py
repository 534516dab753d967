"""Attention within groups of tokens: windows or neighborhoods, and tokens that belong to all."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from visattn.functional.attention.neighborhood import check_middle
from visattn.functional.attention.softmax import attention
from visattn.functional.attention.window import window_places


class TokenGroups(NamedTuple):
    """Who asks and who answers, in each of w groups; tokens of no cell come first, before the grid.

    Tokens before the grid are offered to every group, and ask everybody.
    """

    asking: Int[Tensor, "w q"]
    """Tokens of the grid, each once; -1 fills up a group."""
    offered: Int[Tensor, "w m"]
    """What they may look at; -1 fills up a group."""
    mask: Bool[Tensor, "w q m"] | None
    """True = may attend; None if all of a group may attend to all of it."""
    before: int
    """Tokens before the grid."""
    others: bool = False
    """Whether nobody may attend to itself, those before the grid included."""


def window_groups(
    grid: tuple[int, int],
    window: tuple[int, int],
    shift: tuple[int, int] = (0, 0),
    *,
    before: int = 0,
    device: torch.device | None = None,
) -> TokenGroups:
    """Return the windows of a grid as groups; `window_places` says how they lie.

    Args:
        grid: Height and width of the grid.
        window: Height and width of a window.
        shift: By how much windows are moved down and to the right.
        before: Tokens before the grid.
        device: Where the numbers are needed.

    Raises:
        ValueError: If a window has no places, or a shift is negative or not below its window.

    Example:
        >>> window_groups((1, 4), (1, 2), before=1).offered
        tensor([[0, 1, 2], [0, 3, 4]])
    """
    places, mask = window_places(grid, window, shift, device=device)
    return _grouped(places, places, mask, before)


def neighbor_groups(
    grid: tuple[int, int],
    kernel: tuple[int, int],
    *,
    before: int = 0,
    device: torch.device | None = None,
) -> TokenGroups:
    """Return groups in which each cell of a grid attends to those around it.

    Cells of a tile as large as a neighborhood ask together, and a mask gives each its own of what
    their neighborhoods hold in all. That is up to four times the products of cells one by one, but
    keys lie there four times and not once for each cell that they are near to.

    Args:
        grid: Height and width of the grid.
        kernel: Height and width of a neighborhood, both odd; cut down to the grid. Near an edge
            it moves inwards.
        before: Tokens before the grid.
        device: Where the numbers are needed.

    Raises:
        ValueError: If a neighborhood has no middle.

    Example:
        >>> groups = neighbor_groups((1, 4), (1, 3))
        >>> groups.asking, groups.offered
        (tensor([[ 0,  1,  2], [ 3, -1, -1]]), tensor([[0, 1, 2, 3], [0, 1, 2, 3]]))
        >>> groups.mask[0].int()
        tensor([[1, 1, 1, 0], [1, 1, 1, 0], [0, 1, 1, 1]], dtype=torch.int32)
    """
    check_middle(kernel)
    rows, lines, near = _line_of_tiles(grid[0], kernel[0], device)
    columns, strips, close = _line_of_tiles(grid[1], kernel[1], device)
    asking = rows[:, None, :, None] * grid[1] + columns[None, :, None, :]
    real = (rows >= 0)[:, None, :, None] & (columns >= 0)[None, :, None, :]
    asking = torch.where(real, asking, -1).flatten(2).flatten(0, 1)
    offered = (lines[:, None, :, None] * grid[1] + strips[None, :, None, :]).flatten(2)
    mask = near[:, None, :, None, :, None] & close[None, :, None, :, None, :]
    mask = mask.flatten(4).flatten(2, 3).flatten(0, 1)
    return _grouped(asking, offered.flatten(0, 1), mask, before)


def _line_of_tiles(
    size: int, kernel: int, device: torch.device | None
) -> tuple[Int[Tensor, "w t"], Int[Tensor, "w p"], Bool[Tensor, "w t p"]]:
    """Return the places of a line in tiles, -1 for none, what they see in all, and each of it."""
    tile = min(kernel, size)
    length = min(size, 2 * tile - 1)
    starts = torch.arange(0, size, tile, device=device).unsqueeze(1)
    asking = starts + torch.arange(tile, device=device)
    offered = (starts - kernel // 2).clamp(0, size - length)
    offered = offered + torch.arange(length, device=device)
    ahead = offered.unsqueeze(1) - (asking - kernel // 2).clamp(0, size - tile).unsqueeze(2)
    return torch.where(asking < size, asking, -1), offered, (ahead >= 0) & (ahead < tile)


def _grouped(
    asking: Int[Tensor, "w q"],
    offered: Int[Tensor, "w p"],
    mask: Bool[Tensor, "w q p"] | None,
    before: int,
) -> TokenGroups:
    always = torch.arange(before, device=offered.device).expand(offered.shape[0], -1)
    asking, offered = (torch.where(part >= 0, part + before, -1) for part in (asking, offered))
    if mask is not None:
        mask = torch.cat((mask.new_ones((*mask.shape[:2], before)), mask), -1)
    return TokenGroups(asking, torch.cat((always, offered), 1), mask, before)


def without_self(groups: TokenGroups) -> TokenGroups:
    """Return the groups in which no token may attend to itself.

    Example:
        >>> without_self(neighbor_groups((1, 2), (1, 3))).mask
        tensor([[[False,  True], [ True, False]]])
    """
    other = groups.asking.unsqueeze(-1) != groups.offered.unsqueeze(-2)
    mask = other if groups.mask is None else groups.mask & other
    return groups._replace(mask=mask, others=True)


def grouped_attention(
    queries: Float[Tensor, "b h n d"],
    keys: Float[Tensor, "b h n d"],
    values: Float[Tensor, "b h n e"],
    groups: TokenGroups,
    *,
    bias: Float[Tensor, "h w q m"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "b h n e"]:
    """Return attention of each token to its own group; those before the grid attend to all.

    With m tokens offered to each group it takes n m (d + e) multiplications, and for each token
    before the grid n (d + e). A group of all tokens is full attention.

    Args:
        queries: What each token looks for.
        keys: What each token offers.
        values: What each token gives.
        groups: Who may look at whom.
        bias: Added to the scaled products.
        scale: Factor of the products; 1 / sqrt(d) if None.

    Example:
        >>> x = torch.tensor([1.0, 3.0, 5.0, 7.0]).reshape(1, 1, 4, 1)
        >>> zero = torch.zeros_like(x)
        >>> grouped_attention(zero, zero, x, window_groups((1, 4), (1, 2))).flatten()
        tensor([2., 2., 6., 6.])
    """
    heads, width = queries.shape[1], values.shape[3]
    seen, _ = attention(
        _taken(queries, groups.asking),
        _taken(keys, groups.offered),
        _taken(values, groups.offered),
        mask=None if groups.mask is None else groups.mask.repeat(heads, 1, 1),
        bias=None if bias is None else bias.flatten(0, 1),
        scale=scale,
    )
    slots = _slots(groups, queries.shape[2])
    seen = seen.reshape(-1, heads, groups.asking.numel(), width).index_select(2, slots)
    if not groups.before:
        return seen
    asking = torch.arange(groups.before, device=queries.device)
    mask = _all_but_self(asking, queries.shape[2]) if groups.others else None
    first = attention(queries[:, :, : groups.before], keys, values, mask=mask, scale=scale)[0]
    return torch.cat((first, seen), 2)


def group_pairs(
    groups: TokenGroups,
    rows: Int[Tensor, " r"],
    count: int,
    bias: Float[Tensor, "h w q m"] | None = None,
) -> tuple[Bool[Tensor, "r {count}"], Float[Tensor, "h r {count}"] | None]:
    """Return which tokens some of all may attend to, and the bias of each pair.

    Args:
        groups: Who may look at whom.
        rows: The tokens that ask.
        count: How many tokens there are.
        bias: As it lies in the groups.

    Example:
        >>> group_pairs(window_groups((1, 4), (1, 2)), torch.tensor([2]), 4)[0]
        tensor([[False, False,  True,  True]])
    """
    before = groups.before
    slots = _slots(groups, count)[(rows - before).clamp(min=0)]
    group, slot = slots // groups.asking.shape[1], slots % groups.asking.shape[1]
    offered = groups.offered[group]
    real = offered >= 0
    real = real if groups.mask is None else real & groups.mask[group, slot]
    keys = offered.clamp(min=0)
    found = torch.zeros(len(rows), count, dtype=torch.long, device=rows.device)
    found = found.scatter_add(1, keys, real.long()) > 0
    first = (rows < before).unsqueeze(1)
    found = torch.where(first, _all_but_self(rows, count) if groups.others else first, found)
    if bias is None:
        return found, None
    told = bias[:, group, slot].masked_fill(~real | first, 0.0)
    laid = told.new_zeros((*told.shape[:2], count))
    return found, laid.scatter_add(2, keys.expand(told.shape), told)


def _all_but_self(rows: Int[Tensor, " r"], count: int) -> Bool[Tensor, "r {count}"]:
    return torch.arange(count, device=rows.device) != rows.unsqueeze(1)


def _taken(
    part: Float[Tensor, "b h n d"], places: Int[Tensor, "w p"]
) -> Float[Tensor, "b h*w p d"]:
    """Return the tokens of each group, for each head group by group."""
    taken = part.index_select(2, places.clamp(min=0).flatten())
    groups = part.shape[1] * places.shape[0]
    return taken.reshape(-1, groups, places.shape[1], part.shape[3])


def _slots(groups: TokenGroups, count: int) -> Int[Tensor, " _"]:
    """Return the slot, counted group by group, in which each token of the grid asks."""
    flat = groups.asking.flatten()
    return flat.argsort()[flat.numel() - (count - groups.before) :]
