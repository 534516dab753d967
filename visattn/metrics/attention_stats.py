"""Attention statistics of each layer and head of a model, averaged over images."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.recording.model_info import AttentionLayer
from visattn.recording.recorder import record
from visattn.recording.subject import Subject
from visattn.results.attention_map import AttentionMap

SATURATION_THRESHOLD = 0.9  # of the weight of a row on a single key
_MEASURES = ("entropy", "saturated", "distance", "pixels", "diversity", "sink")


def attention_entropy(
    weights: Float[Tensor, "*b n m"], keys: int | None = None
) -> Float[Tensor, "*b n"]:
    """Return the normalized entropy of each row: 0 for a single key, 1 for uniform weights.

    The entropy is divided by that of a uniform row over the keys that a row can reach, such as a
    window; it is 0 if there is only one.

    Example:
        >>> attention_entropy(torch.tensor([[0.5, 0.5, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]))
        tensor([0.5000, 1.0000])
    """
    reachable = weights.shape[-1] if keys is None else keys
    return -torch.xlogy(weights, weights).sum(-1) / math.log(max(reachable, 2))


def saturated_fraction(weights: Float[Tensor, "*b n m"]) -> Float[Tensor, "*b"]:
    """Return the fraction of rows with more than 0.9 of their weight on a single key.

    Example:
        >>> saturated_fraction(torch.tensor([[0.95, 0.05], [0.5, 0.5]]))
        tensor(0.5000)
    """
    return (weights.amax(-1) > SATURATION_THRESHOLD).to(weights).mean(-1)


def mean_attention_distance(
    weights: Float[Tensor, "*b n m"], queries: Float[Tensor, "n 2"], keys: Float[Tensor, "m 2"]
) -> Float[Tensor, "*b"]:
    """Return the mean attention distance, in the unit of the positions.

    Args:
        weights: Attention weights over keys that have a position; rows are normalized. Rows of
            zeros, whose weight lies entirely on keys without a position, are left out.
        queries: Position of each query.
        keys: Position of each key.

    Returns:
        The mean over the queries; NaN if no query attends to a position.

    Example:
        >>> positions = torch.tensor([[0.5, 0.5], [0.5, 3.5]])
        >>> mean_attention_distance(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), positions, positions)
        tensor(0.7500)

    Source:
        Dosovitskiy et al. 2021, arXiv:2010.11929, section 4.5 and figure 7, mean attention
        distance.
    """
    distances = torch.cdist(queries, keys).to(weights)
    total = weights.sum(-1)
    valid = total > 0
    mean = (weights * distances).sum(-1) / total.where(valid, 1.0)
    return (mean * valid).sum(-1) / valid.sum(-1)


def head_diversity(weights: Float[Tensor, "b h n m"]) -> Float[Tensor, " h"]:
    """Return the mean total variation distance of each head from the other heads, 0 to 1.

    The total variation distance of two rows is half the sum of absolute differences. A single head
    gives 0.

    Example:
        >>> weights = torch.tensor([[[[1.0, 0.0]], [[0.0, 1.0]], [[0.5, 0.5]]]])
        >>> head_diversity(weights)
        tensor([0.7500, 0.7500, 0.5000])
    """
    heads = weights.shape[1]
    # Head by head: all pairs at once would take h times the memory of the weights.
    distances = [
        (weights - weights[:, head : head + 1]).abs().sum(-1).mean((0, 2)).sum() / 2
        for head in range(heads)
    ]
    return torch.stack(distances) / max(heads - 1, 1)


def received_attention(weights: Float[Tensor, "*b n m"]) -> Float[Tensor, "*b m"]:
    """Return the fraction of all attention that each key receives; the fractions sum to 1.

    Example:
        >>> received_attention(torch.tensor([[0.75, 0.25], [0.25, 0.75]]))
        tensor([0.5000, 0.5000])

    Source:
        Xiao et al. 2024, arXiv:2309.17453 (attention sinks); Darcet et al. 2024, arXiv:2309.16588
        (registers).
    """
    return weights.mean(-2)


@dataclass(frozen=True, eq=False)
class LayerDiagnostics:
    """Attention statistics of a layer, for each head: means over images and queries.

    Args:
        entropy: Normalized entropy of the rows: 0 for a single key, 1 for uniform weights over all
            keys that a row can reach.
        saturated: Fraction of rows with more than 0.9 of their weight on a single key.
        distance: Mean attention distance in patches; NaN if the positions of the queries are
            unknown.
        pixels: Mean attention distance in pixels of the network input, or NaN.
        diversity: Mean total variation distance from the other heads, 0 to 1.
        sink: Fraction of all attention that the strongest key of an image receives.
        before: Fraction of all attention that the prefix tokens receive, by role.
    """

    site: str
    entropy: Float[Tensor, " h"]
    saturated: Float[Tensor, " h"]
    distance: Float[Tensor, " h"]
    pixels: Float[Tensor, " h"]
    diversity: Float[Tensor, " h"]
    sink: Float[Tensor, " h"]
    before: dict[str, Float[Tensor, " h"]]

    def to_dict(self) -> dict[str, Any]:
        """Return the statistics as lists of numbers, with None instead of NaN."""
        lists = {
            name: [None if value != value else value for value in values.tolist()]
            for name, values in self.measures().items()
        }
        return {"site": self.site, **lists}

    def measures(self) -> dict[str, Float[Tensor, " h"]]:
        """Return all statistics by name; those of the prefix tokens are named `to ROLE`."""
        statistics = {name: getattr(self, name) for name in _MEASURES}
        return statistics | {f"to {role}": fraction for role, fraction in self.before.items()}


def diagnose_layers(
    subject: Subject, batches: Iterable[Float[Tensor, "_ c y x"]]
) -> tuple[LayerDiagnostics, ...]:
    """Return the attention statistics of each layer, in the order of execution.

    Raises:
        ValueError: If no attention among tokens is recorded, or there are no images.

    Source:
        Dosovitskiy et al. 2021, arXiv:2010.11929, section 4.5 (distance); Zhai et al. 2023,
        arXiv:2303.06296 (entropy); Darcet et al. 2024, arXiv:2309.16588 (registers and sinks).
    """
    measured: dict[str, list[tuple[int, LayerDiagnostics]]] = {}
    layers = {layer.site: layer for layer in subject.info.attention_layers}
    count = 0
    for images in batches:
        input_size = (images.shape[2], images.shape[3])
        with torch.no_grad(), record(subject, queries="all") as recording:
            subject.forward(images)
        count += len(images)
        for attention_map, weights in zip(recording.maps, recording.weights, strict=True):
            if attention_map.kind != "tokens" or weights.ndim != 4:
                continue
            layer = layers.get(attention_map.site)
            means = layer_diagnostics(attention_map, weights, input_size, layer)
            # A module that runs several times in one pass has a map for each call.
            key = f"{attention_map.site}:{attention_map.info.call or 0}"
            measured.setdefault(key, []).append((len(images), means))
    if not measured:
        raise ValueError(
            f"{subject.info.name} must have attention among tokens, "
            f"but none was recorded over {count} images; "
            "diagnostics need a transformer and at least one image"
        )
    return tuple(_mean(batches, count) for batches in measured.values())


def layer_diagnostics(
    attention_map: AttentionMap,
    weights: Float[Tensor, "b h n m"],
    input_size: tuple[int, int],
    layer: AttentionLayer | None = None,
) -> LayerDiagnostics:
    """Return the attention statistics of a layer over a batch.

    Args:
        attention_map: Recorded map of the layer; its values end in the grid of the keys.
        weights: The same attention weights, with the columns of the prefix tokens.
        input_size: Height and width of the network input.
        layer: Metadata of the layer: the window size, and the grid of the queries if it differs
            from that of the keys.
    """
    roles = attention_map.info.prefix_tokens or ()
    key_grid = (attention_map.values.shape[-2], attention_map.values.shape[-1])
    query_grid = layer.grid if layer is not None else key_grid
    heads = weights.shape[1]
    unknown = weights.new_full((heads,), torch.nan)
    distance = pixels = unknown
    patch_weights = attention_map.values.flatten(-2)
    first = patch_weights.shape[2] - query_grid[0] * query_grid[1]
    if first in (0, len(roles)):  # the rows are the patches, or all tokens
        distance, pixels = (
            mean_attention_distance(
                patch_weights[:, :, first:],
                _cell_centers(query_grid, size),
                _cell_centers(key_grid, size),
            ).nanmean(0)
            for size in (query_grid, input_size)
        )
    received = received_attention(weights)
    window = layer.window_size if layer is not None else None
    reachable = None if window is None else len(roles) + window[0] * window[1]
    to_prefix: dict[str, Tensor] = {}
    for role in dict.fromkeys(roles):
        columns = [index for index, other in enumerate(roles) if other == role]
        to_prefix[role] = received[..., columns].sum(-1).mean(0)
    return LayerDiagnostics(
        attention_map.site,
        attention_entropy(weights, reachable).mean((0, 2)),
        saturated_fraction(weights).mean(0),
        distance,
        pixels,
        head_diversity(weights),
        received.amax(-1).mean(0),
        to_prefix,
    )


def _cell_centers(grid: tuple[int, int], size: tuple[int, int]) -> Float[Tensor, "n 2"]:
    y, x = (
        (torch.arange(cells) + 0.5) * (length / cells)
        for cells, length in zip(grid, size, strict=True)
    )
    return torch.cartesian_prod(y, x)


def _mean(batches: Sequence[tuple[int, LayerDiagnostics]], count: int) -> LayerDiagnostics:
    """Return the mean over images of a layer, from the means of batches and their sizes."""

    def mean(values: Callable[[LayerDiagnostics], Tensor]) -> Tensor:
        total = torch.zeros(())
        for size, layer in batches:
            total = total + size * values(layer)
        return total * (1 / count)

    _, first = batches[0]
    before = {role: mean(lambda layer, role=role: layer.before[role]) for role in first.before}
    return replace(first, before=before, **{name: mean(attrgetter(name)) for name in _MEASURES})
