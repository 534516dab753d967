"""Branch attention: softmax over branches (SKNet) and splits (ResNeSt)."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor


def branch_softmax(scores: Float[Tensor, "b m c"]) -> Float[Tensor, "b m c"]:
    """Return softmax weights of the m branches; per channel they sum to 1.

    Example:
        >>> branch_softmax(torch.zeros(1, 2, 3))
        tensor([[[0.5000, 0.5000, 0.5000],
                 [0.5000, 0.5000, 0.5000]]])

    Source:
        Li et al. 2019, arXiv:1903.06586, equation 5.
    """
    return scores.softmax(1)


def radix_softmax(
    scores: Float[Tensor, "b mc"], *, radix: int, groups: int = 1
) -> Float[Tensor, "b m c"]:
    """Return the radix softmax: weights of the m = `radix` splits, per channel.

    A single split has a sigmoid gate instead.

    Args:
        scores: Logits ordered by group, split and channel.
        radix: Number of splits.
        groups: Number of groups of channels.

    Example:
        >>> radix_softmax(torch.zeros(1, 4), radix=2)
        tensor([[[0.5000, 0.5000],
                 [0.5000, 0.5000]]])

    Source:
        Zhang et al. 2020, arXiv:2004.08955, equation 3.
    """
    if radix == 1:
        return scores.sigmoid().unsqueeze(1)
    by_group = scores.reshape(scores.shape[0], groups, radix, -1)
    return branch_softmax(by_group.transpose(1, 2).flatten(2))


def merge_branches(
    branches: Sequence[Float[Tensor, "b c y x"]], weights: Float[Tensor, "b m c"]
) -> Float[Tensor, "b c y x"]:
    """Return the sum of the branches, weighted per channel.

    Raises:
        ValueError: If there are not as many weights as branches.

    Example:
        >>> ones = torch.ones(1, 1, 1, 2)
        >>> merge_branches((ones, 3 * ones), torch.tensor([[[0.5], [0.5]]]))
        tensor([[[[2., 2.]]]])

    Source:
        Li et al. 2019, arXiv:1903.06586, equation 6.
    """
    if len(branches) != weights.shape[1]:
        raise ValueError(
            f"each branch needs its weights, got {len(branches)} branches and weights "
            f"for {weights.shape[1]}"
        )
    shares = weights[..., None, None].unbind(1)
    total = branches[0] * shares[0]
    for branch, share in zip(branches[1:], shares[1:], strict=True):
        total = torch.addcmul(total, branch, share)
    return total
