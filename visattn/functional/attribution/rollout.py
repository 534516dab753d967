"""Attention rollout and relevance propagation through all layers."""

from collections.abc import Sequence
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

HeadFusion = Literal["mean", "max", "min"]


def fuse_heads(
    weights: Float[Tensor, "b h n m"], fusion: HeadFusion = "mean"
) -> Float[Tensor, "b n m"]:
    """Return the attention weights of a layer, fused over heads.

    Args:
        weights: Attention weights of each head.
        fusion: Whether to take the mean, the maximum or the minimum over heads.

    Raises:
        ValueError: If the fusion is unknown.

    Example:
        >>> heads = torch.tensor([[[[0.9, 0.1]], [[0.5, 0.5]]]])
        >>> fuse_heads(heads, "max")
        tensor([[[0.9000, 0.5000]]])
    """
    if fusion not in get_args(HeadFusion):
        raise ValueError(f"fusion must be one of {', '.join(get_args(HeadFusion))}, got {fusion!r}")
    if fusion == "mean":
        return weights.mean(1)
    return weights.amax(1) if fusion == "max" else weights.amin(1)


def discard_lowest(
    weights: Float[Tensor, "b n m"], ratio: float, *, num_kept_columns: int = 0
) -> Float[Tensor, "b n m"]:
    """Set the lowest attention weights of each image to 0.

    Args:
        weights: Attention weights of a layer.
        ratio: Fraction of the weights that are discarded, in [0, 1); rounded down.
        num_kept_columns: Leading columns that are never discarded, such as the class token.

    Raises:
        ValueError: If the ratio is not in [0, 1).

    Example:
        >>> weights = torch.tensor([[[0.1, 0.2, 0.7], [0.3, 0.3, 0.4]]])
        >>> discard_lowest(weights, 0.5, num_kept_columns=1)
        tensor([[[0.1000, 0.0000, 0.7000],
                 [0.3000, 0.0000, 0.4000]]])

    Source:
        Not in the paper; the `discard_ratio` of Gildenblat's implementation. Deviation: that one
        keeps a single entry of the class token, this one keeps whole columns.
    """
    if not 0 <= ratio < 1:
        raise ValueError(f"ratio must be in [0, 1), got {ratio}")
    free = weights[:, :, num_kept_columns:].flatten(1)
    lowest = free.argsort(dim=1, stable=True)[:, : int(ratio * free.shape[1])]
    remaining = free.scatter(1, lowest, 0.0).view_as(weights[:, :, num_kept_columns:])
    return torch.cat((weights[:, :, :num_kept_columns], remaining), 2)


def attention_rollout(
    layers: Sequence[Float[Tensor, "b n n"]],
    rows: Float[Tensor, "b r n"],
    *,
    residual: float = 0.5,
) -> Float[Tensor, "b r n"]:
    """Return attention rollout: the contribution of each input token to combinations of outputs.

    The attention of each layer is mixed with the identity for the skip connection, normalized, and
    multiplied with the other layers. Only the given rows are propagated; the identity as `rows`
    gives the whole matrix.

    Args:
        layers: Attention weights of each layer, first layer first; non-negative.
        rows: Combinations of output tokens; (1, 0, 0, ...) is the first token.
        residual: Weight of the identity in each layer, in [0, 1].

    Raises:
        ValueError: If the residual weight is not in [0, 1].

    Example:
        >>> uniform = torch.full((1, 2, 2), 0.5)
        >>> attention_rollout([uniform, uniform], torch.tensor([[[1.0, 0.0]]]))
        tensor([[[0.6250, 0.3750]]])

    Source:
        Abnar and Zuidema 2020, arXiv:2005.00928, section 3, with residual 1/2.
    """
    if not 0 <= residual <= 1:
        raise ValueError(f"the residual weight must be in [0, 1], got {residual}")
    for weights in reversed(layers):
        # rows · (residual 1 + (1 - residual) A) without the matrix of the sum
        sums = residual + (1 - residual) * weights.sum(2)
        scaled = torch.where(sums > 0, 1 / sums, 0.0).unsqueeze(1) * rows
        rows = residual * scaled + (1 - residual) * (scaled @ weights)
    return rows


def positive_grad_times_attention(
    weights: Float[Tensor, "b h n m"], gradients: Float[Tensor, "b h n m"]
) -> Float[Tensor, "b n m"]:
    """Return the mean over heads of the positive part of attention times gradient.

    Args:
        weights: Attention weights of a layer.
        gradients: Gradients of a score with respect to the weights.

    Example:
        >>> import torch
        >>> weights = torch.tensor([[[[0.5, 0.5]], [[0.9, 0.1]]]])
        >>> gradients = torch.tensor([[[[2.0, -2.0]], [[-1.0, 10.0]]]])
        >>> positive_grad_times_attention(weights, gradients)
        tensor([[[0.5000, 0.5000]]])

    Source:
        Chefer, Gur and Wolf 2021, arXiv:2103.15679, equation 5.
    """
    return (weights * gradients).relu().mean(1)


def gradient_rollout_weights(
    weights: Float[Tensor, "b h n m"], gradients: Float[Tensor, "b h n m"]
) -> Float[Tensor, "b n m"]:
    """Return the positive part of the mean over heads of attention times gradient.

    Gradient rollout uses it in place of the attention weights.

    Args:
        weights: Attention weights of a layer.
        gradients: Gradients of a score with respect to the weights.

    Example:
        >>> import torch
        >>> weights = torch.tensor([[[[0.5, 0.5]], [[0.9, 0.1]]]])
        >>> gradients = torch.tensor([[[[2.0, -2.0]], [[-1.0, 10.0]]]])
        >>> gradient_rollout_weights(weights, gradients)
        tensor([[[0.0500, 0.0000]]])

    Source:
        Gildenblat 2020, "Exploring Explainability for Vision Transformers"; that code pairs
        layers with gradients of other layers, this one pairs each layer with its own.
    """
    return (weights * gradients).mean(1).relu()


def propagate_relevance(
    layers: Sequence[Float[Tensor, "b n n"]], rows: Float[Tensor, "b r n"]
) -> Float[Tensor, "b r n"]:
    """Return the relevance of each input token for combinations of output tokens.

    Each layer updates the relevance R to R + A R, starting from the identity.

    Args:
        layers: Results of `positive_grad_times_attention`, first layer first.
        rows: Combinations of output tokens; (1, 0, 0, ...) is the first token.

    Example:
        >>> import torch
        >>> layer = torch.tensor([[[0.0, 0.5], [0.0, 0.25]]])
        >>> propagate_relevance([layer, layer], torch.tensor([[[1.0, 0.0]]]))
        tensor([[[1.0000, 1.1250]]])

    Source:
        Chefer, Gur and Wolf 2021, arXiv:2103.15679, equation 6, for self-attention.
    """
    for weights in reversed(layers):
        rows = rows + rows @ weights
    return rows


def propagate_decoder_relevance(
    layers: Sequence[Float[Tensor, "b t _keys"]],
    is_cross: Sequence[bool],
    rows: Float[Tensor, "b r t"],
) -> Float[Tensor, "b r n"]:
    """Return the relevance of each place of an image for combinations of words, in a decoder.

    It is `propagate_relevance` on the joint sequence of places and words: self-attention among the
    words updates their relevance, attention to the image adds to that of the places.

    Args:
        layers: Results of `positive_grad_times_attention` in the order in which the layers run;
            from words to words, or from words to places.
        is_cross: Whether each layer attends to the places.
        rows: Combinations of output words.

    Raises:
        ValueError: If no layer attends to the places.

    Example:
        >>> to_words, to_places = torch.tensor([[[0.0, 0.5]]]), torch.tensor([[[0.25, 1.0]]])
        >>> word = torch.tensor([[[1.0]]])
        >>> propagate_decoder_relevance([to_words[..., 1:], to_places], [False, True], word)
        tensor([[[0.2500, 1.0000]]])

    Source:
        Chefer, Gur and Wolf 2021, arXiv:2103.15679, equations 6 and 7. Deviation: attention to the
        image is a layer of the joint sequence, without the normalization of equations 8 to 10.
    """
    places: Tensor | None = None
    for weights, cross in zip(reversed(layers), reversed(is_cross), strict=True):
        update = rows @ weights
        if not cross:
            rows = rows + update
        else:
            places = update if places is None else places + update
    if places is None:
        raise ValueError("at least one layer must attend to the places, got none in is_cross")
    return places
