"""Attention weighed by how much it counts for a score: the products of weights and gradients."""

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor


def rising_weights(
    weights: Float[Tensor, "b h n m"], gradients: Float[Tensor, "b h n m"]
) -> Float[Tensor, "b n m"]:
    """Return the mean over heads of weight times gradient, where it is positive in that head.

    Args:
        weights: Of a layer.
        gradients: Of a score with respect to them.

    Example:
        >>> import torch
        >>> weights = torch.tensor([[[[0.5, 0.5]], [[0.9, 0.1]]]])
        >>> gradients = torch.tensor([[[[2.0, -2.0]], [[-1.0, 10.0]]]])
        >>> rising_weights(weights, gradients)
        tensor([[[0.5000, 0.5000]]])

    Source:
        Chefer, Gur and Wolf 2021, arXiv:2103.15679, equation 5.
    """
    return (weights * gradients).relu().mean(1)


def rising_means(
    weights: Float[Tensor, "b h n m"], gradients: Float[Tensor, "b h n m"]
) -> Float[Tensor, "b n m"]:
    """Return the mean over heads of weight times gradient, where that mean is positive.

    It stands for a layer's weights in gradient rollout.

    Args:
        weights: Of a layer.
        gradients: Of a score with respect to them, of the same layer.

    Example:
        >>> import torch
        >>> weights = torch.tensor([[[[0.5, 0.5]], [[0.9, 0.1]]]])
        >>> gradients = torch.tensor([[[[2.0, -2.0]], [[-1.0, 10.0]]]])
        >>> rising_means(weights, gradients)
        tensor([[[0.0500, 0.0000]]])

    Source:
        Gildenblat 2020, "Exploring Explainability for Vision Transformers"; there the layers meet
        the gradients of others, here each meets its own.
    """
    return (weights * gradients).mean(1).relu()


def relevance_rows(
    layers: Sequence[Float[Tensor, "b n n"]], rows: Float[Tensor, "b r n"]
) -> Float[Tensor, "b r n"]:
    """Return how much of each input token counts in some mixtures of output tokens.

    Each layer adds what it carries on to what there was: R + A R, beginning with the identity.

    Args:
        layers: Weighed weights of each layer, the first one first, as `rising_weights` gives them.
        rows: Of what one asks: (1, 0, 0, ...) is the first token.

    Example:
        >>> import torch
        >>> layer = torch.tensor([[[0.0, 0.5], [0.0, 0.25]]])
        >>> relevance_rows([layer, layer], torch.tensor([[[1.0, 0.0]]]))
        tensor([[[1.0000, 1.1250]]])

    Source:
        Chefer, Gur and Wolf 2021, arXiv:2103.15679, equation 6, for self-attention.
    """
    for weights in reversed(layers):
        rows = rows + rows @ weights
    return rows
