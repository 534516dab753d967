"""Attention masks: boolean tensors of queries by keys in which True = may attend.

Masks are combined with `&` and `|`. Queries and keys are counted from 0.
"""

from typing import Literal

import torch
from jaxtyping import Bool, Int
from torch import Tensor

CausalAlignment = Literal["upper_left", "lower_right"]
Device = torch.device | str | None


def length_mask(lengths: Int[Tensor, "*b"], num_keys: int) -> Bool[Tensor, "*b 1 keys"]:
    """Return the mask in which all queries attend to the first `lengths` keys.

    Example:
        >>> length_mask(torch.tensor([2, 0]), 3).int()
        tensor([[[1, 1, 0]],
                [[0, 0, 0]]], dtype=torch.int32)
    """
    places = torch.arange(num_keys, device=lengths.device)
    return (places < lengths.unsqueeze(-1)).unsqueeze(-2)


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

    Example:
        >>> causal_mask(2, 3, alignment="upper_left").int()
        tensor([[1, 0, 0],
                [1, 1, 0]], dtype=torch.int32)
        >>> causal_mask(2, 3, alignment="lower_right").int()
        tensor([[1, 1, 0],
                [1, 1, 1]], dtype=torch.int32)
    """
    num_keys = num_queries if num_keys is None else num_keys
    queries = torch.arange(num_queries, device=device).unsqueeze(-1)
    offset = torch.arange(num_keys, device=device) - queries
    return offset <= (num_keys - num_queries if alignment == "lower_right" else 0)
