"""Attention score functions: dot, scaled dot, general, additive, concat, location, content.

Scores have one row per query, so that a softmax over the last axis gives attention weights.
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
    """Return scaled dot products of queries and keys.

    Args:
        query: Queries.
        keys: Keys.
        scale: Factor of the dot products; 1 / sqrt(d) if None.

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
    """Return bilinear ("general") scores: query · weight · key.

    Queries and keys may have different dimensions.

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
    """Return additive (Bahdanau) scores: vector · tanh(query + key).

    Queries and keys are already projected, so that a decoding loop projects the keys once.

    Args:
        query: Projected queries.
        keys: Projected keys; leading axes of size one are broadcast.
        vector: Score vector v.

    Example:
        >>> keys = torch.tensor([[0.0, 0.0], [9.0, 9.0]])
        >>> additive_scores(torch.zeros(1, 2), keys, torch.ones(2))
        tensor([[0.0000, 2.0000]])

    Source:
        Bahdanau et al. 2015, arXiv:1409.0473, appendix A.1.2; Xu et al. 2015, arXiv:1502.03044,
        equation 4.
    """
    return torch.tanh(query.unsqueeze(-2) + keys.unsqueeze(-3)) @ vector


def bounded_additive_scores(
    query: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*#b m d"],
    vector: Float[Tensor, " d"],
    bias: Float[Tensor, " 1"],
) -> Float[Tensor, "*b n m"]:
    """Return tanh(vector · (query + key) + bias): scores between -1 and 1.

    With queries and keys that passed a tanh each, these are the scores of the code of stacked
    attention networks, whose paper has `additive_scores`. Two things follow. A softmax of m such
    scores cannot exceed e² / (e² + m - 1): 3.7 % on 196 cells. And since tanh is monotonic and the
    query adds the same number to all keys, the order of the keys by their score is the same for
    all queries.

    Args:
        query: Queries, after their tanh.
        keys: Keys, after their tanh; leading axes of size one are broadcast.
        vector: Score vector.
        bias: Added before the tanh.

    Example:
        >>> keys = torch.tensor([[0.0, 0.0], [9.0, 9.0]])
        >>> bounded_additive_scores(torch.zeros(1, 2), keys, torch.ones(2), torch.zeros(1))
        tensor([[0., 1.]])

    Source:
        Code of Yang et al. 2016, github.com/zcyang/imageqa-san; the paper is arXiv:1511.02274.
    """
    return torch.tanh((query @ vector).unsqueeze(-1) + (keys @ vector).unsqueeze(-2) + bias)


def concat_scores(
    query: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*#b m e"],
    weight: Float[Tensor, "hidden d_plus_e"],
    vector: Float[Tensor, " hidden"],
) -> Float[Tensor, "*b n m"]:
    """Return concat scores: vector · tanh(weight · [query; key]).

    Since the layer is linear, queries and keys are projected separately: these are additive scores
    with both weights in one matrix.

    Args:
        query: Queries.
        keys: Keys.
        weight: Weight of the layer; its first columns belong to the query.
        vector: Score vector v.

    Raises:
        ValueError: If the weight does not have as many columns as query and key together.

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
            f"the weight must have as many columns as query and key together, {width} + {other}, "
            f"got {weight.shape[-1]}"
        )
    from_query, from_key = weight[:, :width], weight[:, width:]
    return additive_scores(linear(query, from_query), linear(keys, from_key), vector)


def location_scores(
    query: Float[Tensor, "*b n d"], weight: Float[Tensor, "most d"], keys: int
) -> Float[Tensor, "*b n m"]:
    """Return location-based scores, which depend on the query only and not on the keys.

    Args:
        query: Queries.
        weight: One row per key position, up to the maximum number of keys.
        keys: Number of keys. Padding must be masked afterwards.

    Raises:
        ValueError: If there are more keys than rows of the weight.

    Example:
        >>> location_scores(torch.ones(1, 2), torch.tensor([[1.0, 1.0], [2.0, 0.0], [9.0, 9.0]]), 2)
        tensor([[2., 2.]])

    Source:
        Luong et al. 2015, arXiv:1508.04025, section 3.1, location.
    """
    if not 0 <= keys <= len(weight):
        raise ValueError(
            f"the weight has rows for at most {len(weight)} keys, got {keys}; "
            "create it for the maximum number of keys"
        )
    return linear(query, weight[:keys])


def content_scores(
    query: Float[Tensor, "*b n d"],
    keys: Float[Tensor, "*#b m d"],
    sharpness: Float[Tensor, "*#b #n"] | float = 1.0,
    *,
    eps: float = 1e-6,
) -> Float[Tensor, "*b n m"]:
    """Return content-based scores: cosine similarity times a sharpness per query.

    Norms are computed in float32 at least.

    Args:
        query: Queries.
        keys: Keys.
        sharpness: Positive factor (the paper's β); for the output of a network take its softplus.
        eps: Vectors shorter than this score 0 and receive no gradient.

    Example:
        >>> keys = torch.tensor([[0.5, 0.0], [0.0, 9.0], [-3.0, 0.0]])
        >>> content_scores(torch.tensor([[2.0, 0.0]]), keys, 10.0)
        tensor([[ 10.,   0., -10.]])

    Source:
        Graves et al. 2014, arXiv:1410.5401, equations 5 and 6, without the softmax; the cosine of
        a zero vector, which the paper leaves open, is 0.
    """
    cosine = dot_scores(_unit_vectors(query, eps), _unit_vectors(keys, eps)).to(query.dtype)
    return cosine * (sharpness.unsqueeze(-1) if isinstance(sharpness, Tensor) else sharpness)


def context_vector(
    weights: Float[Tensor, "*b n"], values: Float[Tensor, "*#b n d"]
) -> Float[Tensor, "*b d"]:
    """Return the context vector: the weighted sum of the values.

    Example:
        >>> context_vector(torch.tensor([0.25, 0.75]), torch.tensor([[0.0, 4.0], [4.0, 0.0]]))
        tensor([3., 1.])
    """
    return (weights.unsqueeze(-2) @ values).squeeze(-2)


def _unit_vectors(vectors: Float[Tensor, "*b n d"], eps: float) -> Float[Tensor, "*b n d"]:
    float_vectors = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
    squares, minimum = float_vectors.square().sum(-1, keepdim=True), eps**2
    unit = float_vectors * squares.clamp(min=minimum).rsqrt()
    return unit.masked_fill(squares < minimum, 0.0)
