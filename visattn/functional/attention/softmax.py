"""Attention: from scores to weights, and from weights to values."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from visattn.functional.attention.masks import Alignment, causal_mask
from visattn.functional.numerics import without_autocast


def masked_softmax(
    scores: Float[Tensor, "*b n m"], mask: Bool[Tensor, "*#b #n #m"] | None = None
) -> Float[Tensor, "*b n m"]:
    """Return weights that sum to 1 over the keys that a query may attend to, and are 0 elsewhere.

    A query that may attend to nothing gets zeros, and no gradient flows through its row.

    Args:
        scores: How well each query fits each key. Under the mask they may be anything, even NaN.
        mask: True = may attend; all may attend to all if there is none.

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
    blind = _blind(mask)
    # A row of minus infinity would be NaN, and so would its gradient: a blind row is all zeros.
    masked = torch.zeros_like(blind, dtype=scores.dtype).masked_fill(~blind, -torch.inf)
    return torch.where(mask, scores, masked).softmax(-1).masked_fill(blind, 0.0)


def attention(
    query: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*b m d"],
    values: Float[Tensor, "*b m e"],
    *,
    mask: Bool[Tensor, "*#b #n #m"] | None = None,
    bias: Float[Tensor, "*#b #n #m"] | None = None,
    causal: Alignment | None = None,
    scale: float | None = None,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "*b n e"], Float[Tensor, "*b n m"] | None]:
    """Return the mean of the values for each query, weighted by how well it fits their keys.

    Without weights a fused kernel computes the same values and never holds the weights. A query
    that may attend to nothing gets zeros, on both ways, and passes no gradient on. In half
    precision the weights are found in single precision.

    Args:
        query: What is looked for.
        keys: What it is compared with.
        values: What is seen.
        mask: True = may attend.
        bias: Added to the scaled scores, as relative positions are.
        causal: How queries and keys are aligned when no query may see what comes after it.
        scale: What scores are multiplied by; 1 / sqrt(d) if not said.
        need_weights: Whether to return the weights, which costs n × m numbers.

    Raises:
        TypeError: If the mask is not boolean.
        ValueError: If the alignment is unknown.

    Example:
        >>> seen, weights = attention(
        ...     torch.zeros(1, 2), torch.ones(2, 2), torch.tensor([[0.0], [4.0]]), need_weights=True
        ... )
        >>> seen, weights
        (tensor([[2.]]), tensor([[0.5000, 0.5000]]))

    Source:
        Vaswani et al. 2017, arXiv:1706.03762, equation 1.
    """
    if mask is not None:
        _check_boolean(mask)
    factor: float = query.shape[-1] ** -0.5 if scale is None else scale
    kernel_is_causal = causal == "upper_left" and not need_weights and mask is bias is None
    if causal is not None and not kernel_is_causal:
        past = causal_mask(query.shape[-2], keys.shape[-2], alignment=causal, device=query.device)
        mask = past if mask is None else past & mask
    if not need_weights:
        return _fused(query, keys, values, mask, bias, kernel_is_causal, factor), None
    weights = attention_weights(query, keys, mask=mask, bias=bias, scale=factor)
    return weights @ values, weights


def attention_weights(
    query: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*b m d"],
    *,
    mask: Bool[Tensor, "*#b #n #m"] | None = None,
    bias: Float[Tensor, "*#b #n #m"] | None = None,
    scale: float | None = None,
) -> Float[Tensor, "*b n m"]:
    """Return how much each query takes from each key, found in single precision at least.

    Args:
        query: What is looked for.
        keys: What it is compared with.
        mask: True = may attend.
        bias: Added to the scaled scores.
        scale: What scores are multiplied by; 1 / sqrt(d) if not said.

    Raises:
        TypeError: If the mask is not boolean.

    Example:
        >>> attention_weights(torch.zeros(1, 2), torch.ones(2, 2))
        tensor([[0.5000, 0.5000]])
    """
    factor: float = query.shape[-1] ** -0.5 if scale is None else scale
    wide = torch.promote_types(query.dtype, torch.float32)
    with without_autocast(query.device):
        scores = (query.to(wide) * factor) @ keys.to(wide).mT
    scores = scores if bias is None else scores + bias
    return masked_softmax(scores, mask).to(query.dtype)


def _fused(
    query: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*b m d"],
    values: Float[Tensor, "*b m e"],
    mask: Bool[Tensor, "*#b #n #m"] | None,
    bias: Float[Tensor, "*#b #n #m"] | None,
    causal: bool,
    scale: float,
) -> Float[Tensor, "*b n e"]:
    blind = None if mask is None else _blind(mask)
    given = None if bias is None else bias.to(query.dtype)
    if mask is not None and blind is not None:
        # Kernels differ in what they make of a blind row: it sees all, and is emptied afterwards.
        allowed = mask | blind
        given = allowed if given is None else torch.where(allowed, given, -torch.inf)
    seen = scaled_dot_product_attention(
        *(_in_four_axes(part) for part in (query, keys, values)),
        attn_mask=None if given is None else _in_four_axes(_spread(given, query)),
        is_causal=causal,
        scale=scale,
    ).view(*query.shape[:-1], values.shape[-1])
    return seen if blind is None else seen.masked_fill(blind, 0.0)


def _in_four_axes(part: Float[Tensor, "..."] | Bool[Tensor, "..."]) -> Tensor:
    """Return batch, head, row, column, as fused kernels want them; leading axes are joined."""
    return part.flatten(0, -4) if part.ndim > 4 else part[(None,) * (4 - part.ndim)]


def _spread(mask: Tensor, query: Float[Tensor, "*b n d"]) -> Tensor:
    """Return a mask with all leading axes of the query where these are going to be joined."""
    if query.ndim <= 4 or mask.ndim <= 3:
        return mask
    return mask.expand(*query.shape[:-3], *mask.shape[-3:])


def _blind(mask: Bool[Tensor, "*b n m"]) -> Bool[Tensor, "*b n 1"]:
    """Return which queries may attend to nothing."""
    return ~mask.any(-1, keepdim=True)


def _check_boolean(mask: Tensor) -> None:
    if mask.dtype != torch.bool:
        raise TypeError(
            f"a mask must be boolean, True = may attend, got {mask.dtype}; numbers that are to be "
            "added to the scores are a bias"
        )
