"""Co-attention of a question and an image: each is attended to with the help of the other."""

from typing import NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

from visattn.functional.attention.scores import context_vector
from visattn.functional.attention.softmax import masked_softmax


class CoattentionOutput(NamedTuple):
    """What co-attention reads from the image and from the question, and its weights."""

    image: Float[Tensor, "r d"]
    question: Float[Tensor, "r d"]
    image_weights: Float[Tensor, "r n"]
    question_weights: Float[Tensor, "r t"]
    """Zero at padding."""
    affinity: Float[Tensor, "r t n"]
    """Affinity of each word and cell, between -1 and 1: no distribution. Zero at padding."""


def parallel_coattention(
    places: Float[Tensor, "r n d"],
    words: Float[Tensor, "r t d"],
    mask: Bool[Tensor, "r t"],
    *,
    affinity_weight: Float[Tensor, "d d"],
    image_weight: Float[Tensor, "a d"],
    question_weight: Float[Tensor, "a d"],
    image_vector: Float[Tensor, " a"],
    question_vector: Float[Tensor, " a"],
) -> CoattentionOutput:
    """Return parallel co-attention: image and question attend to each other at the same time.

    With C = tanh(Q W_b Vᵀ), the image is attended to with the scores
    w_v · tanh(W_v V + Cᵀ (W_q Q)) and the question with w_q · tanh(W_q Q + C (W_v V)).

    Args:
        places: Cells of the image, V.
        words: Words of the question, Q.
        mask: True where there is a word. The affinity of padding is set to 0, so that padding
            changes nothing.
        affinity_weight: W_b.
        image_weight: W_v.
        question_weight: W_q.
        image_vector: w_v.
        question_vector: w_q.

    Example:
        >>> places, words = torch.zeros(1, 3, 2), torch.zeros(1, 1, 2)
        >>> eye, vector = torch.eye(2), torch.ones(2)
        >>> output = parallel_coattention(
        ...     places, words, torch.ones(1, 1, dtype=torch.bool), affinity_weight=eye,
        ...     image_weight=eye, question_weight=eye, image_vector=vector, question_vector=vector)
        >>> output.image_weights, output.question_weights
        (tensor([[0.3333, 0.3333, 0.3333]]), tensor([[1.]]))

    Source:
        Lu et al. 2016, arXiv:1606.00061, equations 3 to 5. Deviation: padding is masked in C.
    """
    affinity = (words @ affinity_weight @ places.mT).tanh().masked_fill(~mask[..., None], 0.0)
    image_part, question_part = places @ image_weight.mT, words @ question_weight.mT
    image_scores = (image_part + affinity.mT @ question_part).tanh() @ image_vector
    question_scores = (question_part + affinity @ image_part).tanh() @ question_vector
    image_weights = image_scores.softmax(-1)
    question_weights = masked_softmax(question_scores, mask)
    return CoattentionOutput(
        context_vector(image_weights, places),
        context_vector(question_weights, words),
        image_weights,
        question_weights,
        affinity,
    )


def guided_attention(
    features: Float[Tensor, "r n d"],
    guidance: Float[Tensor, "r a"] | None,
    mask: Bool[Tensor, "r n"] | None = None,
    *,
    feature_weight: Float[Tensor, "a d"],
    vector: Float[Tensor, " a"],
) -> tuple[Float[Tensor, "r d"], Float[Tensor, "r n"]]:
    """Return one step of alternating co-attention: attention to features, guided by a vector.

    The scores are w · tanh(W_x X + W_g g). Alternating co-attention attends to the question
    without guidance, to the image guided by what was read, and to the question guided by that.

    Args:
        features: Words or cells, X.
        guidance: W_g g, projected guidance; None for the first step, which has none.
        mask: True where there is a word; None if all features are real.
        feature_weight: W_x.
        vector: w.

    Example:
        >>> features = torch.tensor([[[0.0], [2.0]]])
        >>> one = torch.ones(1, 1)
        >>> guided_attention(features, None, feature_weight=0 * one, vector=torch.ones(1))
        (tensor([[1.]]), tensor([[0.5000, 0.5000]]))

    Source:
        Lu et al. 2016, arXiv:1606.00061, equation 6, without the term 1ᵀ of its first factor.
    """
    hidden = features @ feature_weight.mT
    if guidance is not None:
        hidden = hidden + guidance.unsqueeze(-2)
    scores = hidden.tanh() @ vector
    weights = masked_softmax(scores, mask)
    return context_vector(weights, features), weights
