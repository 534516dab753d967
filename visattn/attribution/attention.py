"""Attention methods: rollout, relevance propagation, attention of a layer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from visattn.attribution.layer_weights import (
    LayerWeights,
    no_single_grid,
    read_shares,
    record_weights,
    resolve_attention_layer,
    single_grid_error,
    weights_and_gradients,
)
from visattn.attribution.registry import method
from visattn.attribution.targets import Target
from visattn.recording.model_info import AttentionLayer
from visattn.recording.subject import Subject

HeadFusion = Literal["mean", "max", "min"]


def fuse_heads(
    weights: Float[Tensor, "b h n m"], fusion: HeadFusion = "mean"
) -> Float[Tensor, "b n m"]:
    """Return the attention weights of a layer, fused over heads.

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
    if not (count := int(ratio * free.shape[1])):
        return weights  # sorting takes longer than attention itself
    lowest = free.argsort(dim=1, stable=True)[:, :count]
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


Heads = HeadFusion | int | Sequence[int]


@method("attention", title="Attention", paper="arXiv:2010.11929", needs="tokens", kind="tokens")
def attention(
    explained: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layer: int | str = -1,
    heads: Heads = "mean",
    queries: str | Sequence[int] | None = None,
) -> Float[Tensor, "b gy gx"]:
    """Attention weights of one layer, from the tokens that the scores read.

    Args:
        target: Only noted in the info of the map; attention does not depend on a class.
        layer: Index into `info.attention_layers`, or the name of the module; also of one on which
            no score depends.
        heads: The `mean`, `max` or `min` of all heads, or the mean of heads given by index.
        queries: Selected queries, as `record` takes them; by default those that the scores read, by
            their shares (see `read_shares`).

    Raises:
        ValueError: If there is no such layer, head or token.
    """
    chosen = resolve_attention_layer(explained.info, layer, allow_unread=True)
    shares = read_shares(explained.info, chosen.prefix_tokens, chosen.grid)
    rows = shares.nonzero().flatten()
    selected = tuple(rows.tolist()) if queries is None else queries
    [recorded] = record_weights(explained, images, target, [chosen], queries=selected)
    matrix = _fuse_or_select_heads(recorded.weights, heads)
    if queries is not None or chosen.single_query:
        return recorded.to_grid(matrix.mean(1))
    return recorded.to_grid(replace(recorded, shares=shares[rows]).mean_of_read_rows(matrix))


@method(
    "rollout",
    title="Attention rollout",
    paper="arXiv:2005.00928",
    needs="tokens",
    kind="tokens",
    check=no_single_grid,
)
def rollout(
    explained: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    heads: Heads = "mean",
    discard_ratio: float = 0.0,
    start_layer: int = 0,
    residual: float = 0.5,
) -> Float[Tensor, "b gy gx"]:
    """Attention rollout: attention multiplied through all layers, from the pooled tokens.

    Args:
        target: Only noted in the info of the map; attention does not depend on a class.
        heads: The `mean`, `max` or `min` of all heads, or the mean of heads given by index.
        discard_ratio: Share of the lowest weights of each layer that is set to 0.
        start_layer: First layer that is included.
        residual: Weight of the residual connection in each layer, in [0, 1].

    Raises:
        ValueError: If the tokens of all layers do not share one grid, or an option is out of range.

    Source:
        Abnar and Zuidema 2020, arXiv:2005.00928.
    """
    included = included_layers(explained, start_layer, "rollout")
    layers = record_weights(explained, images, target, included, queries="all")
    fused = [_fuse_or_select_heads(layer.weights, heads) for layer in layers]
    return _rollout_of(layers, fused, discard_ratio, residual)


def _rollout_of(
    layers: Sequence[LayerWeights], weights: Sequence[Tensor], discard_ratio: float, residual: float
) -> Float[Tensor, "b gy gx"]:
    matrices = [
        discard_lowest(matrix, discard_ratio, num_kept_columns=len(layer.prefix_tokens))
        for layer, matrix in zip(layers, weights, strict=True)
    ]
    return combine_layers(layers, matrices, partial(attention_rollout, residual=residual))


@method(
    "gradient_attention", title="Gradient × attention", paper="arXiv:2103.15679", needs="tokens"
)
def gradient_attention(
    explained: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layer: int | str = -1,
) -> Float[Tensor, "b gy gx"]:
    """Attention of one layer times its gradient, clipped at 0 and averaged over heads.

    Args:
        layer: Index into `info.attention_layers`, or the name of the module.

    Raises:
        ValueError: If there is no such layer, or the target does not depend on it.

    Source:
        Chefer, Gur and Wolf 2021, arXiv:2103.15679, equation 5, for one layer.
    """
    chosen = resolve_attention_layer(explained.info, layer)
    [(recorded, gradients)] = weights_and_gradients(explained, images, target, [chosen])
    weighted = positive_grad_times_attention(recorded.weights, gradients)
    return recorded.to_grid(recorded.mean_of_read_rows(weighted))


@method(
    "gradient_rollout",
    title="Gradient rollout",
    paper="Gildenblat 2020",
    needs="tokens",
    check=no_single_grid,
)
def gradient_rollout(
    explained: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    discard_ratio: float = 0.0,
    start_layer: int = 0,
    residual: float = 0.5,
) -> Float[Tensor, "b gy gx"]:
    """Gradient attention rollout: rollout of attention times gradient of each layer.

    Args:
        discard_ratio: Share of the lowest products of each layer that is set to 0.
        start_layer: First layer that is included.
        residual: Weight of the residual connection in each layer, in [0, 1].

    Raises:
        ValueError: If the tokens of all layers do not share one grid, or an option is out of range.

    Source:
        Gildenblat 2020, "Exploring Explainability for Vision Transformers", with each layer's
        attention multiplied by its own gradient.
    """
    included = included_layers(explained, start_layer, "gradient_rollout")
    recorded = weights_and_gradients(explained, images, target, included)
    layers = [layer for layer, _ in recorded]
    weights = [gradient_rollout_weights(layer.weights, gradients) for layer, gradients in recorded]
    return _rollout_of(layers, weights, discard_ratio, residual)


@method(
    "relevance", title="Relevance", paper="arXiv:2103.15679", needs="tokens", check=no_single_grid
)
def relevance(
    explained: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    start_layer: int = 0,
) -> Float[Tensor, "b gy gx"]:
    """Relevance propagation (Chefer et al.): attention times gradient through all layers.

    Args:
        start_layer: First layer that is included; later ones give sharper maps.

    Raises:
        ValueError: If the tokens of all layers do not share one grid, or there is no such layer.

    Source:
        Chefer, Gur and Wolf 2021, arXiv:2103.15679, equations 5 and 6. Deviation: the initial
        relevance of tokens to themselves, the identity, is subtracted: it is equal for all patches.
    """
    included = included_layers(explained, start_layer, "relevance")
    recorded = weights_and_gradients(explained, images, target, included)
    layers = [layer for layer, _ in recorded]

    def propagate(matrices: list[Tensor], rows: Tensor) -> Tensor:
        # The identity that tokens start with is left out; a pool starts with its attention instead.
        return propagate_relevance(matrices, rows) - (0 if layers[-1].single_query else rows)

    matrices = [
        positive_grad_times_attention(layer.weights, gradients) for layer, gradients in recorded
    ]
    return combine_layers(layers, matrices, propagate)


def included_layers(explained: Subject, start_layer: int, method: str) -> list[AttentionLayer]:
    """Return the included layers, of a model whose layers share one grid."""
    layers = explained.info.attention_layers
    count = len(layers)
    if reason := single_grid_error(explained.info):
        raise ValueError(
            f"{method} requires one token grid for all layers; {explained.info.name} does not "
            f"support it: {reason}"
        )
    if not -count <= start_layer < count:
        raise ValueError(
            f"start_layer must be an index below the number of attention layers of "
            f"{explained.info.name}, {count}; got {start_layer}"
        )
    return list(layers[start_layer % count :])


def combine_layers(
    layers: Sequence[LayerWeights],
    matrices: Sequence[Tensor],
    propagate: Callable[[list[Tensor], Tensor], Tensor],
) -> Float[Tensor, "b gy gx"]:
    """Return a map of the input tokens from the matrices of all layers."""
    first = layers[0]
    last = layers[-1]
    remaining = list(matrices)
    # Layers may have other prefix tokens: all matrices are brought to the most that any has. A pool
    # gives rows only, so that its own do not count unless it is the only layer.
    most = max(
        len(layer.prefix_tokens) for layer in layers if not layer.single_query or layer is first
    )
    if last.single_query:
        # negative padding removes a token of the pool itself
        missing = most - len(last.prefix_tokens)
        rows = pad(remaining.pop(), (missing, 0))
    else:
        matrix = remaining[-1]
        rows = last.shares.to(matrix).expand(len(matrix), 1, -1)
    # prefix tokens that are added by a later layer get no attention in earlier ones
    missing_tokens = [most - len(layer.prefix_tokens) for layer in layers]
    remaining = [
        pad(matrix, (count, 0, count, 0)) if count else matrix  # else it would be copied
        for matrix, count in zip(remaining, missing_tokens, strict=False)
    ]
    return first.to_grid(propagate(remaining, rows).mean(1)[:, missing_tokens[0] :])


def _fuse_or_select_heads(
    weights: Float[Tensor, "b h n m"], heads: Heads
) -> Float[Tensor, "b n m"]:
    if isinstance(heads, str):
        return fuse_heads(weights, heads)
    indices = [heads] if isinstance(heads, int) else list(heads)
    count = weights.shape[1]
    if not indices or any(not -count <= index < count for index in indices):
        raise ValueError(
            f"heads must be 'mean', 'max', 'min' or indices below {count}, got {heads}"
        )
    return weights[:, indices].mean(1)
