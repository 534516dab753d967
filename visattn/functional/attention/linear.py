"""Attention without a softmax, whose cost grows with the number of keys and not with its square."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from visattn.functional.attention.masks import mask_of_keys
from visattn.functional.numerics import at_least_float32, without_autocast


def linear_attention(
    queries: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*b m d"],
    values: Float[Tensor, "*b m e"],
    *,
    mask: Bool[Tensor, "*#b #n #m"] | None = None,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "*b n e"], Float[Tensor, "*b n m"] | None]:
    """Return the mean of the values under weights f(q) · f(k), with f(x) = elu(x) + 1.

    Takes (n + m) d e multiplications and d e numbers, instead of n m (d + e) and n m; with weights
    n m (d + e) and n m again. Sums run in float32 at least, also under autocast.

    Args:
        queries: What is looked for.
        keys: What is compared with it.
        values: What is given.
        mask: Which keys may be attended to, one row for all queries: `[..., 1, m]`.
        need_weights: Whether to compute the weights, which sum to one over the keys.

    Raises:
        ValueError: If the mask has a row per query.

    Example:
        >>> q, k = torch.zeros(1, 1), torch.tensor([[0.0], [2.0]])  # f(k) is 1 and 3
        >>> linear_attention(q, k, torch.tensor([[0.0], [4.0]]), need_weights=True)
        (tensor([[3.]]), tensor([[0.2500, 0.7500]]))

    Source:
        Katharopoulos et al. 2020, arXiv:2006.16236, equations 4 to 7.
    """
    asking, offered = _positive(at_least_float32(queries)), _positive(at_least_float32(keys))
    given = at_least_float32(values)
    if mask is not None:
        alone = mask_of_keys(mask, "linear_attention").unsqueeze(-1)
        offered, given = offered.masked_fill(~alone, 0.0), given.masked_fill(~alone, 0.0)
    with without_autocast(values.device):
        total = asking @ offered.sum(-2).unsqueeze(-1)
        total = torch.where(total > 0, total, 1.0)  # nothing to attend to: zeros over one
        weights = asking @ offered.mT / total if need_weights else None
        seen = asking @ (offered.mT @ given) / total if weights is None else weights @ given
    return seen.to(values.dtype), weights if weights is None else weights.to(values.dtype)


def linear_weights(
    queries: Float[Tensor, "*b n d"], keys: Float[Tensor, "*b m d"]
) -> Float[Tensor, "*b n m"]:
    """Return the weights alone, of as many queries as are wanted.

    Example:
        >>> linear_weights(torch.zeros(1, 1), torch.tensor([[0.0], [2.0]]))
        tensor([[0.2500, 0.7500]])

    Source:
        As of `linear_attention`.
    """
    asking, offered = _positive(at_least_float32(queries)), _positive(at_least_float32(keys))
    with without_autocast(queries.device):
        weights = asking @ offered.mT
        return (weights / weights.sum(-1, keepdim=True)).to(queries.dtype)


def _positive(x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
    """Return elu(x) + 1, which is exp(x) below zero: so written, it keeps its digits there."""
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())
