"""How well each query fits each key: the scores that a softmax turns into weights.

A row of scores belongs to a query: they are as a softmax over their last axis takes them.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear


def dot_scores(
    query: Float[Tensor, "*b n d"], keys: Float[Tensor, "*#b m d"]
) -> Float[Tensor, "*b n m"]:
    """Return the dot product of each query with each key.

    Example:
        >>> dot_scores(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
        tensor([[11.,  2.]])

    Source:
        Luong et al. 2015, arXiv:1508.04025, section 3.1, dot.
    """
    return query @ keys.mT


def scaled_dot_scores(
    query: Float[Tensor, "*b n d"], keys: Float[Tensor, "*#b m d"], *, scale: float | None = None
) -> Float[Tensor, "*b n m"]:
    """Return dot products that stay of the same size whatever the width.

    Args:
        query: What is looked for.
        keys: What it is compared with.
        scale: What the products are multiplied by; 1 / sqrt(d) if not said.

    Example:
        >>> scaled_dot_scores(torch.ones(1, 4), torch.ones(2, 4))
        tensor([[2., 2.]])

    Source:
        Vaswani et al. 2017, arXiv:1706.03762, equation 1.
    """
    return dot_scores(query * (query.shape[-1] ** -0.5 if scale is None else scale), keys)


def general_scores(
    query: Float[Tensor, "*b n d"], keys: Float[Tensor, "*#b m e"], weight: Float[Tensor, "d e"]
) -> Float[Tensor, "*b n m"]:
    """Return bilinear scores: how well each key fits what the weight makes of a query.

    Queries and keys may be of different widths.

    Example:
        >>> weight = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
        >>> general_scores(torch.tensor([[1.0, 2.0]]), torch.tensor([[9.0, 3.0, 4.0]]), weight)
        tensor([[11.]])

    Source:
        Luong et al. 2015, arXiv:1508.04025, section 3.1, general.
    """
    return dot_scores(query @ weight, keys)


def additive_scores(
    query: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*#b m d"],
    vector: Float[Tensor, " d"],
) -> Float[Tensor, "*b n m"]:
    """Return additive scores: any real number, and at most the sum of |vector|.

    Both sides arrive projected, so that a loop over queries projects its keys once.

    Args:
        query: Projected queries.
        keys: Projected keys; leading axes of size one are shared by all queries.
        vector: What a key that fits looks like after the tanh.

    Example:
        >>> keys = torch.tensor([[0.0, 0.0], [9.0, 9.0]])
        >>> additive_scores(torch.zeros(1, 2), keys, torch.ones(2))
        tensor([[0.0000, 2.0000]])

    Source:
        Bahdanau et al. 2015, arXiv:1409.0473, appendix A.1.2; Xu et al. 2015, arXiv:1502.03044,
        equation 4.
    """
    return torch.tanh(query.unsqueeze(-2) + keys.unsqueeze(-3)) @ vector


def concat_scores(
    query: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*#b m e"],
    weight: Float[Tensor, "hidden d_plus_e"],
    vector: Float[Tensor, " hidden"],
) -> Float[Tensor, "*b n m"]:
    """Return what a layer makes of each query put before each key, along a vector.

    The layer is linear, so each side is projected once and no pair is ever put together: these are
    additive scores, their weight in one piece.

    Args:
        query: What is looked for.
        keys: What it is compared with.
        weight: Of the layer; its first columns are for the query.
        vector: What a key that fits looks like after the tanh.

    Raises:
        ValueError: If the weight is not as wide as query and key together.

    Example:
        >>> weight = torch.tensor([[1.0, -1.0]])
        >>> concat_scores(torch.ones(1, 1), torch.ones(2, 1), weight, torch.ones(1))
        tensor([[0., 0.]])

    Source:
        Luong et al. 2015, arXiv:1508.04025, section 3.1, concat.
    """
    width, other = query.shape[-1], keys.shape[-1]
    if weight.shape[-1] != width + other:
        raise ValueError(
            f"the weight must be as wide as query and key together, {width} + {other}, "
            f"got {weight.shape[-1]}"
        )
    from_query, from_key = weight[:, :width], weight[:, width:]
    return additive_scores(linear(query, from_query), linear(keys, from_key), vector)


def location_scores(
    query: Float[Tensor, "*b n d"], weight: Float[Tensor, "most d"], keys: int
) -> Float[Tensor, "*b n m"]:
    """Return scores of places, which depend on the query alone and not on what the places hold.

    Args:
        query: What decides where to look.
        weight: A row for each place that there may ever be.
        keys: How many places there are now: the first so many. Mask those that are padding.

    Raises:
        ValueError: If there are more places than rows.

    Example:
        >>> location_scores(torch.ones(1, 2), torch.tensor([[1.0, 1.0], [2.0, 0.0], [9.0, 9.0]]), 2)
        tensor([[2., 2.]])

    Source:
        Luong et al. 2015, arXiv:1508.04025, section 3.1, location.
    """
    if not 0 <= keys <= len(weight):
        raise ValueError(
            f"the weight has rows for at most {len(weight)} places, got {keys}; "
            "make it for the most that there may be"
        )
    return linear(query, weight[:keys])


def content_scores(
    query: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*#b m d"],
    sharpness: Float[Tensor, "*#b #n"] | float = 1.0,
    *,
    eps: float = 1e-6,
) -> Float[Tensor, "*b n m"]:
    """Return the cosine of each query and key, times the sharpness of the query.

    Half precision is widened for the lengths.

    Args:
        query: What is looked for.
        keys: What it is compared with.
        sharpness: Above 0: how far the weights are to gather at the best key. Where a network
            tells it, take the softplus of what it says.
        eps: What is shorter than this has no direction: it scores 0, and learns nothing here.

    Example:
        >>> keys = torch.tensor([[0.5, 0.0], [0.0, 9.0], [-3.0, 0.0]])
        >>> content_scores(torch.tensor([[2.0, 0.0]]), keys, 10.0)
        tensor([[ 10.,   0., -10.]])

    Source:
        Graves et al. 2014, arXiv:1410.5401, equations 5 and 6, without the softmax; the cosine of
        a zero vector, which the paper leaves open, is 0.
    """
    cosine = dot_scores(_directions(query, eps), _directions(keys, eps)).to(query.dtype)
    return cosine * (sharpness.unsqueeze(-1) if isinstance(sharpness, Tensor) else sharpness)


def attended(
    weights: Float[Tensor, "*b n"], values: Float[Tensor, "*b n d"]
) -> Float[Tensor, "*b d"]:
    """Return the mean of the values under the weights, which sum to one over `n`.

    Example:
        >>> attended(torch.tensor([0.25, 0.75]), torch.tensor([[0.0, 4.0], [4.0, 0.0]]))
        tensor([3., 1.])
    """
    return (weights.unsqueeze(-2) @ values).squeeze(-2)


def _directions(vectors: Float[Tensor, "*b n d"], eps: float) -> Float[Tensor, "*b n d"]:
    wide = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    squares, least = wide.square().sum(-1, keepdim=True), eps**2
    return (wide * squares.clamp(min=least).rsqrt()).masked_fill(squares < least, 0.0)
