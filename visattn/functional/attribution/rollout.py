"""Attention through all layers at once: what a token took from which place of the image."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

Fusion = Literal["mean", "max", "min"]


def fused_heads(
    weights: Float[Tensor, "b h n m"], fusion: Fusion = "mean"
) -> Float[Tensor, "b n m"]:
    """Return one matrix of weights for all heads of a layer.

    Args:
        weights: Of each head.
        fusion: Whether to take the mean, the largest or the smallest.

    Raises:
        ValueError: If the fusion is none of these.

    Example:
        >>> heads = torch.tensor([[[[0.9, 0.1]], [[0.5, 0.5]]]])
        >>> fused_heads(heads, "max")
        tensor([[[0.9000, 0.5000]]])
    """
    if fusion not in get_args(Fusion):
        raise ValueError(f"heads are fused by {', '.join(get_args(Fusion))}, got {fusion!r}")
    if fusion == "mean":
        return weights.mean(1)
    return weights.amax(1) if fusion == "max" else weights.amin(1)


def without_weakest(
    weights: Float[Tensor, "b n m"], share: float, *, kept: int = 0
) -> Float[Tensor, "b n m"]:
    """Return the weights with the weakest of them set to 0, in each image for itself.

    Args:
        weights: Of a layer.
        share: Of the weights that may be left out, how many are, 0 to below 1; rounded down.
        kept: Columns at the front that are never left out, such as that of the class token.

    Raises:
        ValueError: If the share is not in [0, 1).

    Example:
        >>> without_weakest(torch.tensor([[[0.1, 0.2, 0.7], [0.3, 0.3, 0.4]]]), 0.5, kept=1)
        tensor([[[0.1000, 0.0000, 0.7000],
                 [0.3000, 0.0000, 0.4000]]])

    Source:
        Not in the paper; after the `discard_ratio` of a well-known implementation. Deviation: that
        one spares a single number, here all columns that were meant are spared.
    """
    if not 0 <= share < 1:
        raise ValueError(f"the share of weights to leave out must be in [0, 1), got {share}")
    free = weights[:, :, kept:].flatten(1)
    weakest = free.argsort(dim=1, stable=True)[:, : int(share * free.shape[1])]
    left = free.scatter(1, weakest, 0.0).view_as(weights[:, :, kept:])
    return torch.cat((weights[:, :, :kept], left), 2)


def rollout_rows(
    layers: Sequence[Float[Tensor, "b n n"]],
    rows: Float[Tensor, "b r n"],
    *,
    residual: float = 0.5,
) -> Float[Tensor, "b r n"]:
    """Return how much of each input token is in some mixtures of output tokens.

    Each layer is mixed with the identity, which stands for its skip connection, its rows are scaled
    to sum to 1, and all are multiplied. Only vectors meet matrices: to begin with the identity as
    `rows` gives the whole product.

    Args:
        layers: Weights of each layer, the first one first; not negative.
        rows: Of what one asks: (1, 0, 0, ...) is the first token.
        residual: Share of the identity in each layer, in [0, 1].

    Raises:
        ValueError: If the share is not in [0, 1].

    Example:
        >>> even = torch.full((1, 2, 2), 0.5)
        >>> rollout_rows([even, even], torch.tensor([[[1.0, 0.0]]]))
        tensor([[[0.6250, 0.3750]]])

    Source:
        Abnar and Zuidema 2020, arXiv:2005.00928, section 3, with residual 1/2.
    """
    if not 0 <= residual <= 1:
        raise ValueError(f"the residual share must be in [0, 1], got {residual}")
    for weights in reversed(layers):
        # rows · (residual 1 + (1 - residual) A) without the matrix of the sum
        sums = residual + (1 - residual) * weights.sum(2)
        scaled = torch.where(sums > 0, 1 / sums, 0.0).unsqueeze(1) * rows
        rows = residual * scaled + (1 - residual) * (scaled @ weights)
    return rows


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
