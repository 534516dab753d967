"""Weights inside windows, laid out over the whole grid and taken back."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from visattn.functional.windows import slots_of_places, weights_over_keys


def unrolled_windows(
    weights: Float[Tensor, "b h w p p"],
    places: Int[Tensor, "w p"],
    count: int,
    rows: slice | list[int] | None = None,
) -> Float[Tensor, "b h r {count}"]:
    """Return weights inside windows as weights over all tokens, 0 outside of the window.

    A row sums to less than 1 where empty slots of its window took a share.

    Args:
        weights: Of the slots of each window over the slots of the same window.
        places: Which token each slot holds, each token once; -1 for none.
        count: How many tokens there are.
        rows: Whose rows are wanted; None for all.

    Example:
        >>> halves = torch.full((1, 1, 2, 2, 2), 0.5)
        >>> unrolled_windows(halves, torch.tensor([[1, 2], [-1, 0]]), 3)[0, 0]
        tensor([[0.5000, 0.0000, 0.0000],
                [0.0000, 0.5000, 0.5000],
                [0.0000, 0.5000, 0.5000]])

    Source:
        Liu et al. 2021, arXiv:2103.14030, section 3.2.
    """
    weights = weights.masked_fill((places < 0).unsqueeze(1), 0.0)
    slots = slots_of_places(places, count)
    slots = slots if rows is None else slots[rows]
    own = weights.flatten(2, 3)[:, :, slots]
    return weights_over_keys(own, places[slots // places.shape[1]], count)


def rolled_windows(
    laid: Float[Tensor, "b h n n"],
    weights: Float[Tensor, "b h w p p"],
    places: Int[Tensor, "w p"],
) -> Float[Tensor, "b h w p p"]:
    """Return weights over all tokens as weights inside windows, which `unrolled_windows` undoes.

    Args:
        laid: Over all tokens.
        weights: Inside windows; those of empty slots are taken from here.
        places: Which token each slot holds, each token once; -1 for none.

    Example:
        >>> places = torch.tensor([[1, 2], [-1, 0]])
        >>> weights = torch.rand(1, 1, 2, 2, 2)
        >>> torch.equal(rolled_windows(unrolled_windows(weights, places, 3), weights, places),
        ...     weights)
        True
    """
    known = places.clamp(min=0)
    rows = laid[:, :, known.flatten()].reshape(*weights.shape[:4], laid.shape[3])
    own = rows.gather(-1, known.unsqueeze(1).expand(weights.shape))
    held = places >= 0
    return torch.where(held.unsqueeze(-1) & held.unsqueeze(-2), own, weights)
