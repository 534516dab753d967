"""What rows of attention are like: how even, how wide, how different from head to head."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

SATURATED = 0.9  # of a row's weight on a single key


def row_entropy(weights: Float[Tensor, "*b n m"], keys: int | None = None) -> Float[Tensor, "*b n"]:
    """Return how even each row is: 0 if all of it is on one key, 1 if it is spread evenly.

    It is the entropy over that of an even row; 0 where there is only one key.

    Args:
        weights: Rows that sum to 1.
        keys: How many of the keys a row can reach, as in windows; all of them if None.

    Example:
        >>> row_entropy(torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]))
        tensor([0.5000, 1.0000])
    """
    reached = weights.shape[-1] if keys is None else keys
    return -torch.xlogy(weights, weights).sum(-1) / math.log(max(reached, 2))


def saturated_share(weights: Float[Tensor, "*b n m"]) -> Float[Tensor, "*b"]:
    """Return the share of rows that have over nine tenths of their weight on a single key.

    Example:
        >>> saturated_share(torch.tensor([[0.95, 0.05], [0.5, 0.5]]))
        tensor(0.5000)
    """
    return (weights.amax(-1) > SATURATED).to(weights).mean(-1)


def attended_distance(
    weights: Float[Tensor, "*b n m"], queries: Float[Tensor, "n 2"], keys: Float[Tensor, "m 2"]
) -> Float[Tensor, "*b"]:
    """Return how far away from itself a token looks, on average, in the unit of the places.

    Args:
        weights: Rows over keys that have a place; they are scaled to sum to 1. A row of zeros,
            all of whose weight lies on keys without a place, is left out.
        queries: Place of each query.
        keys: Place of each key.

    Returns:
        The mean over the queries; NaN if none of them looks at a place.

    Example:
        >>> places = torch.tensor([[0.5, 0.5], [0.5, 3.5]])
        >>> attended_distance(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), places, places)
        tensor(0.7500)

    Source:
        Dosovitskiy et al. 2021, arXiv:2010.11929, section 4.5 and figure 7, mean attention
        distance.
    """
    apart = torch.cdist(queries, keys).to(weights)
    placed = weights.sum(-1)
    looks = placed > 0
    mean = (weights * apart).sum(-1) / placed.where(looks, 1.0)
    return (mean * looks).sum(-1) / looks.sum(-1)


def head_diversity(weights: Float[Tensor, "b h n m"]) -> Float[Tensor, " h"]:
    """Return how differently each head looks from the other ones: 0 as they do, 1 elsewhere.

    It is the mean of half the sum of |difference| of two rows: the share of the attention that
    would have to move. A single head gives 0.

    Example:
        >>> apart = torch.tensor([[[[1.0, 0.0]], [[0.0, 1.0]], [[0.5, 0.5]]]])
        >>> head_diversity(apart)
        tensor([0.7500, 0.7500, 0.5000])
    """
    heads = weights.shape[1]
    moved = [
        (weights - weights[:, head : head + 1]).abs().sum(-1).mean((0, 2)).sum() / 2
        for head in range(heads)
    ]
    return torch.stack(moved) / max(heads - 1, 1)


def received_share(weights: Float[Tensor, "*b n m"]) -> Float[Tensor, "*b m"]:
    """Return the share of all attention that each key receives; the shares sum to 1.

    Example:
        >>> received_share(torch.tensor([[0.75, 0.25], [0.25, 0.75]]))
        tensor([0.5000, 0.5000])

    Source:
        Xiao et al. 2024, arXiv:2309.17453 (attention sinks); Darcet et al. 2024, arXiv:2309.16588
        (registers), which such keys led to.
    """
    return weights.mean(-2)
