"""Attention weights of the layers of a model, recorded with the gradients of a target."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import interpolate

from visattn.attribution.targets import Target
from visattn.recording.frozen import frozen, with_grad
from visattn.recording.model_info import NO_ATTENTION, AttentionLayer, ModelInfo
from visattn.recording.recorder import Recording, record
from visattn.recording.subject import Subject

_POOLED_TOKENS = {"class": ("class",), "distilled": ("class", "distillation")}


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """Attention weights of one layer.

    Args:
        weights: Including prefix tokens; attention pooling has a single row.
        gradients: Of the target with respect to the weights; the weights if none were requested.
        num_prefix: Number of tokens before the grid.
        grid: Rows and columns of the other tokens.
        single_query: Whether it is attention pooling or class attention, with a single query.
        shares: Share of each query in what the scores read (see `read_shares`).
    """

    weights: Float[Tensor, "b h n m"]
    gradients: Float[Tensor, "b h n m"]
    num_prefix: int
    grid: tuple[int, int]
    single_query: bool
    shares: Float[Tensor, " q"]

    def to_grid(self, rows: Float[Tensor, "b m"]) -> Float[Tensor, "b gy gx"]:
        """Return the values of tokens as a map, without prefix tokens."""
        return rows[:, self.num_prefix :].unflatten(1, self.grid)

    def mean_of_read_rows(self, matrix: Float[Tensor, "b n m"]) -> Float[Tensor, "b m"]:
        """Return the mean of the rows that the scores read, weighted by their shares."""
        if self.single_query:
            return matrix.mean(1)
        return torch.einsum("n,bnm->bm", self.shares.to(matrix), matrix)


def record_weights(
    subject: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    layers: Sequence[AttentionLayer],
    *,
    queries: str | Sequence[int] = "all",
    gradients: bool = False,
) -> list[LayerWeights]:
    """Return the attention weights of layers.

    Args:
        queries: Selected queries, as for `record`.
        gradients: Whether to compute the gradient of the target with respect to the weights, too.

    Raises:
        ValueError: If a layer does not run exactly once.
    """
    info, model = subject.info, subject.model
    sites = [layer.site for layer in layers]
    recorder = record(subject, layers=sites, queries=queries, differentiable=gradients)
    with frozen(model), nullcontext() if gradients else torch.no_grad():
        with recorder as recording:
            inputs = with_grad(images) if gradients else images
            values = target(subject.forward(inputs))
        check_one_call_each(info, recording, layers)
        found: Sequence[Tensor] = recording.weights
        if gradients:
            found = torch.autograd.grad(values.sum(), recording.weights)
    by_site = {layer.site: layer for layer in layers}
    recorded: list[LayerWeights] = []
    for item, weights, gradient in zip(recording.maps, recording.weights, found, strict=True):
        layer = by_site[item.site]
        recorded.append(
            LayerWeights(
                with_query_axis(weights.detach()),
                with_query_axis(gradient),
                len(item.info.prefix_tokens or ()),
                (item.values.shape[-2], item.values.shape[-1]),
                layer.single_query,
                read_shares(info, layer.prefix_tokens, layer.grid),
            )
        )
    return recorded


def with_query_axis(weights: Float[Tensor, "b *axes m"]) -> Float[Tensor, "b h n m"]:
    """Return recorded weights as `[b h n m]`: `[b h m]` lacks queries, `[b m]` heads too.

    Example:
        >>> with_query_axis(torch.ones(2, 15)).shape, with_query_axis(torch.ones(2, 3, 15)).shape
        (torch.Size([2, 1, 1, 15]), torch.Size([2, 3, 1, 15]))
    """
    weights = weights.unsqueeze(1) if weights.ndim == 2 else weights
    return weights.unsqueeze(2) if weights.ndim == 3 else weights


def check_one_call_each(
    info: ModelInfo, recording: Recording, layers: Sequence[AttentionLayer]
) -> None:
    """Check that each layer ran exactly once.

    Raises:
        ValueError: If it did not.
    """
    if len(recording.maps) != len(layers):
        sites = ", ".join(attention_map.site for attention_map in recording.maps)
        raise ValueError(
            f"each of {len(layers)} attention layers of {info.name} must run once, got "
            f"{len(recording.maps)} maps: {sites}; use record() and combine them yourself"
        )


def resolve_attention_layer(
    info: ModelInfo, layer: int | str, *, allow_unread: bool = False
) -> AttentionLayer:
    """Return an attention layer.

    Args:
        layer: Its index among those that the scores read (-1 is the last), or the name of the
            module or of the block around it.
        allow_unread: Whether layers that no score depends on may be selected by name.

    Raises:
        ValueError: If there is no such layer, or several in that block.
    """
    layers = info.attention_layers
    if isinstance(layer, int) and -len(layers) <= layer < len(layers):
        return layers[layer]
    known = (*layers, *info.unread_layers) if allow_unread else layers
    inside = [each for each in known if f"{each.site}.".startswith(f"{layer}.")]
    if len(inside) == 1:
        return inside[0]
    listed = ", ".join(each.site for each in inside[:3])
    raise ValueError(
        f"layer must select one of the {len(layers)} attention layers that the scores of "
        f"{info.name} read, {layers[0].site} to {layers[-1].site}, by index or name; got {layer!r}"
        + (f", which contains {len(inside)}: {listed}" if inside else "")
    )


def resolve_attention_layers(
    info: ModelInfo, layers: int | str | Sequence[int | str], *, allow_unread: bool = False
) -> list[AttentionLayer]:
    """Return one attention layer, or several whose maps can be averaged.

    Raises:
        ValueError: If there is no such layer, or they have several token grids.
    """
    listed = [layers] if isinstance(layers, int | str) else layers
    chosen = [resolve_attention_layer(info, each, allow_unread=allow_unread) for each in listed]
    grids = {each.key_grid or each.grid for each in chosen}
    if len(grids) != 1:
        got = ", ".join(f"{rows} x {columns}" for rows, columns in sorted(grids)) or "none"
        raise ValueError(f"layers must share one token grid to be averaged, got {got}")
    return list(dict.fromkeys(chosen))


def no_single_grid(subject: Subject, _target: object) -> str:
    """Return why the attention of all layers cannot be multiplied; "" if it can."""
    info, layers = subject.info, subject.info.attention_layers
    if info.attention_error or not layers:
        return info.attention_error or NO_ATTENTION
    grids = [grid for layer in layers for grid in (layer.grid, layer.key_grid or layer.grid)]
    if len({*grids}) > 1:
        listed = ", ".join(f"{rows} x {columns}" for rows, columns in dict.fromkeys(grids))
        return (
            f"its layers have several token grids ({listed}) with learned weights between them; "
            "use the method attention for single layers"
        )
    if info.unsupported_layers:
        site, reason = info.unsupported_layers[0]
        return f"its layer {site} is not supported: {reason}"
    if info.parallel_layers:
        first, second = info.parallel_layers
        return (
            f"its layers {first} and {second} run in parallel, so that their attention cannot be "
            "multiplied; use the method attention for single layers"
        )
    if any(layer.single_query for layer in layers[:-1]):
        return "a layer before the last has a single query, so that attention cannot be multiplied"
    for layer, later in pairwise(layer for layer in layers if not layer.single_query):
        tokens, added = layer.prefix_tokens, later.prefix_tokens
        if added[len(added) - len(tokens) :] != tokens:  # new ones may be added in front
            return f"its prefix tokens change from {tokens} at {layer.site} to {added}"
    return ""


def read_shares(
    info: ModelInfo, prefix_tokens: tuple[str, ...], grid: tuple[int, int]
) -> Float[Tensor, " n"]:
    """Return the share of each token of a layer in what the scores read; shares sum to 1.

    Maps are the mean of the rows of these tokens, weighted by share. Shares are measured
    (`ModelInfo.read_rows`): a token is read if a score has a gradient with respect to its row after
    the last attention layer, with a share in proportion to its weight in a linear pooling; see
    `visattn.recording.score_trace.shares_of_rows`. Earlier layers use the same tokens, or all
    patches if they do not have them yet. If nothing could be measured, shares follow the convention
    in `ModelInfo.pooling`, for the reason in `pooling_assumed`.

    Example:
        >>> info = ModelInfo("tiny", "timm", (6, 10), (0.5,), (0.5,), "distilled")
        >>> read_shares(info, ("class", "distillation"), (1, 3))
        tensor([0.5000, 0.5000, 0.0000, 0.0000, 0.0000])
    """
    read = info.read_rows
    pooled = _POOLED_TOKENS.get(info.pooling, ())
    prefix, patches = [float(token in pooled) for token in prefix_tokens], 0.0
    cells = torch.full(grid, 1 / (grid[0] * grid[1]))
    # The weights of a pool already hold what it reads of each token, so that earlier layers use all
    # patches equally.
    if read is not None and not read.pool:
        missing = len(prefix_tokens) - len(read.prefix)  # later layers add tokens in front
        prefix = [0.0] * missing + list(read.prefix[max(-missing, 0) :])
        patches = read.patches
        if read.cells:
            weights = torch.tensor(read.cells)[None, None]
            weights = interpolate(weights, grid, mode="nearest-exact")[0, 0]
            cells = weights / weights.sum()
    patches = patches or float(not any(prefix))
    shares = torch.cat((torch.tensor(prefix), patches * cells.flatten())).double()
    return (shares / shares.sum()).float()


def describe_read_rows(info: ModelInfo) -> str:
    """Describe the rows that maps are averaged over, for their info.

    Example:
        >>> describe_read_rows(ModelInfo("tiny", "timm", (6, 10), (0.5,), (0.5,), "mean"))
        'mean'
    """
    assumed = f" (assumed: {info.pooling_assumed})" if info.pooling_assumed else ""
    return f"{info.read_rows or info.pooling}{assumed}"
