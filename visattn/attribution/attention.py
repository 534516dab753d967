"""Attention methods: rollout, relevance propagation, attention of a layer.

Formulas take the matrices of all layers, first layer first, and the rows of the tokens that the
scores read. Methods record the matrices and return the columns on the token grid.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from visattn.attribution.layer_weights import (
    LayerWeights,
    no_single_grid,
    read_shares,
    record_weights,
    resolve_attention_layers,
)
from visattn.attribution.registry import method
from visattn.attribution.targets import Target
from visattn.recording.subject import Subject

Heads = Literal["mean", "max", "min"] | int | Sequence[int]
Layers = int | str | Sequence[int | str]


def fuse_heads(weights: Float[Tensor, "b h n m"], heads: Heads = "mean") -> Float[Tensor, "b n m"]:
    """Return the attention weights of a layer, fused over heads.

    Args:
        weights: Attention weights of a layer.
        heads: The `mean`, `max` or `min` of all heads, or the mean of heads given by index.

    Raises:
        ValueError: If there is no such head.

    Example:
        >>> fuse_heads(torch.tensor([[[[0.9, 0.1]], [[0.5, 0.5]]]]), "max")
        tensor([[[0.9000, 0.5000]]])
    """
    if heads == "max":
        return weights.amax(1)
    if heads == "min":
        return weights.amin(1)
    indices = [heads] if isinstance(heads, int) else heads
    count = weights.shape[1]
    if heads == "mean":
        indices = range(count)
    if isinstance(indices, str) or not indices or not {*indices} <= {*range(-count, count)}:
        raise ValueError(
            f"heads must be 'mean', 'max', 'min' or indices below {count}, got {heads!r}"
        )
    return weights[:, list(indices)].mean(1)


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

    Example:
        >>> uniform = torch.full((1, 2, 2), 0.5)
        >>> attention_rollout([uniform, uniform], torch.tensor([[[1.0, 0.0]]]))
        tensor([[[0.6250, 0.3750]]])

    Source:
        Abnar and Zuidema 2020, arXiv:2005.00928, section 3, with residual 1/2.
    """
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

    Example:
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

    Gradient rollout uses it instead of the attention weights.

    Example:
        >>> weights = torch.tensor([[[[0.5, 0.5]], [[0.9, 0.1]]]])
        >>> gradients = torch.tensor([[[[2.0, -2.0]], [[-1.0, 10.0]]]])
        >>> gradient_rollout_weights(weights, gradients)
        tensor([[[0.0500, 0.0000]]])

    Source:
        Gildenblat 2020, "Exploring Explainability for Vision Transformers". Deviation: each layer
        is multiplied by its own gradient; the author's code pairs it with that of another layer.
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
        >>> layer = torch.tensor([[[0.0, 0.5], [0.0, 0.25]]])
        >>> propagate_relevance([layer, layer], torch.tensor([[[1.0, 0.0]]]))
        tensor([[[1.0000, 1.1250]]])

    Source:
        Chefer, Gur and Wolf 2021, arXiv:2103.15679, equation 6, for self-attention.
    """
    for weights in reversed(layers):
        rows = rows + rows @ weights
    return rows


@method("attention", title="Attention", paper="arXiv:2010.11929", needs="tokens", kind="tokens")
def attention(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layers: Layers = -1,
    heads: Heads = "mean",
    queries: str | Sequence[int] | None = None,
) -> Float[Tensor, "b gy gx"]:
    """Attention weights of one layer, or the mean of several, from the tokens that the scores read.

    Args:
        target: Recorded in the info of the map only; attention does not depend on a class.
        layers: Index into `info.attention_layers`, or the name of a module, even of one that no
            score depends on. Several layers, which must share one token grid, are averaged.
        heads: The `mean`, `max` or `min` of all heads, or the mean of heads given by index.
        queries: Selected queries, as for `record`; by default those that the scores read, weighted
            by `read_shares`.

    Raises:
        ValueError: If there is no such layer, head or token.
    """
    maps: list[Tensor] = []
    for chosen in resolve_attention_layers(subject.info, layers, allow_unread=True):
        shares = read_shares(subject.info, chosen.prefix_tokens, chosen.grid)
        rows = shares.nonzero().flatten()
        selected = tuple(rows.tolist()) if queries is None else queries
        [recorded] = record_weights(subject, images, target, [chosen], queries=selected)
        matrix = fuse_heads(recorded.weights, heads)
        read = replace(recorded, shares=shares[rows])
        row = read.mean_of_read_rows(matrix) if queries is None else matrix.mean(1)
        maps.append(recorded.to_grid(row))
    return torch.stack(maps).mean(0)


@method(
    "rollout",
    title="Attention rollout",
    paper="arXiv:2005.00928",
    needs="tokens",
    kind="tokens",
    check=no_single_grid,
)
def rollout(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    heads: Heads = "mean",
    residual: float = 0.5,
) -> Float[Tensor, "b gy gx"]:
    """Attention rollout: attention multiplied through all layers, from the pooled tokens.

    Args:
        target: Recorded in the info of the map only; attention does not depend on a class.
        heads: The `mean`, `max` or `min` of all heads, or the mean of heads given by index.
        residual: Weight of the residual connection in each layer, in [0, 1].

    Raises:
        ValueError: If there is no such head.

    Source:
        Abnar and Zuidema 2020, arXiv:2005.00928.
    """
    layers = record_weights(subject, images, target, subject.info.attention_layers)
    matrices = [fuse_heads(layer.weights, heads) for layer in layers]
    return combine_layers(layers, matrices, partial(attention_rollout, residual=residual))


@method(
    "gradient_attention", title="Gradient × attention", paper="arXiv:2103.15679", needs="tokens"
)
def gradient_attention(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layers: Layers = -1,
    heads: int | Sequence[int] | Literal["mean"] = "mean",
) -> Float[Tensor, "b gy gx"]:
    """Attention times its gradient, clipped at 0 and averaged over heads and layers.

    Args:
        layers: Index into `info.attention_layers`, or the name of a module. Several layers, which
            must share one token grid, are averaged.
        heads: The mean of all heads, or of heads given by index.

    Raises:
        ValueError: If there is no such layer or head, or the target does not depend on it.

    Source:
        Chefer, Gur and Wolf 2021, arXiv:2103.15679, equation 5, for one layer.
    """
    chosen = resolve_attention_layers(subject.info, layers)
    maps: list[Tensor] = []
    for recorded in record_weights(subject, images, target, chosen, gradients=True):
        weighted = fuse_heads((recorded.weights * recorded.gradients).relu(), heads)
        maps.append(recorded.to_grid(recorded.mean_of_read_rows(weighted)))
    return torch.stack(maps).mean(0)


@method(
    "gradient_rollout",
    title="Gradient rollout",
    paper="Gildenblat 2020",
    needs="tokens",
    check=no_single_grid,
)
def gradient_rollout(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    residual: float = 0.5,
) -> Float[Tensor, "b gy gx"]:
    """Gradient rollout: attention rollout with attention times gradient in each layer.

    Args:
        residual: Weight of the residual connection in each layer, in [0, 1].

    Source:
        Gildenblat 2020, "Exploring Explainability for Vision Transformers"; see
        `gradient_rollout_weights` for the deviation.
    """
    layers = record_weights(subject, images, target, subject.info.attention_layers, gradients=True)
    matrices = [gradient_rollout_weights(layer.weights, layer.gradients) for layer in layers]
    return combine_layers(layers, matrices, partial(attention_rollout, residual=residual))


@method(
    "relevance", title="Relevance", paper="arXiv:2103.15679", needs="tokens", check=no_single_grid
)
def relevance(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
) -> Float[Tensor, "b gy gx"]:
    """Relevance propagation (Chefer et al.): attention times gradient through all layers.

    Source:
        Chefer, Gur and Wolf 2021, arXiv:2103.15679, equations 5 and 6. Deviation: the initial
        relevance of tokens to themselves, the same for all patches, is subtracted.
    """
    layers = record_weights(subject, images, target, subject.info.attention_layers, gradients=True)

    def propagate(matrices: list[Tensor], rows: Tensor) -> Tensor:
        # without the initial identity; attention pooling starts from its attention instead
        return propagate_relevance(matrices, rows) - (0 if layers[-1].single_query else rows)

    matrices = [positive_grad_times_attention(layer.weights, layer.gradients) for layer in layers]
    return combine_layers(layers, matrices, propagate)


def combine_layers(
    layers: Sequence[LayerWeights],
    matrices: Sequence[Tensor],
    propagate: Callable[[list[Tensor], Tensor], Tensor],
) -> Float[Tensor, "b gy gx"]:
    """Return a map of the input tokens from the matrices of all layers."""
    first, last = layers[0], layers[-1]
    remaining = list(matrices)
    # Layers may differ in prefix tokens: all matrices are padded to the largest number. A pool only
    # provides rows, so that its prefix tokens count only if it is the only layer.
    most = max(layer.num_prefix for layer in layers if not layer.single_query or layer is first)
    if last.single_query:
        # negative padding drops a token that only the pool has
        rows = pad(remaining.pop(), (most - last.num_prefix, 0))
    else:
        rows = last.shares.to(remaining[-1]).expand(len(remaining[-1]), 1, -1)
    # prefix tokens added by a later layer get no attention in earlier ones
    missing = [most - layer.num_prefix for layer in layers]
    remaining = [
        pad(matrix, (count, 0, count, 0)) if count else matrix  # padding by 0 would copy it
        for matrix, count in zip(remaining, missing, strict=False)
    ]
    return first.to_grid(propagate(remaining, rows).mean(1)[:, missing[0] :])
