"""Pixels taken away, or put back, in the order of a map."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def removal_ranks(values: Float[Tensor, "b n"], ties: Int[Tensor, "b n"]) -> Int[Tensor, "b n"]:
    """Return when each pixel's turn comes, counted from 0: that of the largest value is first.

    Args:
        values: Of each pixel.
        ties: For each image a permutation of its pixels, in which those of equal value follow
            each other. Without it the upper part of an image would go first wherever a map is 0.

    Example:
        >>> removal_ranks(torch.tensor([[0.5, 0.9, 0.5]]), torch.tensor([[2, 0, 1]]))
        tensor([[2, 0, 1]])
    """
    order = ties.gather(1, values.gather(1, ties).argsort(dim=1, descending=True, stable=True))
    turns = torch.arange(values.shape[1], device=values.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, turns)


def first_removed(
    ranks: Int[Tensor, "b n"], share: float, size: tuple[int, int]
) -> Bool[Tensor, "b y x"]:
    """Return which pixels belong to the first share of those that are taken away.

    Args:
        ranks: Turn of each pixel, row by row.
        share: Of all pixels, 0 to 1; rounded to whole pixels.
        size: Height and width of the image.

    Raises:
        ValueError: If the share lies outside, or the size does not hold the pixels.

    Example:
        >>> first_removed(torch.tensor([[3, 0, 2, 1]]), 0.5, (2, 2))
        tensor([[[False,  True],
                 [False,  True]]])
    """
    if not 0 <= share <= 1:
        raise ValueError(f"a share must be 0 to 1, got {share}")
    if size[0] * size[1] != ranks.shape[1]:
        raise ValueError(f"{size[0]} x {size[1]} pixels are not {ranks.shape[1]}")
    return (ranks < round(share * ranks.shape[1])).view(len(ranks), *size)


def curve_area(scores: Float[Tensor, "*b s"], shares: Float[Tensor, " s"]) -> Float[Tensor, "*b"]:
    """Return the area under scores over shares of pixels, by the trapezoid rule.

    Args:
        scores: At each share.
        shares: Ascending, from 0 to 1, both included.

    Raises:
        ValueError: If the shares do not run from 0 to 1.

    Example:
        >>> curve_area(torch.tensor([1.0, 0.5, 0.0]), torch.tensor([0.0, 0.5, 1.0]))
        tensor(0.5000)

    Source:
        Petsiuk et al. 2018, arXiv:1806.07421, section 4.2.
    """
    ends = len(shares) > 1 and float(shares[0]) == 0 and float(shares[-1]) == 1
    if not ends or not bool((shares.diff() > 0).all()):
        given = [float(share) for share in shares]
        raise ValueError(f"shares must ascend from 0 to 1, both included, got {given}")
    return torch.trapezoid(scores, shares.to(scores), dim=-1)


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
