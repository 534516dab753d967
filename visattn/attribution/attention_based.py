"""Attention-based methods: single layers, rollout, gradient rollout, relevance propagation."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

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
from visattn.functional.attribution.rollout import (
    HeadFusion,
    attention_rollout,
    discard_lowest,
    fuse_heads,
    gradient_rollout_weights,
    positive_grad_times_attention,
    propagate_relevance,
)
from visattn.recording.model_info import AttentionLayer, ExplainedModel

Heads = HeadFusion | int | Sequence[int]


@method("attention", title="Attention", paper="arXiv:2010.11929", needs="tokens", kind="tokens")
def attention(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layer: int | str = -1,
    heads: Heads = "mean",
    queries: str | Sequence[int] | None = None,
) -> Float[Tensor, "b gy gx"]:
    """Attention weights of one layer, from the tokens that the scores read.

    Args:
        explained: The model.
        images: Normalized.
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
    explained: ExplainedModel,
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
        explained: The model.
        images: Normalized.
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
    matrices = [
        discard_lowest(
            _fuse_or_select_heads(layer.weights, heads),
            discard_ratio,
            num_kept_columns=len(layer.prefix_tokens),
        )
        for layer in layers
    ]
    return combine_layers(layers, matrices, partial(attention_rollout, residual=residual))


@method(
    "gradient_attention", title="Gradient × attention", paper="arXiv:2103.15679", needs="tokens"
)
def gradient_attention(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layer: int | str = -1,
) -> Float[Tensor, "b gy gx"]:
    """Attention of one layer times its gradient, clipped at 0 and averaged over heads.

    Args:
        explained: The model.
        images: Normalized.
        target: Target to explain.
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
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    discard_ratio: float = 0.0,
    start_layer: int = 0,
    residual: float = 0.5,
) -> Float[Tensor, "b gy gx"]:
    """Gradient attention rollout: rollout of attention times gradient of each layer.

    Args:
        explained: The model.
        images: Normalized.
        target: Target to explain.
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
    matrices = [
        discard_lowest(
            gradient_rollout_weights(layer.weights, gradients),
            discard_ratio,
            num_kept_columns=len(layer.prefix_tokens),
        )
        for layer, gradients in recorded
    ]
    return combine_layers(layers, matrices, partial(attention_rollout, residual=residual))


@method(
    "relevance", title="Relevance", paper="arXiv:2103.15679", needs="tokens", check=no_single_grid
)
def relevance(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    start_layer: int = 0,
) -> Float[Tensor, "b gy gx"]:
    """Relevance propagation (Chefer et al.): attention times gradient through all layers.

    Args:
        explained: The model.
        images: Normalized.
        target: Target to explain.
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
        return propagate_relevance(matrices, rows) - (0 if layers[-1].single_query else rows)

    matrices = [
        positive_grad_times_attention(layer.weights, gradients) for layer, gradients in recorded
    ]
    return combine_layers(layers, matrices, propagate)


def included_layers(
    explained: ExplainedModel, start_layer: int, method: str
) -> list[AttentionLayer]:
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
    """Return a map of the input tokens from the matrices of all layers.

    Args:
        layers: Recorded weights.
        matrices: One for each layer.
        propagate: Propagates rows of the pooled tokens through matrices.
    """
    first, last, remaining = layers[0], layers[-1], list(matrices)
    most = max(
        len(layer.prefix_tokens) for layer in layers if not layer.single_query or layer is first
    )
    if last.single_query:
        # negative padding removes a token of the pool itself
        missing = most - len(last.prefix_tokens)
        rows = pad(remaining.pop(), (missing, 0))
    else:
        matrix = remaining[-1]
        identity = torch.eye(matrix.shape[1]).to(matrix).expand_as(matrix)
        rows = last.mean_of_read_rows(identity).unsqueeze(1)
    # prefix tokens that are added by a later layer get no attention in earlier ones
    missing_tokens = [most - len(layer.prefix_tokens) for layer in layers]
    remaining = [
        pad(matrix, (count, 0, count, 0))
        for matrix, count in zip(remaining, missing_tokens, strict=False)
    ]
    return first.to_grid(propagate(remaining, rows).mean(1)[:, missing_tokens[0] :])


def _fuse_or_select_heads(
    weights: Float[Tensor, "b h n m"], heads: Heads
) -> Float[Tensor, "b n m"]:
    if isinstance(heads, str):
        return fuse_heads(weights, heads)
    indices, count = [heads] if isinstance(heads, int) else list(heads), weights.shape[1]
    if not indices or any(not -count <= index < count for index in indices):
        raise ValueError(
            f"heads must be 'mean', 'max', 'min' or indices below {count}, got {heads}"
        )
    return weights[:, indices].mean(1)
