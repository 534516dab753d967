"""Who may look at whom: boolean masks of queries by keys, in which True = may attend.

Masks of the same queries and keys are combined with `&` (both must allow it) and `|` (one is
enough). Queries and keys are counted from 0.
"""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Bool, Int
from torch import Tensor

Alignment = Literal["upper_left", "lower_right"]
Device = torch.device | str | None


def from_lengths(lengths: Int[Tensor, "*b"], keys: int) -> Bool[Tensor, "*b 1 keys"]:
    """Return the mask under which all queries see the first `lengths` keys of their row.

    Args:
        lengths: How many keys are real; the others are padding.
        keys: How many keys there are with their padding.

    Raises:
        ValueError: If there are fewer than no keys.

    Example:
        >>> from_lengths(torch.tensor([2, 0]), 3).int()
        tensor([[[1, 1, 0]],
                [[0, 0, 0]]], dtype=torch.int32)
    """
    _check_counts(keys=keys)
    places = torch.arange(keys, device=lengths.device)
    return (places < lengths.unsqueeze(-1)).unsqueeze(-2)


def from_key_padding(padding: Bool[Tensor, "*b m"]) -> Bool[Tensor, "*b 1 m"]:
    """Return the mask of a padding in the other convention, in which True is a key to be ignored.

    This is what `torch.nn.MultiheadAttention` takes as `key_padding_mask`. Its boolean `attn_mask`
    is turned by `~` alone.

    Example:
        >>> from_key_padding(torch.tensor([[False, False, True]])).int()
        tensor([[[1, 1, 0]]], dtype=torch.int32)
    """
    return ~padding.unsqueeze(-2)


def causal_mask(
    queries: int, keys: int | None = None, *, alignment: Alignment, device: Device = None
) -> Bool[Tensor, "queries m"]:
    """Return the mask under which no query sees what comes after it.

    Args:
        queries: How many there are.
        keys: How many there are; as many as queries if not said.
        alignment: Whether the first query is as old as the first key (`upper_left`), or the last
            query as the last key (`lower_right`), as when keys are kept from earlier steps. With as
            many keys as queries both are the same.
        device: Where the mask lies.

    Raises:
        ValueError: If the alignment is unknown, or there are fewer than no queries or keys.

    Example:
        >>> causal_mask(2, 3, alignment="upper_left").int()
        tensor([[1, 0, 0],
                [1, 1, 0]], dtype=torch.int32)
        >>> causal_mask(2, 3, alignment="lower_right").int()
        tensor([[1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)
    """
    if alignment not in get_args(Alignment):
        raise ValueError(f"alignment must be one of {get_args(Alignment)}, got {alignment!r}")
    keys = queries if keys is None else keys
    ahead = _ahead(queries, keys, device)
    return ahead <= (keys - queries if alignment == "lower_right" else 0)


def band_mask(
    queries: int, keys: int | None = None, *, below: int, above: int, device: Device = None
) -> Bool[Tensor, "queries m"]:
    """Return the mask under which a query sees the key at its own place and those close by.

    Args:
        queries: How many there are.
        keys: How many there are; as many as queries if not said.
        below: How many keys before its own place it sees.
        above: How many keys after it.
        device: Where the mask lies.

    Raises:
        ValueError: If a number is below 0.

    Example:
        >>> band_mask(3, below=1, above=0).int()
        tensor([[1, 0, 0],
                [1, 1, 0],
                [0, 1, 1]], dtype=torch.int32)
    """
    _check_counts(below=below, above=above)
    ahead = _ahead(queries, keys, device)
    return (-below <= ahead) & (ahead <= above)


def block_mask(
    queries: int, keys: int | None = None, *, size: int, device: Device = None
) -> Bool[Tensor, "queries m"]:
    """Return the mask under which a query sees the keys of its own block of `size` places.

    Raises:
        ValueError: If the size is below 1, or another number below 0.

    Example:
        >>> block_mask(3, size=2).int()
        tensor([[1, 1, 0],
                [1, 1, 0],
                [0, 0, 1]], dtype=torch.int32)
    """
    _check_least_one(size=size)
    query, key = _places(queries, keys, device)
    return query // size == key // size


def dilated_mask(
    queries: int, keys: int | None = None, *, radius: int, dilation: int, device: Device = None
) -> Bool[Tensor, "queries m"]:
    """Return the mask under which a query sees `radius` keys to each side, `dilation` places apart.

    Raises:
        ValueError: If the dilation is below 1, or another number below 0.

    Example:
        >>> dilated_mask(5, radius=1, dilation=2)[2].int()
        tensor([1, 0, 1, 0, 1], dtype=torch.int32)

    Source:
        Beltagy et al. 2020, arXiv:2004.05150, section 3.1, dilated sliding window.
    """
    _check_least_one(dilation=dilation)
    _check_counts(radius=radius)
    ahead = _ahead(queries, keys, device)
    return (ahead.abs() <= radius * dilation) & (ahead % dilation == 0)


def strided_mask(places: int, *, stride: int, device: Device = None) -> Bool[Tensor, "places m"]:
    """Return the mask under which a place sees the last `stride` places and every stride-th before.

    With the width of an image as the stride, these are the places to its left, up to the one just
    above, and its column. It is causal, and joins both heads of the paper in one.

    Raises:
        ValueError: If the stride is below 1, or there are fewer than no places.

    Example:
        >>> strided_mask(6, stride=2)[5].int()
        tensor([0, 1, 0, 1, 1, 1], dtype=torch.int32)

    Source:
        Child et al. 2019, arXiv:1904.10509, section 4.3, strided attention.
    """
    _check_least_one(stride=stride)
    ahead = _ahead(places, None, device)
    return (ahead <= 0) & ((ahead >= -stride) | (ahead % stride == 0))


def fixed_mask(
    places: int, *, size: int, summaries: int = 1, device: Device = None
) -> Bool[Tensor, "places m"]:
    """Return the mask under which a place sees its block and the last places of each block before.

    It is causal, and joins both heads of the paper in one.

    Args:
        places: How many there are.
        size: How many places a block has.
        summaries: How many of the last places of a block are seen from later blocks.
        device: Where the mask lies.

    Raises:
        ValueError: If the size is below 1, or the summaries do not fit into a block.

    Example:
        >>> fixed_mask(6, size=2)[4].int()
        tensor([0, 1, 0, 1, 1, 0], dtype=torch.int32)

    Source:
        Child et al. 2019, arXiv:1904.10509, section 4.3, fixed attention; places are counted from
        0, so the summaries of a block are its places l - c to l - 1.
    """
    _check_least_one(size=size)
    if not 0 <= summaries <= size:
        raise ValueError(f"summaries must lie between 0 and the size {size}, got {summaries}")
    query, key = _places(places, None, device)
    seen = (query // size == key // size) | (key % size >= size - summaries)
    return (key <= query) & seen


def global_local_mask(
    places: int, *, radius: int, landmarks: Sequence[int] = (0,), device: Device = None
) -> Bool[Tensor, "places m"]:
    """Return the mask under which places see their neighbors, and landmarks see and are seen.

    Args:
        places: How many there are.
        radius: How many neighbors to each side a place sees.
        landmarks: Places that see all others and are seen by all, such as a class token.
        device: Where the mask lies.

    Raises:
        ValueError: If a landmark is none of the places, or a number is below 0.

    Example:
        >>> global_local_mask(4, radius=0).int()
        tensor([[1, 1, 1, 1],
                [1, 1, 0, 0],
                [1, 0, 1, 0],
                [1, 0, 0, 1]], dtype=torch.int32)

    Source:
        Beltagy et al. 2020, arXiv:2004.05150, section 3.1, global attention.
    """
    if outside := [place for place in landmarks if not 0 <= place < places]:
        raise ValueError(f"landmarks must lie between 0 and {places - 1}, got {outside}")
    query, key = _places(places, None, device)
    known = torch.tensor(landmarks, device=device, dtype=torch.long)
    local = band_mask(places, below=radius, above=radius, device=device)
    return local | torch.isin(query, known) | torch.isin(key, known)


def _places(
    queries: int, keys: int | None, device: Device
) -> tuple[Int[Tensor, "n 1"], Int[Tensor, " m"]]:
    keys = queries if keys is None else keys
    _check_counts(queries=queries, keys=keys)
    return torch.arange(queries, device=device).unsqueeze(-1), torch.arange(keys, device=device)


def _ahead(queries: int, keys: int | None, device: Device) -> Int[Tensor, "n m"]:
    """Return how many places each key lies ahead of each query."""
    query, key = _places(queries, keys, device)
    return key - query


def _check_counts(**counts: int) -> None:
    for name, count in counts.items():
        if count < 0:
            raise ValueError(f"{name} must be at least 0, got {count}")


def _check_least_one(**counts: int) -> None:
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")


def mask_of_keys(mask: Bool[Tensor, "*b n m"], attention: str) -> Bool[Tensor, "*b m"]:
    """Return the one row of a mask that is the same for all queries.

    Args:
        mask: True = may be attended to; one row, as `masks.from_lengths` makes it.
        attention: Whose mask it is, for the message.

    Raises:
        ValueError: If queries have rows of their own, as in a causal mask.

    Example:
        >>> mask_of_keys(torch.tensor([[True, False]]), "linear_attention")
        tensor([ True, False])
    """
    if mask.shape[-2] != 1:
        raise ValueError(
            f"the mask of {attention} must be one row of keys, [..., 1, {mask.shape[-1]}], because "
            f"it mixes keys before queries meet them; got {list(mask.shape)}: a causal mask, and "
            "any other with a row per query, needs functional.attentions.attention"
        )
    return mask.squeeze(-2)
