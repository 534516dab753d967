"""What the attention of each layer and head of a model is like, over many images."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.functional.attention.statistics import (
    attention_entropy,
    head_diversity,
    mean_attention_distance,
    received_attention,
    saturated_fraction,
)
from visattn.recording.attention_map import AttentionMap
from visattn.recording.model_info import AttentionLayer, ExplainedModel
from visattn.recording.recorder import record


@dataclass(frozen=True, eq=False)
class LayerDiagnostics:
    """What the attention of one layer is like, head by head, as means over images and queries.

    Args:
        site: Of the layer in the model.
        entropy: How even rows are: 0 on one key, 1 spread over all that can be reached.
        saturated: Share of rows with over nine tenths of their weight on one key.
        distance: How far patches look, in patches; NaN where it is not known where they lie.
        pixels: The same in pixels of the network's input.
        diversity: How differently a head looks from the others: 0 as they do, 1 elsewhere.
        sink: Share of all attention that the key of each image receives which receives most.
        before: Share that the tokens before the patches receive, by their role.
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
        """Return plain lists and numbers; None for what is not known."""
        plain = {
            name: [None if value != value else value for value in values.tolist()]
            for name, values in self.measures().items()
        }
        return {"site": self.site, **plain}

    def measures(self) -> dict[str, Float[Tensor, " h"]]:
        """Return all numbers by name, those of the tokens before the patches as `to ROLE`."""
        named = ("entropy", "saturated", "distance", "pixels", "diversity", "sink")
        told = {name: getattr(self, name) for name in named}
        return told | {f"to {role}": share for role, share in self.before.items()}


def diagnose_layers(
    subject: ExplainedModel, batches: Iterable[Float[Tensor, "_ c y x"]]
) -> tuple[LayerDiagnostics, ...]:
    """Return what the attention of each layer is like, in the order of the model.

    Args:
        subject: A model with attention among tokens.
        batches: Normalized images.

    Raises:
        ValueError: If the model has no such attention that could be seen, or there is no image.

    Source:
        Dosovitskiy et al. 2021, arXiv:2010.11929, section 4.5 (distance); Zhai et al. 2023,
        arXiv:2303.06296 (entropy); Darcet et al. 2024, arXiv:2309.16588 (registers and sinks).
    """
    total: dict[str, LayerDiagnostics] = {}
    count = 0
    for images in batches:
        size = (images.shape[2], images.shape[3])
        with torch.no_grad(), record(subject.model, queries="all") as seen:
            subject.forward(images)
        count += len(images)
        for one, weights in zip(seen.maps, seen.weights, strict=True):
            if one.kind != "tokens" or weights.ndim != 4:
                continue
            layer = _layer(subject.info.attention_layers, one.site)
            found = layer_diagnostics(one, weights, size, layer)
            key = f"{one.site}:{one.metadata.get('call', 0)}"
            before = total.get(key)
            weighted = _scaled(found, float(len(images)))
            total[key] = weighted if before is None else _added(before, weighted)
    if not total:
        raise ValueError(
            f"{subject.info.name} showed no attention among tokens over {count} images; "
            "diagnostics need a transformer, and an image"
        )
    return tuple(_scaled(one, 1 / count) for one in total.values())


def layer_diagnostics(
    one: AttentionMap,
    weights: Float[Tensor, "b h n m"],
    input_size: tuple[int, int],
    layer: AttentionLayer | None = None,
) -> LayerDiagnostics:
    """Return what the attention of one layer is like.

    Args:
        one: The map of the layer, whose values end in the grid of the keys.
        weights: The same with the columns of the tokens before the grid.
        input_size: Height and width of the network's input.
        layer: What the model's card says of it: windows, and the grid of the queries if it is
            another than that of the keys.
    """
    roles = tuple(one.metadata.get("prefix_tokens") or ())
    keys = (one.values.shape[-2], one.values.shape[-1])
    queries = layer.grid if layer is not None else keys
    heads = weights.shape[1]
    unknown = weights.new_full((heads,), torch.nan)
    distance = pixels = unknown
    own = one.values.flatten(-2)
    first = own.shape[2] - queries[0] * queries[1]
    if first in (0, len(roles)):  # rows of patches only, or of all tokens
        distance, pixels = (
            mean_attention_distance(own[:, :, first:], *_places(queries, keys, unit)).nanmean(0)
            for unit in (queries, input_size)
        )
    received = received_attention(weights)
    window = layer.window_size if layer is not None else None
    reached = None if window is None else len(roles) + window[0] * window[1]
    return LayerDiagnostics(
        one.site,
        attention_entropy(weights, reached).mean((0, 2)),
        saturated_fraction(weights).mean(0),
        distance,
        pixels,
        head_diversity(weights),
        received.amax(-1).mean(0),
        {role: _by_role(received, roles, role) for role in dict.fromkeys(roles)},
    )


def _layer(layers: Sequence[AttentionLayer], site: str) -> AttentionLayer | None:
    return next((one for one in layers if one.site == site), None)


def _by_role(
    received: Float[Tensor, "b h m"], roles: tuple[str, ...], role: str
) -> Float[Tensor, " h"]:
    columns = [index for index, own in enumerate(roles) if own == role]
    return received[..., columns].sum(-1).mean(0)


def _places(
    queries: tuple[int, int], keys: tuple[int, int], unit: tuple[int, int]
) -> tuple[Float[Tensor, "n 2"], Float[Tensor, "m 2"]]:
    """Return the middles of the cells of two grids over an area that is so many units a side."""
    return _middles(queries, unit), _middles(keys, unit)


def _middles(grid: tuple[int, int], unit: tuple[int, int]) -> Float[Tensor, "n 2"]:
    y, x = (
        (torch.arange(count) + 0.5) * (length / count)
        for count, length in zip(grid, unit, strict=True)
    )
    return torch.cartesian_prod(y, x)


def _scaled(one: LayerDiagnostics, by: float) -> LayerDiagnostics:
    before = {role: share * by for role, share in one.before.items()}
    own = {name: values * by for name, values in one.measures().items() if name in vars(one)}
    return replace(one, **own, before=before)


def _added(one: LayerDiagnostics, other: LayerDiagnostics) -> LayerDiagnostics:
    before = {role: share + other.before[role] for role, share in one.before.items()}
    theirs = other.measures()
    own = {
        name: values + theirs[name] for name, values in one.measures().items() if name in vars(one)
    }
    return replace(one, **own, before=before)
