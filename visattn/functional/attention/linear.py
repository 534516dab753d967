"""Linear attention: kernel feature maps instead of a softmax, linear in the number of tokens."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from visattn.functional.attention.masks import key_mask
from visattn.functional.numerics import at_least_float32, without_autocast


def linear_attention(
    queries: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*b m d"],
    values: Float[Tensor, "*b m e"],
    *,
    mask: Bool[Tensor, "*#b #n #m"] | None = None,
    need_weights: bool = False,
) -> tuple[Float[Tensor, "*b n e"], Float[Tensor, "*b n m"] | None]:
    """Return attention with weights proportional to f(q) · f(k), where f(x) = elu(x) + 1.

    This takes (n + m) d e multiplications and d e numbers instead of n m (d + e) and n m; with
    `need_weights` n m (d + e) and n m again. Sums run in float32 at least, also under autocast.

    Args:
        queries: Queries.
        keys: Keys.
        values: Values.
        mask: True = may attend; one row for all queries: `[..., 1, m]`.
        need_weights: Whether to return the weights, which sum to 1 over the keys.

    Raises:
        ValueError: If the mask has one row per query.

    Example:
        >>> q, k = torch.zeros(1, 1), torch.tensor([[0.0], [2.0]])  # f(k) is 1 and 3
        >>> linear_attention(q, k, torch.tensor([[0.0], [4.0]]), need_weights=True)
        (tensor([[3.]]), tensor([[0.2500, 0.7500]]))

    Source:
        Katharopoulos et al. 2020, arXiv:2006.16236, equations 4 to 7.
    """
    query_features = _feature_map(at_least_float32(queries))
    key_features = _feature_map(at_least_float32(keys))
    float_values = at_least_float32(values)
    if mask is not None:
        allowed = key_mask(mask, "linear_attention").unsqueeze(-1)
        key_features = key_features.masked_fill(~allowed, 0.0)
        float_values = float_values.masked_fill(~allowed, 0.0)
    with without_autocast(values.device):
        total = query_features @ key_features.sum(-2).unsqueeze(-1)
        total = torch.where(total > 0, total, 1.0)  # no key to attend to: the output is zero
        if not need_weights:
            output = query_features @ (key_features.mT @ float_values) / total
            return output.to(values.dtype), None
        weights = query_features @ key_features.mT / total
        return (weights @ float_values).to(values.dtype), weights.to(values.dtype)


def linear_attention_weights(
    queries: Float[Tensor, "*b n d"], keys: Float[Tensor, "*b m d"]
) -> Float[Tensor, "*b n m"]:
    """Return the weights of `linear_attention` alone, for any subset of the queries.

    Example:
        >>> linear_attention_weights(torch.zeros(1, 1), torch.tensor([[0.0], [2.0]]))
        tensor([[0.2500, 0.7500]])

    Source:
        Katharopoulos et al. 2020, arXiv:2006.16236, equation 4.
    """
    query_features = _feature_map(at_least_float32(queries))
    key_features = _feature_map(at_least_float32(keys))
    with without_autocast(queries.device):
        weights = query_features @ key_features.mT
        return (weights / weights.sum(-1, keepdim=True)).to(queries.dtype)


def _feature_map(x: Float[Tensor, "*b n d"]) -> Float[Tensor, "*b n d"]:
    """Return elu(x) + 1, computed as exp(x) below zero, where it keeps full precision."""
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())
