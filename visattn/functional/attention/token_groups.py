"""Attention within groups of tokens: windows or neighborhoods, with prefix tokens in all groups."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from visattn.functional.attention.neighborhood import check_odd_kernel
from visattn.functional.attention.softmax import dot_product_attention
from visattn.functional.attention.window import window_indices


class TokenGroups(NamedTuple):
    """Queries and keys of w groups of tokens.

    Prefix tokens, such as a class token, come before the tokens of the grid. They are keys of every
    group, and their queries attend to all tokens.
    """

    queries: Int[Tensor, "w q"]
    """Tokens of the grid that are queries, each once; -1 is padding."""
    keys: Int[Tensor, "w m"]
    """Tokens to which they may attend; -1 is padding."""
    mask: Bool[Tensor, "w q m"] | None
    """True = may attend; None if all queries of a group may attend to all its keys."""
    num_prefix_tokens: int
    """Number of tokens before the grid."""
    exclude_self: bool = False
    """Whether no token may attend to itself, prefix tokens included."""


def window_groups(
    grid: tuple[int, int],
    window_size: tuple[int, int],
    shift_size: tuple[int, int] = (0, 0),
    *,
    num_prefix_tokens: int = 0,
    device: torch.device | None = None,
) -> TokenGroups:
    """Return the windows of a grid as groups; see `window_indices`.

    Args:
        grid: Height and width of the grid.
        window_size: Height and width of a window.
        shift_size: Shift of the windows down and to the right.
        num_prefix_tokens: Number of tokens before the grid.
        device: Device of the result.

    Raises:
        ValueError: If a window is empty, or a shift is negative or not below the window size.

    Example:
        >>> window_groups((1, 4), (1, 2), num_prefix_tokens=1).keys
        tensor([[0, 1, 2], [0, 3, 4]])
    """
    indices, mask = window_indices(grid, window_size, shift_size, device=device)
    return _add_prefix(indices, indices, mask, num_prefix_tokens)


def neighborhood_groups(
    grid: tuple[int, int],
    kernel_size: tuple[int, int],
    *,
    num_prefix_tokens: int = 0,
    device: torch.device | None = None,
) -> TokenGroups:
    """Return groups in which each cell of a grid attends to its neighborhood.

    The cells of a tile as large as a neighborhood form a group, and a mask selects the neighborhood
    of each within the union. This computes up to four times as many products as single
    neighborhoods, but copies each key four times instead of once per neighbor.

    Args:
        grid: Height and width of the grid.
        kernel_size: Height and width of a neighborhood, both odd; limited to the grid. Near a
            border it shifts inwards.
        num_prefix_tokens: Number of tokens before the grid.
        device: Device of the result.

    Raises:
        ValueError: If the kernel size is not odd.

    Example:
        >>> groups = neighborhood_groups((1, 4), (1, 3))
        >>> groups.queries, groups.keys
        (tensor([[ 0,  1,  2], [ 3, -1, -1]]), tensor([[0, 1, 2, 3], [0, 1, 2, 3]]))
        >>> groups.mask[0].int()
        tensor([[1, 1, 1, 0], [1, 1, 1, 0], [0, 1, 1, 1]], dtype=torch.int32)
    """
    check_odd_kernel(kernel_size)
    query_rows, key_rows, row_mask = _tile_axis(grid[0], kernel_size[0], device)
    query_columns, key_columns, column_mask = _tile_axis(grid[1], kernel_size[1], device)
    queries = query_rows[:, None, :, None] * grid[1] + query_columns[None, :, None, :]
    valid = (query_rows >= 0)[:, None, :, None] & (query_columns >= 0)[None, :, None, :]
    queries = torch.where(valid, queries, -1).flatten(2).flatten(0, 1)
    keys = (key_rows[:, None, :, None] * grid[1] + key_columns[None, :, None, :]).flatten(2)
    mask = row_mask[:, None, :, None, :, None] & column_mask[None, :, None, :, None, :]
    mask = mask.flatten(4).flatten(2, 3).flatten(0, 1)
    return _add_prefix(queries, keys.flatten(0, 1), mask, num_prefix_tokens)


def _tile_axis(
    size: int, kernel: int, device: torch.device | None
) -> tuple[Int[Tensor, "w t"], Int[Tensor, "w p"], Bool[Tensor, "w t p"]]:
    """Return the queries of each tile of an axis (-1: padding), their keys, and the mask."""
    tile = min(kernel, size)
    length = min(size, 2 * tile - 1)
    starts = torch.arange(0, size, tile, device=device).unsqueeze(1)
    queries = starts + torch.arange(tile, device=device)
    keys = (starts - kernel // 2).clamp(0, size - length)
    keys = keys + torch.arange(length, device=device)
    offset = keys.unsqueeze(1) - (queries - kernel // 2).clamp(0, size - tile).unsqueeze(2)
    return torch.where(queries < size, queries, -1), keys, (offset >= 0) & (offset < tile)


def _add_prefix(
    queries: Int[Tensor, "w q"],
    keys: Int[Tensor, "w p"],
    mask: Bool[Tensor, "w q p"] | None,
    num_prefix_tokens: int,
) -> TokenGroups:
    """Return groups of grid cells as groups of tokens, with the prefix tokens as keys of each."""
    prefix = torch.arange(num_prefix_tokens, device=keys.device).expand(keys.shape[0], -1)
    queries, keys = (
        torch.where(cells >= 0, cells + num_prefix_tokens, -1) for cells in (queries, keys)
    )
    if mask is not None:
        mask = torch.cat((mask.new_ones((*mask.shape[:2], num_prefix_tokens)), mask), -1)
    return TokenGroups(queries, torch.cat((prefix, keys), 1), mask, num_prefix_tokens)


def exclude_self(groups: TokenGroups) -> TokenGroups:
    """Return the groups in which no token may attend to itself.

    Example:
        >>> exclude_self(neighborhood_groups((1, 2), (1, 3))).mask
        tensor([[[False,  True], [ True, False]]])
    """
    other = groups.queries.unsqueeze(-1) != groups.keys.unsqueeze(-2)
    mask = other if groups.mask is None else groups.mask & other
    return groups._replace(mask=mask, exclude_self=True)


def grouped_attention(
    queries: Float[Tensor, "b h n d"],
    keys: Float[Tensor, "b h n d"],
    values: Float[Tensor, "b h n e"],
    groups: TokenGroups,
    *,
    bias: Float[Tensor, "h w q m"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "b h n e"]:
    """Return attention of each token to its group; prefix tokens attend to all tokens.

    With m keys per group this takes n m (d + e) multiplications, plus n (d + e) per prefix token. A
    single group of all tokens is full attention.

    Args:
        queries: Query of each token.
        keys: Key of each token.
        values: Value of each token.
        groups: Groups of tokens.
        bias: Added to the scaled dot products.
        scale: Factor of the dot products; 1 / sqrt(d) if None.

    Example:
        >>> x = torch.tensor([1.0, 3.0, 5.0, 7.0]).reshape(1, 1, 4, 1)
        >>> zero = torch.zeros_like(x)
        >>> grouped_attention(zero, zero, x, window_groups((1, 4), (1, 2))).flatten()
        tensor([2., 2., 6., 6.])
    """
    heads, width = queries.shape[1], values.shape[3]
    output, _ = dot_product_attention(
        _gather_groups(queries, groups.queries),
        _gather_groups(keys, groups.keys),
        _gather_groups(values, groups.keys),
        mask=None if groups.mask is None else groups.mask.repeat(heads, 1, 1),
        bias=None if bias is None else bias.flatten(0, 1),
        scale=scale,
    )
    slots = _query_slots(groups, queries.shape[2])
    output = output.reshape(-1, heads, groups.queries.numel(), width).index_select(2, slots)
    if not groups.num_prefix_tokens:
        return output
    rows = torch.arange(groups.num_prefix_tokens, device=queries.device)
    mask = _not_self(rows, queries.shape[2]) if groups.exclude_self else None
    prefix = dot_product_attention(
        queries[:, :, : groups.num_prefix_tokens], keys, values, mask=mask, scale=scale
    )[0]
    return torch.cat((prefix, output), 2)


def dense_mask_and_bias(
    groups: TokenGroups,
    rows: Int[Tensor, " r"],
    count: int,
    bias: Float[Tensor, "h w q m"] | None = None,
) -> tuple[Bool[Tensor, "r {count}"], Float[Tensor, "h r {count}"] | None]:
    """Return mask and bias of groups as dense rows over all tokens.

    Args:
        groups: Groups of tokens.
        rows: Query tokens whose rows are returned.
        count: Number of tokens.
        bias: Bias of each group.

    Example:
        >>> dense_mask_and_bias(window_groups((1, 4), (1, 2)), torch.tensor([2]), 4)[0]
        tensor([[False, False,  True,  True]])
    """
    num_prefix = groups.num_prefix_tokens
    slots = _query_slots(groups, count)[(rows - num_prefix).clamp(min=0)]
    group, slot = slots // groups.queries.shape[1], slots % groups.queries.shape[1]
    group_keys = groups.keys[group]
    valid = group_keys >= 0
    valid = valid if groups.mask is None else valid & groups.mask[group, slot]
    keys = group_keys.clamp(min=0)
    mask = torch.zeros(len(rows), count, dtype=torch.long, device=rows.device)
    mask = mask.scatter_add(1, keys, valid.long()) > 0
    prefix = (rows < num_prefix).unsqueeze(1)
    mask = torch.where(prefix, _not_self(rows, count) if groups.exclude_self else prefix, mask)
    if bias is None:
        return mask, None
    row_bias = bias[:, group, slot].masked_fill(~valid | prefix, 0.0)
    dense = row_bias.new_zeros((*row_bias.shape[:2], count))
    return mask, dense.scatter_add(2, keys.expand(row_bias.shape), row_bias)


def _not_self(rows: Int[Tensor, " r"], count: int) -> Bool[Tensor, "r {count}"]:
    return torch.arange(count, device=rows.device) != rows.unsqueeze(1)


def _gather_groups(
    part: Float[Tensor, "b h n d"], indices: Int[Tensor, "w p"]
) -> Float[Tensor, "b h*w p d"]:
    """Return the vectors of each group, by head and group."""
    gathered = part.index_select(2, indices.clamp(min=0).flatten())
    groups = part.shape[1] * indices.shape[0]
    return gathered.reshape(-1, groups, indices.shape[1], part.shape[3])


def _query_slots(groups: TokenGroups, count: int) -> Int[Tensor, " _"]:
    """Return the query slot of each token of the grid, counted group by group."""
    flat = groups.queries.flatten()
    return flat.argsort()[flat.numel() - (count - groups.num_prefix_tokens) :]
