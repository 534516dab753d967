"""Recorded attention weights of selected layers, with gradients of a target."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.attribution.targets import Target, target_values
from visattn.recording.attention_map import AttentionMap
from visattn.recording.frozen_model import frozen, with_grad
from visattn.recording.model_info import ExplainedModel, ModelInfo
from visattn.recording.recorder import Recording, record

NO_ATTENTION = "it has no attention among tokens"
_POOLED_TOKENS = {"class": ("class",), "distilled": ("class", "distillation")}


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """Attention weights of one layer.

    Args:
        weights: With the columns of prefix tokens; for attention pooling with one row.
        prefix_tokens: Kinds of the tokens before the grid.
        grid: Rows and columns of the other tokens.
        single_query: Whether it is attention pooling or class attention, with a single query.
    """

    weights: Float[Tensor, "b h n m"]
    prefix_tokens: tuple[str, ...]
    grid: tuple[int, int]
    single_query: bool = False

    def to_grid(self, rows: Float[Tensor, "b m"]) -> Float[Tensor, "b gy gx"]:
        """Return values of tokens as a map, without prefix tokens."""
        return rows[:, len(self.prefix_tokens) :].unflatten(1, self.grid)


def resolve_attention_layer(info: ModelInfo, layer: int | str) -> int:
    """Return the index of an attention layer.

    Args:
        info: Metadata of the model.
        layer: Its index, -1 for the last, or the name of the module or of the block around it.

    Raises:
        ValueError: If there is no such layer, or several in that block.
    """
    _check_has_attention(info)
    count = len(info.attention_layers)
    if isinstance(layer, int) and -count <= layer < count:
        return layer % count
    sites = [attention_layer.site for attention_layer in info.attention_layers]
    if layer in sites:
        return sites.index(str(layer))
    inside = [site for site in sites if site.startswith(f"{layer}.")]
    if len(inside) == 1:
        return sites.index(inside[0])
    hint = f", which contains {len(inside)}: {', '.join(inside[:3])}" if inside else ""
    raise ValueError(
        f"layer must select one of the {count} attention layers of {info.name}, {sites[0]} to "
        f"{sites[-1]}, by index or name; got {layer!r}{hint}"
    )


def pooled_queries(info: ModelInfo, index: int) -> str | tuple[int, ...]:
    """Return the queries of a layer that the model pools, as `record` takes them.

    Args:
        info: Metadata of the model.
        index: Of the layer.

    Example:
        >>> from visattn.recording.model_info import AttentionLayer
        >>> layer = AttentionLayer("blocks.0.attn", (3, 5), 2, ("class", "distillation"))
        >>> info = ModelInfo("tiny", "timm", (6, 10), (0.5,), (0.5,), "distilled", (layer,))
        >>> pooled_queries(info, 0)
        (0, 1)
    """
    rows = _pooled_rows(info, info.attention_layers[index].prefix_tokens)
    return tuple(rows) or "patches"


def _pooled_rows(info: ModelInfo, prefix_tokens: tuple[str, ...]) -> list[int]:
    """Return the indices of the prefix tokens that the model pools."""
    pooled = _POOLED_TOKENS.get(info.pooling, ())
    return [index for index, token in enumerate(prefix_tokens) if token in pooled]


def single_grid_error(info: ModelInfo) -> str:
    """Return why the attention of all layers cannot be multiplied; "" if it can.

    Args:
        info: Metadata of the model.

    Example:
        >>> single_grid_error(ModelInfo("net", "timm", (6, 10), (0.5,), (0.5,), "none"))
        'it has no attention among tokens'
    """
    layers = info.attention_layers
    if info.attention_error or not layers:
        return info.attention_error or NO_ATTENTION
    grids = dict.fromkeys(
        grid for layer in layers for grid in (layer.grid, layer.key_grid or layer.grid)
    )
    if len(grids) > 1:
        listed = ", ".join(f"{rows} x {columns}" for rows, columns in grids)
        return (
            f"its layers have several token grids ({listed}); between them tokens are merged by "
            "learned weights that are no attention, so the attention of the layers cannot be "
            "multiplied; use the method attention for single layers"
        )
    if info.unsupported_layers:
        site, reason = info.unsupported_layers[0]
        return f"its layer {site} is not supported: {reason}"
    if any(layer.single_query for layer in layers[:-1]):
        return "several layers have a single query, and not only the last one that pools"
    for layer, following in pairwise(layer for layer in layers if not layer.single_query):
        if not _compatible_prefix(layer.prefix_tokens, following.prefix_tokens):
            return (
                f"its prefix tokens change from {', '.join(layer.prefix_tokens) or 'none'} at "
                f"{layer.site} to {', '.join(following.prefix_tokens) or 'none'} at "
                f"{following.site}"
            )
    return ""


def _compatible_prefix(tokens: tuple[str, ...], later: tuple[str, ...]) -> bool:
    """Whether later prefix tokens are the earlier ones, or have others in front of them."""
    return tokens == later or not tokens or later[-len(tokens) :] == tokens


def pooled_rows(
    info: ModelInfo, layer: LayerWeights, matrix: Float[Tensor, "b n m"]
) -> Float[Tensor, "b r m"]:
    """Return the rows of a layer that the model pools.

    Args:
        info: Metadata of the model.
        layer: The layer.
        matrix: All its rows.
    """
    if layer.single_query:
        return matrix
    rows = _pooled_rows(info, layer.prefix_tokens)
    return matrix[:, rows] if rows else matrix[:, len(layer.prefix_tokens) :]


def record_weights(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    indices: Sequence[int],
    *,
    queries: str | Sequence[int],
) -> list[LayerWeights]:
    """Return the attention weights of layers.

    Args:
        explained: The model.
        images: Normalized.
        target: Called with the output.
        indices: Of the layers.
        queries: Selected queries, as `record` takes them.

    Raises:
        ValueError: If the attention of the model is not supported, or a layer runs several times.
    """
    _check_has_attention(explained.info)
    sites = _layer_names(explained, indices)
    with (
        frozen(explained.model),
        torch.no_grad(),
        record(explained.model, queries=queries, layers=sites) as recording,
    ):
        target(explained.forward(images))
    _check_one_call_each(explained.info, recording, indices)
    recorded = zip(recording.maps, recording.weights, strict=True)
    return [_layer_weights(explained.info, item, weights) for item, weights in recorded]


def weights_and_gradients(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    indices: Sequence[int],
) -> list[tuple[LayerWeights, Float[Tensor, "b h n m"]]]:
    """Return the attention weights of layers, and the gradient of the target for each.

    Args:
        explained: The model.
        images: Normalized.
        target: Target to explain.
        indices: Of the layers.

    Raises:
        ValueError: If the attention of the model is not supported, a layer runs several times, or
            the target does not depend on one.
    """
    info = explained.info
    _check_has_attention(info)
    sites = _layer_names(explained, indices)
    with frozen(explained.model):
        with record(explained.model, layers=sites, differentiable=True) as recording:
            values = target_values(explained, with_grad(images), target)
        _check_one_call_each(info, recording, indices)
        gradients = torch.autograd.grad(values.sum(), recording.weights, allow_unused=True)
    results: list[tuple[LayerWeights, Tensor]] = []
    recorded = zip(recording.maps, recording.weights, gradients, strict=True)
    for attention_map, weights, gradient in recorded:
        if gradient is None:
            raise ValueError(
                "the target must depend on the attention of each layer, but it does not depend on "
                f"{attention_map.site}; choose another layer or start_layer"
            )
        layer = _layer_weights(info, attention_map, weights.detach())
        results.append((layer, gradient.view_as(layer.weights)))
    return results


def _layer_names(explained: ExplainedModel, indices: Sequence[int]) -> list[str]:
    return [explained.info.attention_layers[index].site for index in indices]


def _check_one_call_each(info: ModelInfo, recording: Recording, indices: Sequence[int]) -> None:
    if len(recording.maps) != len(indices):
        sites = ", ".join(attention_map.site for attention_map in recording.maps)
        raise ValueError(
            f"each of {len(indices)} attention layers of {info.name} must run once, got "
            f"{len(recording.maps)} maps: {sites}; use record() and combine them yourself"
        )


def _layer_weights(info: ModelInfo, attention_map: AttentionMap, weights: Tensor) -> LayerWeights:
    """Return recorded weights with a query axis, also for a single query."""
    grid = (attention_map.values.shape[-2], attention_map.values.shape[-1])
    weights = weights.unsqueeze(2) if weights.ndim == 3 else weights
    single_query = any(
        layer.single_query for layer in info.attention_layers if layer.site == attention_map.site
    )
    prefix_tokens = tuple(attention_map.metadata.get("prefix_tokens", ()))
    return LayerWeights(weights, prefix_tokens, grid, single_query)


def _check_has_attention(info: ModelInfo) -> None:
    if info.attention_error or not info.attention_layers:
        reason = info.attention_error or NO_ATTENTION
        raise ValueError(
            f"the model must have attention that can be recorded, got {info.name}: {reason}; use a "
            "gradient method such as gradcam instead"
        )
