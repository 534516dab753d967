"""Soft and hard attention: the weighted mean of the values, or one sampled value per query."""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class HardAttentionOutput(NamedTuple):
    """Output of `hard_attention`."""

    values: Float[Tensor, "*b n e"]
    """The sampled value; zeros for a query with no key to attend to."""
    indices: Int[Tensor, "*b n"]
    """Index of the sampled key; -1 for a query with no key to attend to."""
    log_probabilities: Float[Tensor, "*b n"]
    """Log-probability of the sampled key, in nats; 0 if there was no key. REINFORCE trains the
    weights through these."""


def soft_attention(
    weights: Float[Tensor, "*b n m"], values: Float[Tensor, "*#b m e"]
) -> Float[Tensor, "*b n e"]:
    """Return the weighted mean of the values: the expectation of `hard_attention`.

    Example:
        >>> soft_attention(torch.tensor([[0.25, 0.75]]), torch.tensor([[0.0], [4.0]]))
        tensor([[3.]])

    Source:
        Xu et al. 2015, arXiv:1502.03044, equation 13.
    """
    return weights @ values


def hard_attention(
    weights: Float[Tensor, "*b n m"],
    values: Float[Tensor, "*#b m e"],
    *,
    generator: torch.Generator | None = None,
) -> HardAttentionOutput:
    """Return one value per query, sampled with its attention weight as probability.

    The sampled values receive gradients. The weights receive gradients through the
    log-probabilities only.

    Args:
        weights: Non-negative attention weights; rows need not sum to 1.
        values: Values to sample from.
        generator: Random generator on the device of the weights; the default one if None.

    Example:
        >>> random = torch.Generator().manual_seed(0)
        >>> weights, values = torch.tensor([[0.0, 1.0], [0.0, 0.0]]), torch.tensor([[5.0], [7.0]])
        >>> sample = hard_attention(weights, values, generator=random)
        >>> sample.values.tolist(), sample.indices.tolist(), sample.log_probabilities.tolist()
        ([[7.0], [0.0]], [1, -1], [0.0, 0.0])

    Source:
        Xu et al. 2015, arXiv:1502.03044, equations 8 to 11.
    """
    float_weights = weights.to(torch.promote_types(weights.dtype, torch.float32))
    total = float_weights.sum(-1, keepdim=True)
    empty = total == 0
    proportions = torch.where(empty, 1.0, float_weights)
    rows = proportions.detach().flatten(0, -2)
    indices = rows.multinomial(1, generator=generator).view(weights.shape[:-1])
    probabilities = proportions / torch.where(empty, 1.0, total)
    probability = probabilities.gather(-1, indices.unsqueeze(-1)).squeeze(-1)
    empty = empty.squeeze(-1)
    expanded = values.expand(*weights.shape[:-2], *values.shape[-2:])
    columns = indices.unsqueeze(-1).expand(*indices.shape, values.shape[-1])
    output = expanded.gather(-2, columns)
    return HardAttentionOutput(
        output.masked_fill(empty.unsqueeze(-1), 0.0),
        indices.masked_fill(empty, -1),
        probability.log().masked_fill(empty, 0.0),
    )
