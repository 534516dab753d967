"""Attention masks: boolean tensors of queries by keys in which True = may attend.

Masks are combined with `&` and `|`. Queries and keys are counted from 0.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Int
from torch import Tensor

CausalAlignment = Literal["upper_left", "lower_right"]
Device = torch.device | str | None


def length_mask(lengths: Int[Tensor, "*b"], num_keys: int) -> Bool[Tensor, "*b 1 keys"]:
    """Return the mask in which all queries attend to the first `lengths` keys.

    Raises:
        ValueError: If the number of keys is negative.

    Example:
        >>> length_mask(torch.tensor([2, 0]), 3).int()
        tensor([[[1, 1, 0]],
                [[0, 0, 0]]], dtype=torch.int32)
    """
    _check_not_negative(keys=num_keys)
    places = torch.arange(num_keys, device=lengths.device)
    return (places < lengths.unsqueeze(-1)).unsqueeze(-2)


def key_padding_to_mask(padding: Bool[Tensor, "*b m"]) -> Bool[Tensor, "*b 1 m"]:
    """Convert a `key_padding_mask` of `torch.nn.MultiheadAttention`, in which True = ignore.

    Its boolean `attn_mask` is converted by `~`.

    Example:
        >>> key_padding_to_mask(torch.tensor([[False, False, True]])).int()
        tensor([[[1, 1, 0]]], dtype=torch.int32)
    """
    return ~padding.unsqueeze(-2)


def causal_mask(
    num_queries: int,
    num_keys: int | None = None,
    *,
    alignment: CausalAlignment,
    device: Device = None,
) -> Bool[Tensor, "queries m"]:
    """Return a causal mask: no query attends to later keys.

    Args:
        alignment: `upper_left` aligns the first query with the first key, `lower_right` the last
            query with the last key, as with a cache of earlier keys.

    Raises:
        ValueError: If the alignment is unknown or a number is negative.

    Example:
        >>> causal_mask(2, 3, alignment="upper_left").int()
        tensor([[1, 0, 0],
                [1, 1, 0]], dtype=torch.int32)
        >>> causal_mask(2, 3, alignment="lower_right").int()
        tensor([[1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)
    """
    if alignment not in get_args(CausalAlignment):
        raise ValueError(f"alignment must be one of {get_args(CausalAlignment)}, got {alignment!r}")
    num_keys = num_queries if num_keys is None else num_keys
    offset = _relative_positions(num_queries, num_keys, device)
    return offset <= (num_keys - num_queries if alignment == "lower_right" else 0)


def band_mask(
    num_queries: int, num_keys: int | None = None, *, below: int, above: int, device: Device = None
) -> Bool[Tensor, "queries m"]:
    """Return a band mask: a query attends to its own position and nearby keys.

    Args:
        below: Keys before the position of the query.
        above: Keys after the position of the query.

    Raises:
        ValueError: If a number is negative.

    Example:
        >>> band_mask(3, below=1, above=0).int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [0, 1, 1]], dtype=torch.int32)
    """
    _check_not_negative(below=below, above=above)
    offset = _relative_positions(num_queries, num_keys, device)
    return (-below <= offset) & (offset <= above)


def block_mask(
    num_queries: int, num_keys: int | None = None, *, block_size: int, device: Device = None
) -> Bool[Tensor, "queries m"]:
    """Return a block-diagonal mask: a query attends to the keys of its own block.

    Raises:
        ValueError: If the block size is below 1 or another number is negative.

    Example:
        >>> block_mask(3, block_size=2).int()
        tensor([[1, 1, 0],
                [1, 1, 0],
                [0, 0, 1]], dtype=torch.int32)
    """
    _check_positive(size=block_size)
    query, key = _positions(num_queries, num_keys, device)
    return query // block_size == key // block_size


def dilated_mask(
    num_queries: int,
    num_keys: int | None = None,
    *,
    radius: int,
    dilation: int,
    device: Device = None,
) -> Bool[Tensor, "queries m"]:
    """Return a dilated sliding window: `radius` keys to each side, `dilation` positions apart.

    Raises:
        ValueError: If the dilation is below 1 or another number is negative.

    Example:
        >>> dilated_mask(5, radius=1, dilation=2)[2].int()
        tensor([1, 0, 1, 0, 1], dtype=torch.int32)

    Source:
        Beltagy et al. 2020, arXiv:2004.05150, section 3.1, dilated sliding window.
    """
    _check_positive(dilation=dilation)
    _check_not_negative(radius=radius)
    offset = _relative_positions(num_queries, num_keys, device)
    return (offset.abs() <= radius * dilation) & (offset % dilation == 0)


def strided_mask(length: int, *, stride: int, device: Device = None) -> Bool[Tensor, "places m"]:
    """Return the causal strided mask: the last `stride` positions and every stride-th before.

    With the image width as stride these are the previous row and the column. Both heads of the
    paper are combined in one mask.

    Raises:
        ValueError: If the stride is below 1 or the length is negative.

    Example:
        >>> strided_mask(6, stride=2)[5].int()
        tensor([0, 1, 0, 1, 1, 1], dtype=torch.int32)

    Source:
        Child et al. 2019, arXiv:1904.10509, section 4.3, strided attention.
    """
    _check_positive(stride=stride)
    offset = _relative_positions(length, None, device)
    return (offset <= 0) & ((offset >= -stride) | (offset % stride == 0))


def fixed_mask(
    length: int, *, block_size: int, num_summaries: int = 1, device: Device = None
) -> Bool[Tensor, "places m"]:
    """Return the causal fixed mask: the own block and the last positions of each earlier block.

    Both heads of the paper are combined in one mask.

    Args:
        num_summaries: Number of last positions of a block to which later blocks attend.

    Raises:
        ValueError: If the block size is below 1 or smaller than the number of summaries.

    Example:
        >>> fixed_mask(6, block_size=2)[4].int()
        tensor([0, 1, 0, 1, 1, 0], dtype=torch.int32)

    Source:
        Child et al. 2019, arXiv:1904.10509, section 4.3, fixed attention; positions are counted
        from 0, so the summaries of a block are its positions l - c to l - 1.
    """
    _check_positive(size=block_size)
    if not 0 <= num_summaries <= block_size:
        raise ValueError(
            f"num_summaries must lie between 0 and the block size {block_size}, got {num_summaries}"
        )
    query, key = _positions(length, None, device)
    visible = (query // block_size == key // block_size) | (
        key % block_size >= block_size - num_summaries
    )
    return (key <= query) & visible


def global_local_mask(
    length: int, *, radius: int, global_tokens: Sequence[int] = (0,), device: Device = None
) -> Bool[Tensor, "places m"]:
    """Return a sliding window with global tokens, which attend to all and are attended to by all.

    Args:
        radius: Neighbors to each side to which a position attends.
        global_tokens: Positions of global tokens, such as a class token.

    Raises:
        ValueError: If a global token lies outside the sequence or a number is negative.

    Example:
        >>> global_local_mask(4, radius=0).int()
        tensor([[1, 1, 1, 1],
                [1, 1, 0, 0],
                [1, 0, 1, 0],
                [1, 0, 0, 1]], dtype=torch.int32)

    Source:
        Beltagy et al. 2020, arXiv:2004.05150, section 3.1, global attention.
    """
    if outside := [token for token in global_tokens if not 0 <= token < length]:
        raise ValueError(f"global_tokens must lie between 0 and {length - 1}, got {outside}")
    query, key = _positions(length, None, device)
    tokens = torch.tensor(global_tokens, device=device, dtype=torch.long)
    local = band_mask(length, below=radius, above=radius, device=device)
    return local | torch.isin(query, tokens) | torch.isin(key, tokens)


def _positions(
    queries: int, keys: int | None, device: Device
) -> tuple[Int[Tensor, "n 1"], Int[Tensor, " m"]]:
    keys = queries if keys is None else keys
    _check_not_negative(queries=queries, keys=keys)
    return torch.arange(queries, device=device).unsqueeze(-1), torch.arange(keys, device=device)


def _relative_positions(queries: int, keys: int | None, device: Device) -> Int[Tensor, "n m"]:
    """Return the position of each key minus that of each query."""
    query, key = _positions(queries, keys, device)
    return key - query


def _check_not_negative(**counts: int) -> None:
    for name, count in counts.items():
        if count < 0:
            raise ValueError(f"{name} must be at least 0, got {count}")


def _check_positive(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")


def key_mask(mask: Bool[Tensor, "*b n m"], attention: str) -> Bool[Tensor, "*b m"]:
    """Return the single row of a mask that is shared by all queries.

    Raises:
        ValueError: If the mask has one row per query, as a causal mask has.

    Example:
        >>> key_mask(torch.tensor([[True, False]]), "linear_attention")
        tensor([ True, False])
    """
    if mask.shape[-2] != 1:
        raise ValueError(
            f"the mask of {attention} must be one row of keys, [..., 1, {mask.shape[-1]}], because "
            f"it combines keys before comparing them with queries, got {list(mask.shape)}; for a "
            "causal mask use visattn.functional.dot_product_attention"
        )
    return mask.squeeze(-2)
