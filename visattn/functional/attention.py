"""Softmax attention with masks (boolean, True = may attend), and additive scores."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from visattn.functional.numerics import at_least_float32, without_autocast


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


def masked_softmax(
    scores: Float[Tensor, "*b n m"], mask: Bool[Tensor, "*#b #n #m"] | None = None
) -> Float[Tensor, "*b n m"]:
    """Return softmax weights over the keys that a query may attend to, and 0 elsewhere.

    A query whose keys are all masked gets zeros, and no gradient flows through its row.

    Args:
        scores: Attention scores; masked scores may have any value, even NaN.
        mask: True = may attend; no mask if None.

    Example:
        >>> masked_softmax(torch.zeros(2, 3), torch.tensor([[True, False, True], [False] * 3]))
        tensor([[0.5000, 0.0000, 0.5000],
                [0.0000, 0.0000, 0.0000]])
    """
    if mask is None:
        return scores.softmax(-1)
    empty = ~mask.any(-1, keepdim=True)
    # A row of minus infinity would give NaN, also in the gradient, so it is set to zero.
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
        need_weights: Whether to return the weights, which need memory for n × m values.

    Example:
        >>> output, weights = dot_product_attention(
        ...     torch.zeros(1, 2), torch.ones(2, 2), torch.tensor([[0.0], [4.0]]), need_weights=True
        ... )
        >>> output, weights
        (tensor([[2.]]), tensor([[0.5000, 0.5000]]))

    Source:
        Vaswani et al. 2017, arXiv:1706.03762, equation 1.
    """
    if need_weights:
        weights = dot_product_attention_weights(query, keys, mask=mask, bias=bias, scale=scale)
        return weights @ values, weights
    if query.shape[-1] != values.shape[-1] and query.device.type == "cpu" and mask is bias is None:
        return _attention_by_rows(query, keys, values, scale), None
    added = None if bias is None else bias.to(query.dtype)
    empty = None if mask is None else ~mask.any(-1, keepdim=True)
    if mask is not None and empty is not None:
        # Kernels differ for fully masked rows: such a row attends to all keys and is zeroed below.
        allowed = mask | empty
        added = allowed if added is None else torch.where(allowed, added, -torch.inf)
    # Only tensors with four dimensions and contiguous rows have fused kernels.
    rows = (part if part.stride(-1) == 1 else part.contiguous() for part in (query, keys, values))
    if added is not None:
        added = _in_four_dims(added.expand(*query.shape[:-2], *added.shape[-2:]))
    output = scaled_dot_product_attention(*map(_in_four_dims, rows), attn_mask=added, scale=scale)
    output = output.reshape(*query.shape[:-1], values.shape[-1])
    return output if empty is None else output.masked_fill(empty, 0.0), None


def _in_four_dims(part: Tensor) -> Tensor:
    return part.flatten(0, -4) if part.ndim > 4 else part[(None,) * (4 - part.ndim)]


def _attention_by_rows(
    query: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*b m d"],
    values: Float[Tensor, "*b m e"],
    scale: float | None,
) -> Float[Tensor, "*b n e"]:
    """Return attention, computed for 256 queries at a time so that the weights fit into a cache.

    CPUs have no fused kernel if values and queries differ in width: with torch's function, on
    56 x 56 positions, a training step of DANet takes 1.7 times as long and its inference 2.6 times.
    """
    # A graph with a dynamic number of queries cannot loop over them.
    parts = [query] if torch.compiler.is_compiling() else torch.split(query, 256, -2)
    outputs = [
        dot_product_attention_weights(part, keys, scale=scale).to(values.dtype) @ values
        for part in parts
    ]
    return torch.cat(outputs, -2)


def dot_product_attention_weights(
    query: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*b m d"],
    *,
    mask: Bool[Tensor, "*#b #n #m"] | None = None,
    bias: Float[Tensor, "*#b #n #m"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n m"]:
    """Return the weights of `dot_product_attention`, computed in float32 at least.

    Example:
        >>> dot_product_attention_weights(torch.zeros(1, 2), torch.ones(2, 2))
        tensor([[0.5000, 0.5000]])
    """
    factor: float = query.shape[-1] ** -0.5 if scale is None else scale
    with without_autocast(query.device):
        scores = (at_least_float32(query) * factor) @ at_least_float32(keys).mT
    scores = scores if bias is None else scores + bias
    return masked_softmax(scores, mask).to(query.dtype)
