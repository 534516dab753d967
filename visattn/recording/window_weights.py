"""Attention weights inside windows, as weights over all tokens and back."""

import torch
from jaxtyping import Float, Int
from torch import Tensor


def window_slots(indices: Int[Tensor, "w p"], count: int) -> Int[Tensor, " {count}"]:
    """Return the slot of each position, counted window by window: the inverse of window indices.

    Indices of -1 are padding.

    Example:
        >>> window_slots(torch.tensor([[1, 2], [-1, 0]]), 3)
        tensor([3, 0, 1])
    """
    # Padding is -1 and sorts to the front; behind it the slots follow in the order of positions.
    return indices.flatten().argsort()[indices.numel() - count :]


def scatter_weights(
    weights: Float[Tensor, "*b n p"], indices: Int[Tensor, "n p"], count: int
) -> Float[Tensor, "*b n {count}"]:
    """Return weights over p keys per query as dense weights over all keys.

    Negative indices are padding, whose weights are zero.

    Example:
        >>> scatter_weights(torch.tensor([[0.25, 0.75]]), torch.tensor([[2, 0]]), 3)
        tensor([[0.7500, 0.0000, 0.2500]])
    """
    # Padding has weight 0, so that it may be added to the cell 0 that the clamp turns it into.
    dense = weights.new_zeros((*weights.shape[:-1], count))
    return dense.scatter_add(-1, indices.clamp(min=0).expand(weights.shape), weights)


def window_weights_to_dense(
    weights: Float[Tensor, "b h w p p"],
    indices: Int[Tensor, "w p"],
    count: int,
    rows: slice | list[int] | None = None,
) -> Float[Tensor, "b h r {count}"]:
    """Return weights inside windows as dense weights over all tokens, 0 outside the window.

    A row sums to less than 1 if padding of its window received weight.

    Args:
        indices: Token of each slot, each token once; -1 for padding.
        rows: Tokens whose rows are returned; all if None.

    Example:
        >>> halves = torch.full((1, 1, 2, 2, 2), 0.5)
        >>> window_weights_to_dense(halves, torch.tensor([[1, 2], [-1, 0]]), 3)[0, 0]
        tensor([[0.5000, 0.0000, 0.0000],
                [0.0000, 0.5000, 0.5000],
                [0.0000, 0.5000, 0.5000]])

    Source:
        Liu et al. 2021, arXiv:2103.14030, section 3.2.
    """
    weights = weights.masked_fill((indices < 0).unsqueeze(1), 0.0)
    slots = window_slots(indices, count)
    slots = slots if rows is None else slots[rows]
    own = weights.flatten(2, 3)[:, :, slots]
    return scatter_weights(own, indices[slots // indices.shape[1]], count)


def dense_to_window_weights(
    dense: Float[Tensor, "b h n n"],
    weights: Float[Tensor, "b h w p p"],
    indices: Int[Tensor, "w p"],
) -> Float[Tensor, "b h w p p"]:
    """Return dense weights as weights inside windows: the inverse of `window_weights_to_dense`.

    Args:
        weights: Weights inside windows, used for padding.
        indices: Token of each slot, each token once; -1 for padding.

    Example:
        >>> indices = torch.tensor([[1, 2], [-1, 0]])
        >>> weights = torch.rand(1, 1, 2, 2, 2)
        >>> dense = window_weights_to_dense(weights, indices, 3)
        >>> torch.equal(dense_to_window_weights(dense, weights, indices), weights)
        True
    """
    tokens = indices.clamp(min=0)
    rows = dense[:, :, tokens.flatten()].reshape(*weights.shape[:4], dense.shape[3])
    own = rows.gather(-1, tokens.unsqueeze(1).expand(weights.shape))
    # Dense weights know nothing of padding slots: these keep the weights that they had.
    valid = indices >= 0
    return torch.where(valid.unsqueeze(-1) & valid.unsqueeze(-2), own, weights)
