"""Recorded attention weights of selected layers, with gradients of a target."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import interpolate

from visattn.attribution.targets import Target, target_values
from visattn.recording.frozen import frozen, with_grad
from visattn.recording.model_info import NO_ATTENTION, AttentionLayer, ModelInfo
from visattn.recording.recorder import Recording, record_sites
from visattn.recording.subject import Subject
from visattn.results.attention_map import AttentionMap

_POOLED_TOKENS = {"class": ("class",), "distilled": ("class", "distillation")}


@dataclass(frozen=True, eq=False)
class LayerWeights:
    """Attention weights of one layer.

    Args:
        weights: With the columns of prefix tokens; for attention pooling with one row.
        prefix_tokens: Kinds of the tokens before the grid.
        grid: Rows and columns of the other tokens.
        single_query: Whether it is attention pooling or class attention, with a single query.
        shares: Share of each query in what the scores read (see `read_shares`).
    """

    weights: Float[Tensor, "b h n m"]
    prefix_tokens: tuple[str, ...]
    grid: tuple[int, int]
    single_query: bool
    shares: Float[Tensor, " q"]

    def to_grid(self, rows: Float[Tensor, "b m"]) -> Float[Tensor, "b gy gx"]:
        """Return values of tokens as a map, without prefix tokens."""
        return rows[:, len(self.prefix_tokens) :].unflatten(1, self.grid)

    def mean_of_read_rows(self, matrix: Float[Tensor, "b n m"]) -> Float[Tensor, "b m"]:
        """Return the mean of the rows that the scores read, by their shares."""
        if self.single_query:
            return matrix.mean(1)
        return torch.einsum("n,bnm->bm", self.shares.to(matrix), matrix)


def resolve_attention_layer(
    info: ModelInfo, layer: int | str, *, allow_unread: bool = False
) -> AttentionLayer:
    """Return an attention layer.

    Args:
        layer: Its index among those that the scores read, -1 for the last, or the name of the
            module or of the block around it.
        allow_unread: Whether it may be one that no score depends on.

    Raises:
        ValueError: If there is no such layer, or several in that block, or no score depends on it.
    """
    _check_has_attention(info)
    layers = info.attention_layers
    count = len(layers)
    if isinstance(layer, int) and -count <= layer < count:
        return layers[layer]
    inside = _layers_of(layers, layer)
    if len(inside) == 1:
        return inside[0]
    unread = [] if inside else _layers_of(info.unread_layers, layer)
    if len(unread) == 1 and allow_unread:
        return unread[0]
    if unread:
        raise ValueError(
            f"layer must be one that the scores of {info.name} read, but no score depends on the "
            f"attention of {unread[0].site}: new weights there would change nothing; the last "
            f"layer that is read is {layers[-1].site}"
        )
    listed = ", ".join(attention.site for attention in inside[:3])
    hint = f", which contains {len(inside)}: {listed}" if inside else ""
    raise ValueError(
        f"layer must select one of the {count} attention layers of {info.name}, {layers[0].site} "
        f"to {layers[-1].site}, by index or name; got {layer!r}{hint}"
    )


def _layers_of(layers: Sequence[AttentionLayer], name: int | str) -> list[AttentionLayer]:
    """Return the layer of a name, or those inside the module of that name."""
    named = [layer for layer in layers if layer.site == name]
    return named or [layer for layer in layers if layer.site.startswith(f"{name}.")]


def single_grid_error(info: ModelInfo) -> str:
    """Return why the attention of all layers cannot be multiplied; "" if it can.

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
    if info.parallel_layers:
        first, second = info.parallel_layers
        return (
            f"its layers {first} and {second} run side by side, the second is not computed from "
            "the first, so their attention cannot be multiplied; use the method attention for "
            "single layers"
        )
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


def no_single_grid(explained: Subject, _target: object) -> str:
    """Return why a method that combines all layers does not fit a model, as its `check`."""
    return single_grid_error(explained.info)


def _compatible_prefix(tokens: tuple[str, ...], later: tuple[str, ...]) -> bool:
    """Whether later prefix tokens are the earlier ones, or have others in front of them."""
    return tokens == later or not tokens or later[-len(tokens) :] == tokens


def read_shares(
    info: ModelInfo, prefix_tokens: tuple[str, ...], grid: tuple[int, int]
) -> Float[Tensor, " n"]:
    """Return the share of each token of a layer in what the scores read; they sum to 1.

    Maps are drawn from the rows of these tokens. They are measured (`ModelInfo.read_rows`): a token
    is read if a score has a gradient for its row after the last attention layer. Tokens that are
    pooled by linear weights have shares in proportion to these weights (each token of a mean the
    same); see `visattn.recording.read_rows.shares_of_rows`. In earlier layers the same tokens are
    drawn, or the patches where a layer does not have them yet. Where nothing could be measured,
    `ModelInfo.pooling` holds the convention, and `pooling_assumed` the reason.

    Example:
        >>> info = ModelInfo("tiny", "timm", (6, 10), (0.5,), (0.5,), "distilled")
        >>> read_shares(info, ("class", "distillation"), (1, 3))
        tensor([0.5000, 0.5000, 0.0000, 0.0000, 0.0000])
    """
    read = info.read_rows
    # What a pool reads of each token is in its own weights: the layers below are drawn for all
    # patches alike.
    if read is None or read.pool:
        pooled = _POOLED_TOKENS.get(info.pooling, ())
        prefix = [float(token in pooled) for token in prefix_tokens]
        patches = float(not any(prefix))
        cells = torch.full(grid, 1 / (grid[0] * grid[1]))
    else:
        missing = len(prefix_tokens) - len(read.prefix)  # later layers add tokens in front
        prefix = [0.0] * missing + list(read.prefix[max(-missing, 0) :])
        patches = read.patches or float(not any(prefix))
        cells = torch.full(grid, 1 / (grid[0] * grid[1]))
        if read.cells:
            weights = torch.tensor(read.cells)
            if tuple(weights.shape) != grid:
                weights = interpolate(weights[None, None], grid, mode="nearest-exact")[0, 0]
            cells = weights / weights.sum()
    shares = torch.cat((torch.tensor(prefix), patches * cells.flatten())).double()
    return (shares / shares.sum()).float()


def describe_read_rows(info: ModelInfo) -> str:
    """Return which rows maps are drawn from, for their info.

    Example:
        >>> describe_read_rows(ModelInfo("tiny", "timm", (6, 10), (0.5,), (0.5,), "mean"))
        'mean'
    """
    assumed = f" (assumed: {info.pooling_assumed})" if info.pooling_assumed else ""
    return f"{info.read_rows or info.pooling}{assumed}"


def record_weights(
    explained: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    layers: Sequence[AttentionLayer],
    *,
    queries: str | Sequence[int],
) -> list[LayerWeights]:
    """Return the attention weights of layers.

    Queries are selected as `record` takes them.

    Raises:
        ValueError: If the attention of the model is not supported, or a layer runs several times.
    """
    _check_has_attention(explained.info)
    sites = [layer.site for layer in layers]
    model = explained.model
    # Weights that reproduced the output of their layers once are handed on from then on, in place
    # of the output of a fused kernel: that kernel need not run beside them, nor be compared.
    key = ("verified", images.shape[1:], images.dtype, images.device, *sites)
    handed_on = queries == "all" and key in explained.measures and _is_precise(images)
    whole = _is_whole(explained)
    recorder = record_sites(
        model,
        sites,
        queries=queries,
        differentiable=handed_on,
        called_whole=whole,
        probed=explained.probe,
    )
    with frozen(model), torch.no_grad(), recorder as recording:
        target(explained.forward(images))
    check_one_call_each(explained.info, recording, layers)
    if queries == "all":
        explained.measures[key] = True
    by_site = {layer.site: layer for layer in layers}
    recorded = zip(recording.maps, recording.weights, strict=True)
    return [
        _layer_weights(explained.info, by_site[item.site], item, weights)
        for item, weights in recorded
    ]


def _is_whole(explained: Subject) -> bool:
    return explained.forward is explained.model


def _is_precise(images: Tensor) -> bool:
    """Whether weights times values are no coarser than what a fused kernel returns."""
    autocast = torch.is_autocast_enabled(images.device.type)
    return images.dtype in (torch.float32, torch.float64) and not autocast


def weights_and_gradients(
    explained: Subject,
    images: Float[Tensor, "b c y x"],
    target: Target,
    layers: Sequence[AttentionLayer],
) -> list[tuple[LayerWeights, Float[Tensor, "b h n m"]]]:
    """Return the attention weights of layers, and the gradient of the target for each.

    Raises:
        ValueError: If the attention of the model is not supported, a layer runs several times, or
            the target does not depend on one.
    """
    info = explained.info
    _check_has_attention(info)
    sites = [layer.site for layer in layers]
    with frozen(explained.model):
        with record_sites(
            explained.model,
            sites,
            differentiable=True,
            called_whole=_is_whole(explained),
            probed=explained.probe,
        ) as recording:
            values = target_values(explained, with_grad(images), target)
        check_one_call_each(info, recording, layers)
        check_have_gradients([values, *recording.weights], info)
        gradients = torch.autograd.grad(values.sum(), recording.weights, allow_unused=True)
    results: list[tuple[LayerWeights, Tensor]] = []
    by_site = {layer.site: layer for layer in layers}
    recorded = zip(recording.maps, recording.weights, gradients, strict=True)
    for attention_map, weights, gradient in recorded:
        if gradient is None:
            raise ValueError(
                "the target must depend on the attention of each layer, but it does not depend on "
                f"{attention_map.site}; choose another layer or start_layer"
            )
        layer = by_site[attention_map.site]
        entry = _layer_weights(info, layer, attention_map, weights.detach())
        results.append((entry, gradient.view_as(entry.weights)))
    return results


def check_have_gradients(tensors: Sequence[Tensor], info: ModelInfo) -> None:
    """Check that a target and the attention of a model are computed with gradients.

    Raises:
        ValueError: If one is not.
    """
    if not all(tensor.requires_grad for tensor in tensors):
        raise ValueError(
            f"{info.name} must compute its scores and its attention with gradients, but it "
            "detaches tensors or runs layers inside torch.no_grad(); remove that, or use a method "
            "without gradients such as attention or rollout"
        )


def check_one_call_each(
    info: ModelInfo, recording: Recording, layers: Sequence[AttentionLayer]
) -> None:
    """Check that each layer ran once.

    Raises:
        ValueError: If one did not, or ran several times.
    """
    if len(recording.maps) != len(layers):
        sites = ", ".join(attention_map.site for attention_map in recording.maps)
        raise ValueError(
            f"each of {len(layers)} attention layers of {info.name} must run once, got "
            f"{len(recording.maps)} maps: {sites}; use record() and combine them yourself"
        )


def _layer_weights(
    info: ModelInfo, layer: AttentionLayer, attention_map: AttentionMap, weights: Tensor
) -> LayerWeights:
    """Return recorded weights with axes of heads and queries, also for a single query."""
    grid = (attention_map.values.shape[-2], attention_map.values.shape[-1])
    weights = with_query_axis(weights)
    prefix_tokens = attention_map.info.prefix_tokens or ()
    shares = read_shares(info, layer.prefix_tokens, layer.grid)
    return LayerWeights(weights, prefix_tokens, grid, layer.single_query, shares)


def with_query_axis(weights: Float[Tensor, "b *axes m"]) -> Float[Tensor, "b h n m"]:
    """Return recorded weights as `[b h n m]`.

    `[b h m]` are those of a single query; `[b m]` has no heads either.

    Example:
        >>> with_query_axis(torch.ones(2, 15)).shape, with_query_axis(torch.ones(2, 3, 15)).shape
        (torch.Size([2, 1, 1, 15]), torch.Size([2, 3, 1, 15]))
    """
    weights = weights.unsqueeze(1) if weights.ndim == 2 else weights
    return weights.unsqueeze(2) if weights.ndim == 3 else weights


def _check_has_attention(info: ModelInfo) -> None:
    if info.attention_error or not info.attention_layers:
        reason = info.attention_error or NO_ATTENTION
        raise ValueError(
            f"the model must have attention that can be recorded, got {info.name}: {reason}; use a "
            "gradient method such as gradcam instead"
        )
