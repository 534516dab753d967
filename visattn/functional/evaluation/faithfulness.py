"""Perturbation curves and rank correlation for faithfulness metrics."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


def removal_ranks(values: Float[Tensor, "b n"], ties: Int[Tensor, "b n"]) -> Int[Tensor, "b n"]:
    """Return the rank of each pixel in descending order, counted from 0.

    Args:
        values: Map values.
        ties: Permutation of the pixels of each image that orders ties. Row-major order would
            remove the upper part of an image first wherever a map is 0.

    Example:
        >>> removal_ranks(torch.tensor([[0.5, 0.9, 0.5]]), torch.tensor([[2, 0, 1]]))
        tensor([[2, 0, 1]])
    """
    order = ties.gather(1, values.gather(1, ties).argsort(dim=1, descending=True, stable=True))
    ranks = torch.arange(values.shape[1], device=values.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, ranks)


def removal_mask(
    ranks: Int[Tensor, "b n"], fractions: Float[Tensor, " s"], image_size: tuple[int, int]
) -> Bool[Tensor, "s b y x"]:
    """Return the masks of the first fractions of removed pixels.

    Args:
        ranks: Rank of each pixel, row by row.
        fractions: Fractions of the pixels, 0 to 1; rounded to whole pixels.
        image_size: Height and width of the image.

    Raises:
        ValueError: If a fraction lies outside [0, 1], or the size does not match the ranks.

    Example:
        >>> removal_mask(torch.tensor([[3, 0, 2, 1]]), torch.tensor([0.5]), (2, 2))[0]
        tensor([[[False,  True],
                 [False,  True]]])
    """
    shares = [float(share) for share in fractions]
    if not all(0 <= share <= 1 for share in shares):
        raise ValueError(f"fractions must be 0 to 1, got {shares}")
    if image_size[0] * image_size[1] != ranks.shape[1]:
        raise ValueError(f"{image_size[0]} x {image_size[1]} pixels are not {ranks.shape[1]}")
    counts = torch.tensor([round(share * ranks.shape[1]) for share in shares], device=ranks.device)
    order = ranks.reshape(-1, *image_size)
    return order < counts[:, None, None, None]


def area_under_curve(
    scores: Float[Tensor, "*b s"], fractions: Float[Tensor, " s"]
) -> Float[Tensor, "*b"]:
    """Return the area under a perturbation curve by the trapezoid rule.

    Args:
        scores: Score at each fraction.
        fractions: Fractions of the pixels, increasing from 0 to 1, both included.

    Raises:
        ValueError: If the fractions do not increase from 0 to 1.

    Example:
        >>> area_under_curve(torch.tensor([1.0, 0.5, 0.0]), torch.tensor([0.0, 0.5, 1.0]))
        tensor(0.5000)

    Source:
        Petsiuk et al. 2018, arXiv:1806.07421, section 4.2.
    """
    ends = len(fractions) > 1 and float(fractions[0]) == 0 and float(fractions[-1]) == 1
    if not ends or not bool((fractions.diff() > 0).all()):
        numbers = [float(share) for share in fractions]
        raise ValueError(f"fractions must increase from 0 to 1, both included, got {numbers}")
    return torch.trapezoid(scores, fractions.to(scores), dim=-1)


def average_ranks(values: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
    """Return the rank of each value, from 0; ties get their average rank.

    Example:
        >>> average_ranks(torch.tensor([[0.5, 0.1, 0.5]]))
        tensor([[1.5000, 0.0000, 1.5000]])
    """
    contiguous = values.contiguous()
    ordered = contiguous.sort(1).values
    below = torch.searchsorted(ordered, contiguous)
    up_to = torch.searchsorted(ordered, contiguous, right=True)
    return ((below + up_to - 1) / 2).to(values)


def spearman_correlation(
    values: Float[Tensor, "b n"], others: Float[Tensor, "b n"]
) -> Float[Tensor, " b"]:
    """Return Spearman's rank correlation, -1 to 1; 0 if one of the two is constant.

    Example:
        >>> rising = torch.tensor([[1.0, 2.0, 3.0]])
        >>> spearman_correlation(rising, rising.exp()), spearman_correlation(rising, -rising)
        (tensor([1.]), tensor([-1.]))

    Source:
        Adebayo et al. 2018, arXiv:1810.03292, section 2, as a similarity of maps.
    """
    a, b = (average_ranks(part.double()) for part in (values, others))
    a, b = a - a.mean(1, keepdim=True), b - b.mean(1, keepdim=True)
    spread = (a.square().sum(1) * b.square().sum(1)).sqrt()
    return ((a * b).sum(1) / spread.where(spread > 0, 1.0)).to(values)
