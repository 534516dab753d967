"""Statistics of attention weights: entropy, saturation, distance, head diversity, sinks."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

SATURATION_THRESHOLD = 0.9  # of the weight of a row on a single key


def attention_entropy(
    weights: Float[Tensor, "*b n m"], keys: int | None = None
) -> Float[Tensor, "*b n"]:
    """Return the normalized entropy of each row: 0 for a single key, 1 for uniform weights.

    The entropy is divided by that of a uniform row; it is 0 if there is only one key.

    Args:
        weights: Attention weights; rows sum to 1.
        keys: Number of keys that a row can reach, such as a window; all keys if None.

    Example:
        >>> attention_entropy(torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]))
        tensor([0.5000, 1.0000])
    """
    reachable = weights.shape[-1] if keys is None else keys
    return -torch.xlogy(weights, weights).sum(-1) / math.log(max(reachable, 2))


def saturated_fraction(weights: Float[Tensor, "*b n m"]) -> Float[Tensor, "*b"]:
    """Return the fraction of rows with more than 0.9 of their weight on a single key.

    Example:
        >>> saturated_fraction(torch.tensor([[0.95, 0.05], [0.5, 0.5]]))
        tensor(0.5000)
    """
    return (weights.amax(-1) > SATURATION_THRESHOLD).to(weights).mean(-1)


def mean_attention_distance(
    weights: Float[Tensor, "*b n m"], queries: Float[Tensor, "n 2"], keys: Float[Tensor, "m 2"]
) -> Float[Tensor, "*b"]:
    """Return the mean attention distance, in the unit of the positions.

    Args:
        weights: Attention weights over keys that have a position; rows are normalized. Rows of
            zeros, whose weight lies entirely on keys without a position, are left out.
        queries: Position of each query.
        keys: Position of each key.

    Returns:
        The mean over the queries; NaN if no query attends to a position.

    Example:
        >>> positions = torch.tensor([[0.5, 0.5], [0.5, 3.5]])
        >>> mean_attention_distance(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), positions, positions)
        tensor(0.7500)

    Source:
        Dosovitskiy et al. 2021, arXiv:2010.11929, section 4.5 and figure 7, mean attention
        distance.
    """
    distances = torch.cdist(queries, keys).to(weights)
    total = weights.sum(-1)
    valid = total > 0
    mean = (weights * distances).sum(-1) / total.where(valid, 1.0)
    return (mean * valid).sum(-1) / valid.sum(-1)


def head_diversity(weights: Float[Tensor, "b h n m"]) -> Float[Tensor, " h"]:
    """Return the mean total variation distance of each head from the other heads, 0 to 1.

    The total variation distance of two rows is half the sum of absolute differences. A single head
    gives 0.

    Example:
        >>> weights = torch.tensor([[[[1.0, 0.0]], [[0.0, 1.0]], [[0.5, 0.5]]]])
        >>> head_diversity(weights)
        tensor([0.7500, 0.7500, 0.5000])
    """
    heads = weights.shape[1]
    distances = [
        (weights - weights[:, head : head + 1]).abs().sum(-1).mean((0, 2)).sum() / 2
        for head in range(heads)
    ]
    return torch.stack(distances) / max(heads - 1, 1)


def received_attention(weights: Float[Tensor, "*b n m"]) -> Float[Tensor, "*b m"]:
    """Return the fraction of all attention that each key receives; the fractions sum to 1.

    Example:
        >>> received_attention(torch.tensor([[0.75, 0.25], [0.25, 0.75]]))
        tensor([0.5000, 0.5000])

    Source:
        Xiao et al. 2024, arXiv:2309.17453 (attention sinks); Darcet et al. 2024, arXiv:2309.16588
        (registers).
    """
    return weights.mean(-2)
