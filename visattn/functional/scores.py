"""How well a query fits each key: the scores that a softmax turns into weights."""

import torch
from jaxtyping import Float
from torch import Tensor


def additive_scores(
    query: Float[Tensor, "*b d"],
    keys: Float[Tensor, "*#b n d"],
    vector: Float[Tensor, " d"],
) -> Float[Tensor, "*b n"]:
    """Return the additive score of each key; any real number, and at most the sum of |vector|.

    Both sides arrive projected, so that a loop over queries projects its keys once.

    Args:
        query: Projected queries.
        keys: Projected keys; leading axes of size one are shared by all queries.
        vector: What a key that fits looks like after the tanh.

    Example:
        >>> additive_scores(torch.zeros(2), torch.tensor([[0.0, 0.0], [9.0, 9.0]]), torch.ones(2))
        tensor([0.0000, 2.0000])

    Source:
        Bahdanau et al. 2015, arXiv:1409.0473, appendix A.1.2; Xu et al. 2015, arXiv:1502.03044,
        equation 4.
    """
    return torch.tanh(query.unsqueeze(-2) + keys) @ vector


def attended(
    weights: Float[Tensor, "*b n"], values: Float[Tensor, "*b n d"]
) -> Float[Tensor, "*b d"]:
    """Return the mean of the values under the weights, which sum to one over `n`.

    Example:
        >>> attended(torch.tensor([0.25, 0.75]), torch.tensor([[0.0, 4.0], [4.0, 0.0]]))
        tensor([3., 1.])
    """
    return (weights.unsqueeze(-2) @ values).squeeze(-2)
