"""Attention of every layer and head to one image, averaged over queries where it is too large."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from visattn.attribution.layer_weights import read_shares, with_query_axis
from visattn.recording.model_info import AttentionLayer, ModelInfo
from visattn.recording.recorder import record
from visattn.recording.subject import Subject
from visattn.results.attention_map import AttentionMap
from visattn.results.values import RecordedLayer

MAX_WEIGHTS = 10_000_000
"""Maximum number of attention weights per page, a byte each in base64: 13.3 of 15 MB."""


def record_layers(
    subject: Subject,
    inputs: Float[Tensor, "1 c y x"],
    *,
    heads: Sequence[int] | None = None,
    max_weights: int = MAX_WEIGHTS,
) -> list[RecordedLayer]:
    """Return the attention of all layers to one image.

    If there are more weights than `max_weights`, the rows of neighboring queries are averaged; all
    layers and heads are kept.

    Args:
        subject: The model.
        inputs: One normalized image.
        heads: Indices of heads; None for all.
        max_weights: Approximate number of weights that are returned.

    Raises:
        ValueError: If the model has no token attention, or no such heads.

    Example:
        >>> from visattn.recording.subject import analyze_model
        >>> from visattn.models import VisionTransformer
        >>> model = VisionTransformer(
        ...     ("cat", "dog"), img_size=(16, 24), patch_size=8, embed_dim=8, depth=2, num_heads=2
        ... )
        >>> subject = analyze_model(model)
        >>> layers = record_layers(subject, torch.zeros(1, 3, 16, 24))
        >>> [(layer.index, layer.heads) for layer in layers]
        [(0, (0, 1)), (1, (0, 1))]
    """
    info = subject.info
    if info.attention_error or not info.attention_layers:
        reason = info.attention_error or "it has no token attention"
        raise ValueError(f"{info.name} has no attention heads to show: {reason}")
    results: list[RecordedLayer] = []
    # one pass per layer, since all weights of a large model are gigabytes
    for index, layer in enumerate(info.attention_layers):
        with record(subject, layers=[layer.site], heads=heads) as recorder, torch.no_grad():
            subject.forward(inputs)
        [attention_map] = (entry for entry in recorder.maps if entry.kind == "tokens")
        recorded = _recorded_layer(index, attention_map, layer, heads)
        recorded = _average_queries(recorded, max_weights // len(info.attention_layers))
        results.append(replace(recorded, shares=_read_shares(recorded, info)))
    return results


def _recorded_layer(
    index: int, attention_map: AttentionMap, layer: AttentionLayer, heads: Sequence[int] | None
) -> RecordedLayer:
    values = attention_map.values.float().cpu()
    weights = with_query_axis(values.flatten(-2))[0].unflatten(-1, values.shape[-2:])
    count = weights.shape[1]
    patches = layer.grid[0] * layer.grid[1]
    recorded = attention_map.info.prefix_tokens
    prefix = layer.prefix_tokens if recorded is None else recorded
    queries = prefix if count in (len(prefix), len(prefix) + patches) else ()
    indices = tuple(range(weights.shape[0])) if heads is None else tuple(heads)
    return RecordedLayer(
        index,
        layer.site,
        weights,
        indices,
        layer.grid,
        queries,
        len(prefix),
        attention_map.margin,
    )


def _average_queries(layer: RecordedLayer, max_weights: int) -> RecordedLayer:
    """Average the rows of neighboring queries until there are few enough weights."""
    heads, count, rows, columns = layer.weights.shape
    prefix = len(layer.prefix_queries)
    y, x = layer.grid
    if layer.weights.numel() <= max_weights or count - prefix != y * x:
        return layer
    sizes = ((-(-y // factor), -(-x // factor)) for factor in range(2, max(y, x) + 1))
    fitting = (
        (gy, gx) for gy, gx in sizes if heads * (prefix + gy * gx) * rows * columns <= max_weights
    )
    grid = next(fitting, (1, 1))
    per_query = layer.weights[:, prefix:].flatten(2).mT.unflatten(-1, layer.grid)
    averaged = adaptive_avg_pool2d(per_query, grid).flatten(2).mT.unflatten(-1, (rows, columns))
    weights = torch.cat([layer.weights[:, :prefix], averaged], dim=1)
    return replace(layer, weights=weights, grid=grid)


def _read_shares(layer: RecordedLayer, info: ModelInfo) -> tuple[float, ...]:
    count = layer.weights.shape[1]
    shares = read_shares(info, layer.prefix_queries, layer.grid).tolist()
    return tuple(shares) if len(shares) == count else (1 / count,) * count
