"""How alike two maps are, by the order of their values alone."""

import torch
from jaxtyping import Float
from torch import Tensor


def mean_ranks(values: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
    """Return the rank of each value, from 0; equal values share the mean of their ranks.

    Example:
        >>> mean_ranks(torch.tensor([[0.5, 0.1, 0.5]]))
        tensor([[1.5000, 0.0000, 1.5000]])
    """
    held = values.contiguous()
    ordered = held.sort(1).values
    below = torch.searchsorted(ordered, held)
    up_to = torch.searchsorted(ordered, held, right=True)
    return ((below + up_to - 1) / 2).to(values)


def rank_correlation(
    values: Float[Tensor, "b n"], others: Float[Tensor, "b n"]
) -> Float[Tensor, " b"]:
    """Return Spearman's correlation, -1 to 1; 0 if one of the two is the same everywhere.

    Example:
        >>> rising = torch.tensor([[1.0, 2.0, 3.0]])
        >>> rank_correlation(rising, rising.exp()), rank_correlation(rising, -rising)
        (tensor([1.]), tensor([-1.]))

    Source:
        Adebayo et al. 2018, arXiv:1810.03292, section 2, as a measure of likeness of maps.
    """
    a, b = (mean_ranks(one.double()) for one in (values, others))
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    spread = (a.square().sum(1) * b.square().sum(1)).sqrt()
    return ((a * b).sum(1) / spread.where(spread > 0, 1.0)).to(values)
