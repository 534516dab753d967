"""Attention that was seen in passing, and the weights that it was made with."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.functional.attention.masks import causal_mask
from visattn.functional.attention.softmax import attention_weights

Chosen = slice | list[int]


@dataclass(eq=False)
class AttentionCall:
    """What went into attention and what came out; weights are found when they are asked for.

    Args:
        shape: Groups (images, or windows of images), heads, queries and keys.
        queries: What is looked for; None if the model computed the weights itself.
        keys: What it is compared with.
        values: What is taken.
        mask: True = may attend.
        bias: Added to the scaled scores.
        scale: What scores are multiplied by; 1 / sqrt(d) if None.
        computed: The weights, if the model computed them.
        output: What came out, to be checked against; None if it cannot.
        merged: What follows before the output comes out.
        mixed: Whether the model mixed the weights of several heads before it used them.
        dropout: Share of the weights that was dropped.
    """

    shape: tuple[int, int, int, int]
    queries: Tensor | None = None
    keys: Tensor | None = None
    values: Tensor | None = None
    mask: Tensor | None = None
    bias: Tensor | None = None
    scale: float | None = None
    computed: Tensor | None = None
    output: Tensor | None = None
    merged: Callable[[Tensor], Tensor] | None = None
    mixed: bool = False
    dropout: float = 0.0

    def rows(self, heads: Chosen, rows: Chosen) -> Float[Tensor, "g h r m"]:
        """Return the weights of some heads and queries.

        Args:
            heads: Which heads.
            rows: Which queries.
        """
        if self.computed is not None:
            return _picked(self.computed, heads, rows)
        if self.queries is None or self.keys is None:
            raise ValueError("attention needs queries and keys, or weights that were computed")
        mask, bias = (
            None if one is None else _picked(one.expand(self.shape), heads, rows)
            for one in (self.mask, self.bias)
        )
        queries = _picked(self.queries, heads, rows)
        keys = _picked(self.keys, heads, slice(None))
        return attention_weights(queries, keys, mask=mask, bias=bias, scale=self.scale)

    def deviation(self, weights: Float[Tensor, "g h r m"], heads: Chosen, rows: Chosen) -> float:
        """Return by how much these weights times the values miss the output, at most.

        It is measured in units of the largest value, if that is above 1. NaN says that it cannot be
        known: weights were dropped, or heads that the output is made of are missing.

        Args:
            weights: Of these heads and queries.
            heads: Which heads.
            rows: Which queries.
        """
        partial = self.merged is not None and heads != slice(None)
        if self.output is None or self.values is None or self.dropout or partial:
            return torch.nan
        taken = weights @ self.values[:, heads]
        if self.merged is None:
            expected = _picked(self.output, heads, rows)
        else:
            taken, expected = self.merged(taken), self.output[:, rows]
        size = max(1.0, float(self.values.abs().max()))
        return float((taken - expected).abs().max()) / size


def _picked(part: Tensor, heads: Chosen, rows: Chosen) -> Tensor:
    whole = slice(None)
    part = part if heads == whole else part[:, heads]
    return part if rows == whole else part[:, :, rows]


def fused_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> AttentionCall | None:
    """Return what `scaled_dot_product_attention` was asked; None if it is not of four axes.

    Args:
        args: As it was given.
        kwargs: As it was given.

    Example:
        >>> fused_call((torch.zeros(2, 3, 5, 7),) * 3, {"is_causal": True}).shape
        (2, 3, 5, 5)
    """
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    query, key, value = (given[name] for name in names[:3])
    if query.ndim == 3:
        query, key, value = (part.unsqueeze(1) for part in (query, key, value))
    if query.ndim != 4:
        return None
    if key.shape[1] != query.shape[1]:  # fewer heads of keys, each for a group of queries
        key, value = (
            part.repeat_interleave(query.shape[1] // key.shape[1], 1) for part in (key, value)
        )
    mask = given.get("attn_mask")
    bias = None
    if mask is not None and mask.dtype != torch.bool:
        mask, bias = None, mask
    if given.get("is_causal"):
        mask = causal_mask(
            query.shape[2], key.shape[2], alignment="upper_left", device=query.device
        )
    shape = (query.shape[0], query.shape[1], query.shape[2], key.shape[2])
    return AttentionCall(
        shape,
        query,
        key,
        value,
        mask,
        bias,
        given.get("scale"),
        dropout=float(given.get("dropout_p") or 0.0),
    )
