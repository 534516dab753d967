"""Attention: score functions, and softmax with masks.

Scores have one row per query, so that a softmax over the last axis gives attention weights.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from visattn.functional.numerics import without_autocast


def dot_scores(
    query: Float[Tensor, "*b n d"], keys: Float[Tensor, "*#b m d"]
) -> Float[Tensor, "*b n m"]:
    """Return the dot product of each query with each key.

    Example:
        >>> dot_scores(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
        tensor([[11.,  2.]])

    Source:
        Luong et al. 2015, arXiv:1508.04025, section 3.1, dot.
    """
    return query @ keys.mT


def general_scores(
    query: Float[Tensor, "*b n d"], keys: Float[Tensor, "*#b m e"], weight: Float[Tensor, "d e"]
) -> Float[Tensor, "*b n m"]:
    """Return bilinear ("general") scores: query · weight · key.

    Queries and keys may have different dimensions.

    Example:
        >>> weight = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> general_scores(torch.tensor([[1.0, 2.0]]), torch.tensor([[9.0, 3.0, 4.0]]), weight)
        tensor([[11.]])

    Source:
        Luong et al. 2015, arXiv:1508.04025, section 3.1, general.
    """
    return dot_scores(query @ weight, keys)


def additive_scores(
    query: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*#b m d"],
    vector: Float[Tensor, " d"],
) -> Float[Tensor, "*b n m"]:
    """Return additive (Bahdanau) scores: vector · tanh(query + key).

    Queries and keys are already projected, so that a decoding loop projects the keys once.

    Args:
        query: Projected queries.
        keys: Projected keys; leading axes of size one are broadcast.
        vector: Score vector v.

    Example:
        >>> keys = torch.tensor([[0.0, 0.0], [9.0, 9.0]])
        >>> additive_scores(torch.zeros(1, 2), keys, torch.ones(2))
        tensor([[0.0000, 2.0000]])

    Source:
        Bahdanau et al. 2015, arXiv:1409.0473, appendix A.1.2; Xu et al. 2015, arXiv:1502.03044,
        equation 4.
    """
    return torch.tanh(query.unsqueeze(-2) + keys.unsqueeze(-3)) @ vector


def concat_scores(
    query: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*#b m e"],
    weight: Float[Tensor, "hidden d_plus_e"],
    vector: Float[Tensor, " hidden"],
) -> Float[Tensor, "*b n m"]:
    """Return concat scores: vector · tanh(weight · [query; key]).

    Since the layer is linear, queries and keys are projected separately: these are additive scores
    with both weights in one matrix.

    Args:
        query: Queries.
        keys: Keys.
        weight: Weight of the layer; its first columns belong to the query.
        vector: Score vector v.

    Raises:
        ValueError: If the weight does not have as many columns as query and key together.

    Example:
        >>> weight = torch.tensor([[1.0, -1.0]])
        >>> concat_scores(torch.ones(1, 1), torch.ones(2, 1), weight, torch.ones(1))
        tensor([[0., 0.]])

    Source:
        Luong et al. 2015, arXiv:1508.04025, section 3.1, concat.
    """
    width = query.shape[-1]
    other = keys.shape[-1]
    if weight.shape[-1] != width + other:
        raise ValueError(
            f"the weight must have as many columns as query and key together, {width} + {other}, "
            f"got {weight.shape[-1]}"
        )
    from_query = weight[:, :width]
    from_key = weight[:, width:]
    return additive_scores(linear(query, from_query), linear(keys, from_key), vector)


def location_scores(
    query: Float[Tensor, "*b n d"], weight: Float[Tensor, "most d"], keys: int
) -> Float[Tensor, "*b n m"]:
    """Return location-based scores, which depend on the query only and not on the keys.

    Args:
        query: Queries.
        weight: One row per key position, up to the maximum number of keys.
        keys: Number of keys. Padding must be masked afterwards.

    Raises:
        ValueError: If there are more keys than rows of the weight.

    Example:
        >>> location_scores(torch.ones(1, 2), torch.tensor([[1.0, 1.0], [2.0, 0.0], [9.0, 9.0]]), 2)
        tensor([[2., 2.]])

    Source:
        Luong et al. 2015, arXiv:1508.04025, section 3.1, location.
    """
    if not 0 <= keys <= len(weight):
        raise ValueError(
            f"the weight has rows for at most {len(weight)} keys, got {keys}; "
            "create it for the maximum number of keys"
        )
    return linear(query, weight[:keys])


def context_vector(
    weights: Float[Tensor, "*b n"], values: Float[Tensor, "*#b n d"]
) -> Float[Tensor, "*b d"]:
    """Return the context vector: the weighted sum of the values.

    Example:
        >>> context_vector(torch.tensor([0.25, 0.75]), torch.tensor([[0.0, 4.0], [4.0, 0.0]]))
        tensor([3., 1.])
    """
    return (weights.unsqueeze(-2) @ values).squeeze(-2)


_ROWS = 256  # queries whose weights are computed at once


def masked_softmax(
    scores: Float[Tensor, "*b n m"], mask: Bool[Tensor, "*#b #n #m"] | None = None
) -> Float[Tensor, "*b n m"]:
    """Return softmax weights over the keys that a query may attend to, and 0 elsewhere.

    A query whose keys are all masked gets zeros, and no gradient flows through its row.

    Args:
        scores: Attention scores; masked scores may have any value, even NaN.
        mask: True = may attend; no mask if None.

    Raises:
        TypeError: If the mask is not boolean.

    Example:
        >>> masked_softmax(torch.zeros(2, 3), torch.tensor([[True, False, True], [False] * 3]))
        tensor([[0.5000, 0.0000, 0.5000],
                [0.0000, 0.0000, 0.0000]])
    """
    if mask is None:
        return scores.softmax(-1)
    _check_boolean(mask)
    empty = _empty_rows(mask)
    # A row of minus infinity would be NaN, and so would its gradient: such a row is set to zero.
    fill = torch.zeros_like(empty, dtype=scores.dtype).masked_fill(~empty, -torch.inf)
    return torch.where(mask, scores, fill).softmax(-1).masked_fill(empty, 0.0)


def dot_product_attention(
    query: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*b m d"],
    values: Float[Tensor, "*b m e"],
    *,
    mask: Bool[Tensor, "*#b #n #m"] | None = None,
    bias: Float[Tensor, "*#b #n #m"] | None = None,
    scale: float | None = None,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "*b n e"], Float[Tensor, "*b n m"] | None]:
    """Return scaled dot-product attention: softmax(query · keysᵀ · scale + bias) · values.

    Without weights the fused kernel `torch.nn.functional.scaled_dot_product_attention` computes
    the same output. On both paths a query whose keys are all masked gets zeros and no gradient. In
    half precision the weights are computed in float32.

    Args:
        query: Queries.
        keys: Keys.
        values: Values.
        mask: True = may attend.
        bias: Added to the scaled scores, such as a relative position bias.
        scale: Factor of the dot products; 1 / sqrt(d) if None.
        need_weights: Whether to return the weights, which take n × m numbers.

    Raises:
        TypeError: If the mask is not boolean.

    Example:
        >>> output, weights = dot_product_attention(
        ...     torch.zeros(1, 2), torch.ones(2, 2), torch.tensor([[0.0], [4.0]]), need_weights=True
        ... )
        >>> output, weights
        (tensor([[2.]]), tensor([[0.5000, 0.5000]]))

    Source:
        Vaswani et al. 2017, arXiv:1706.03762, equation 1.
    """
    if mask is not None:
        _check_boolean(mask)
    factor: float = query.shape[-1] ** -0.5 if scale is None else scale
    if not need_weights:
        return _fused_attention(query, keys, values, mask, bias, factor), None
    weights = dot_product_attention_weights(query, keys, mask=mask, bias=bias, scale=factor)
    return weights @ values, weights


def dot_product_attention_weights(
    query: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*b m d"],
    *,
    mask: Bool[Tensor, "*#b #n #m"] | None = None,
    bias: Float[Tensor, "*#b #n #m"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n m"]:
    """Return the weights of `dot_product_attention`, computed in float32 at least.

    Raises:
        TypeError: If the mask is not boolean.

    Example:
        >>> dot_product_attention_weights(torch.zeros(1, 2), torch.ones(2, 2))
        tensor([[0.5000, 0.5000]])
    """
    factor: float = query.shape[-1] ** -0.5 if scale is None else scale
    dtype = torch.promote_types(query.dtype, torch.float32)
    with without_autocast(query.device):
        scores = (query.to(dtype) * factor) @ keys.to(dtype).mT
    scores = scores if bias is None else scores + bias
    return masked_softmax(scores, mask).to(query.dtype)


def _fused_attention(
    query: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*b m d"],
    values: Float[Tensor, "*b m e"],
    mask: Bool[Tensor, "*#b #n #m"] | None,
    bias: Float[Tensor, "*#b #n #m"] | None,
    scale: float,
) -> Float[Tensor, "*b n e"]:
    other_width = query.shape[-1] != values.shape[-1] and query.device.type == "cpu"
    if other_width and mask is bias is None:
        return _attention_by_rows(query, keys, values, scale)
    empty = None if mask is None else _empty_rows(mask)
    attn_mask = None if bias is None else bias.to(query.dtype)
    if mask is not None and empty is not None:
        # Kernels differ for fully masked rows: such a row attends to all keys and is zeroed below.
        allowed = mask | empty
        attn_mask = allowed if attn_mask is None else torch.where(allowed, attn_mask, -torch.inf)
    output = scaled_dot_product_attention(
        *(_to_four_dims(_in_rows(tensor)) for tensor in (query, keys, values)),
        attn_mask=None if attn_mask is None else _to_four_dims(_expand_mask(attn_mask, query)),
        scale=scale,
    ).view(*query.shape[:-1], values.shape[-1])
    return output if empty is None else output.masked_fill(empty, 0.0)


def _attention_by_rows(
    query: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*b m d"],
    values: Float[Tensor, "*b m e"],
    scale: float,
) -> Float[Tensor, "*b n e"]:
    """Return attention of blocks of queries, whose weights fit into a cache.

    CPUs have no fused kernel for values of another width than the queries.
    """
    tracing: bool = torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
    if tracing or torch.compiler.is_compiling():  # with a free number of queries
        parts = [query]
    else:
        starts = range(0, query.shape[-2], _ROWS)
        parts = [query[..., first : first + _ROWS, :] for first in starts]
    outputs = [
        dot_product_attention_weights(rows, keys, scale=scale).to(values.dtype) @ values
        for rows in parts
    ]
    return torch.cat(outputs, -2)


def _in_rows(part: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
    """Return a tensor with contiguous rows, for which fused kernels are faster."""
    return part if part.stride(-1) == 1 else part.contiguous()


def _to_four_dims(part: Float[Tensor, "..."] | Bool[Tensor, "..."]) -> Tensor:
    """Return a tensor [batch, heads, rows, columns]; further leading dimensions are merged."""
    return part.flatten(0, -4) if part.ndim > 4 else part[(None,) * (4 - part.ndim)]


def _expand_mask(mask: Tensor, query: Float[Tensor, "*b n d"]) -> Tensor:
    """Expand a mask to the leading dimensions of the query if these will be merged."""
    if query.ndim <= 4 or mask.ndim <= 3:
        return mask
    return mask.expand(*query.shape[:-3], *mask.shape[-3:])


def _empty_rows(mask: Bool[Tensor, "*b n m"]) -> Bool[Tensor, "*b n 1"]:
    """Return which queries have no key to attend to."""
    return ~mask.any(-1, keepdim=True)


def _check_boolean(mask: Tensor) -> None:
    if mask.dtype != torch.bool:
        raise TypeError(
            f"a mask must be boolean, True = may attend, got {mask.dtype}; pass numbers that are "
            "added to the scores as bias"
        )
