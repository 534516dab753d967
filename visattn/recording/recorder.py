"""Records the attention maps of a model while it runs."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.tap import RecordRequest, Tap
from visattn.io.messages import format_names
from visattn.recording.attention_call import fused_kernels
from visattn.recording.cell_strides import CellStrides
from visattn.recording.frozen import without_checkpointing
from visattn.recording.module_calls import (
    is_probing,
    is_third_party,
    may_compute_attention,
)
from visattn.recording.third_party import RecordedWeights, ThirdPartyRecorder
from visattn.results.attention_map import AttentionMap, truncate_text
from visattn.results.info import MapInfo

_SPATIAL_KINDS = ("gate", "tokens", "words", "queries")
LayerSelection = int | str | Sequence[int | str] | None


@dataclass(repr=False)
class Recording:
    """Recorded attention maps.

    Args:
        maps: In the order in which they were computed; the first axis is the batch. Their info
            has the index of the `layer` among those that can be recorded and of the `call` of the
            module, both from 0, and for attention among tokens the kinds of `prefix_tokens` and
            the selected `queries` and `heads`.
        weights: Attention weights as the model computed them; for attention among tokens with the
            columns of prefix tokens, which maps do not have. They share memory with the maps.
        unsupported: Reasons for attention that ran and cannot be recorded, by module name.
    """

    maps: list[AttentionMap] = field(default_factory=list)
    weights: list[Tensor] = field(default_factory=list)
    unsupported: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return the number of maps and their modules in one line."""
        sites = truncate_text(", ".join(dict.fromkeys(item.site for item in self.maps)))
        unsupported = f", {len(self.unsupported)} unsupported" if self.unsupported else ""
        return f"Recording({len(self.maps)} maps{': ' if sites else ''}{sites}{unsupported})"


@contextmanager
def record(
    model: nn.Module,
    *,
    queries: str | Sequence[int] = "all",
    layers: LayerSelection = None,
    heads: Sequence[int] | None = None,
    differentiable: bool = False,
) -> Iterator[Recording]:
    """Record the attention maps of every forward pass inside the `with` block.

    Maps are detached and stay on their device. The output of the model does not change by a single
    bit, and its hooks are removed afterwards. Only the requested weights of a transformer are
    computed: the rows of the class token are cheap, those of all tokens are quadratic. Gates and
    word attention have no queries and heads, and are recorded as a whole.

    Models of other libraries are recorded without changes: `scaled_dot_product_attention`, each
    softmax whose result is multiplied with values, and `torch.nn.MultiheadAttention` are
    intercepted. The first run with an image of some size adds a probe run that locates the tokens.
    Every map is compared with the output of its layer. Attention with unknown token positions, or
    not among positions, is listed in `unsupported`. Gradient checkpointing is off inside the block.

    Args:
        model: The model.
        queries: Queries of attention among tokens: `all`, `patches`, `class`, `distillation` or
            `register` tokens, or token indices, where prefix tokens come before the patches. Of a
            detector with queries (DETR) also their indices.
        layers: Indices of layers in the order of the model (-1 is the last one), names, or a
            pattern of names such as `blocks.1*`; None for all.
        heads: Indices of attention heads; None for all.
        differentiable: Compute the model's output with the recorded weights and keep them in the
            autograd graph, to take gradients with respect to them. The output then differs in the
            last bits. It requires all queries and heads.

    Raises:
        ValueError: If the model has no attention that can be recorded, is compiled or scripted, has
            no such layers, tokens or heads, or a layer cannot record single ones; if weights over
            tokens have no grid or do not reproduce the output of their layer; or if the block ends
            without any map.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Sigmoid(), Tap("gate"))
        >>> with record(model) as recording:
        ...     _ = model(torch.zeros(1, 1, 2, 2))
        >>> recording.maps[0].site, recording.maps[0].values.unique()
        ('1', tensor([0.5000]))
    """
    check_supports_hooks(model)
    request = _record_request(queries, heads, differentiable=differentiable)
    # A layer that runs again in the backward pass would be recorded twice, or in one pass only.
    with without_checkpointing(model), _recording(model, request, layers) as recording:
        yield recording


@contextmanager
def record_sites(
    model: nn.Module,
    sites: Sequence[str],
    *,
    queries: str | Sequence[int] = "all",
    differentiable: bool = False,
    called_whole: bool = False,
) -> Iterator[Recording]:
    """Record layers of a model that was analyzed, inside `frozen`; like `record`, but faster.

    Args:
        sites: Names of attention layers.
        called_whole: Whether the model itself is called, and none of its parts by another function:
            what is not part of the layers then runs unseen.

    Example:
        >>> model = nn.Sequential(torch.nn.Sigmoid(), Tap("gate"))
        >>> with record_sites(model, ["1"]) as recording:
        ...     _ = model(torch.zeros(1, 1, 2, 2))
        >>> recording.maps[0].site
        '1'
    """
    request = _record_request(queries, None, differentiable=differentiable)
    only = frozenset(sites) if called_whole and may_compute_attention(model) else None
    with _recording(model, request, sites, only) as recording:
        yield recording


@contextmanager
def _recording(
    model: nn.Module,
    request: RecordRequest,
    layers: LayerSelection,
    only: frozenset[str] | None = None,
) -> Iterator[Recording]:
    taps = {name: module for name, module in model.named_modules() if isinstance(module, Tap)}
    has_third_party = any(is_third_party(module) for module in model.modules())
    if not taps and not has_third_party:
        raise ValueError(
            f"the model must have attention that can be recorded, but {type(model).__name__} has "
            "no Tap; build it from visattn.blocks, or pass its weights through a "
            "visattn.blocks.tap.Tap"
        )
    recording = Recording()
    collector = _MapCollector(recording, request, layers, list(taps), open_ended=has_third_party)
    third_party = ThirdPartyRecorder(
        model,
        request,
        collector.select,
        collector.add_third_party,
        probe_first=not taps,
        unsupported=recording.unsupported,
        sites=only,
    )
    with ExitStack() as stack:
        selected = [site for site in collector.select(()) if site in taps]
        stack.enter_context(collector.strides.watching(model))
        for site in selected:
            stack.enter_context(_recording_tap(taps[site], site, collector))
        if has_third_party:
            stack.enter_context(third_party.recording())
        yield recording
    if not recording.maps:
        raise ValueError(_no_maps_error(model, taps, recording, third_party))


def _record_request(
    queries: str | Sequence[int], heads: Sequence[int] | None, *, differentiable: bool
) -> RecordRequest:
    request = RecordRequest(
        queries if isinstance(queries, str) else tuple(queries),
        None if heads is None else tuple(heads),
        differentiable,
    )
    if differentiable and not request.is_complete:
        raise ValueError(
            "differentiable=True requires queries='all' and heads=None, because the model computes "
            f"with the recorded weights; got queries={queries!r} and heads={heads}. Select rows "
            "from the gradients instead"
        )
    return request


def select_layers(names: Sequence[str], layers: LayerSelection) -> list[str]:
    """Return the names of the selected layers.

    They are indices, names, or a pattern of names; None for all.

    Raises:
        ValueError: If there is no such layer.

    Example:
        >>> select_layers(["a.attn", "b.attn"], [-1, "a.attn"]), select_layers(["a", "b"], "b*")
        (['b.attn', 'a.attn'], ['b'])
    """
    selected = select_known_layers(names, layers)
    if isinstance(layers, str) and not selected:
        raise ValueError(
            f"layers must match the name of an attention layer, got {layers!r}; the layers are "
            f"{', '.join(names)}"
        )
    if layers is None or isinstance(layers, str):
        return selected
    indices = [layers] if isinstance(layers, int) else layers
    if not selected or len(selected) < len(indices):
        raise ValueError(
            f"layers must be indices below {len(names)} or names of attention layers, got {layers}"
        )
    return selected


def select_known_layers(names: Sequence[str], layers: LayerSelection) -> list[str]:
    """Return the names of the selected layers, where layers that are not known yet may follow.

    Example:
        >>> select_known_layers(["a", "b"], [-1, 7])
        ['b']
    """
    if layers is None or isinstance(layers, str):
        return [name for name in names if layers is None or fnmatch(name, layers)]
    count = len(names)
    return [
        names[layer] if isinstance(layer, int) else layer
        for layer in ([layers] if isinstance(layers, int) else layers)
        if (-count <= layer < count if isinstance(layer, int) else layer in names)
    ]


def check_supports_hooks(model: nn.Module) -> None:
    """Check that the attention of a model can be intercepted.

    Raises:
        ValueError: If it is compiled or scripted, or uses attention kernels that cannot be
            intercepted.

    Example:
        >>> check_supports_hooks(nn.Linear(1, 1))
    """
    check_not_compiled(model)
    for name, kernel in fused_kernels(model).items():
        raise ValueError(
            "the attention implementation must be 'sdpa' or 'eager' to be recorded, got "
            f"{kernel!r} in {name or 'the model'}; call set_attn_implementation('sdpa') or "
            "'eager' on it first"
        )


def check_not_compiled(model: nn.Module) -> None:
    """Check that the modules of a model run one by one.

    Raises:
        ValueError: If it is compiled or scripted.
    """
    for name, module in model.named_modules():
        compiled = getattr(module, "_compiled_call_impl", None) is not None
        wrapped = type(module).__name__ == "OptimizedModule"
        scripted = isinstance(module, torch.jit.ScriptModule)
        if compiled or wrapped or scripted:
            raise ValueError(
                "the model must be neither compiled nor scripted to be recorded, but "
                f"{name or 'the model'} is; record the original model"
            )


@dataclass
class _MapCollector:
    """Converts recorded weights to maps.

    Args:
        open_ended: Whether more layers may become known when the model runs.
    """

    recording: Recording
    request: RecordRequest
    layers: LayerSelection
    taps: list[str]
    open_ended: bool
    calls: Counter[str] = field(default_factory=Counter)
    strides: CellStrides = field(default_factory=CellStrides)
    _sites: list[str] = field(default_factory=list)
    _selected: dict[tuple[str, ...], list[str]] = field(default_factory=dict)

    def select(self, third_party: Sequence[str], unsupported: Sequence[str] = ()) -> list[str]:
        """Return the names of the layers to record, taps and third-party layers."""
        key = tuple(third_party)
        if key not in self._selected:
            self._sites = [*self.taps, *key]
            if self.taps and key:
                self._check_no_negative_index()
            names_unsupported = select_known_layers(unsupported, self._selected_names())
            incomplete = self.open_ended and not key
            select = select_known_layers if incomplete or names_unsupported else select_layers
            self._selected[key] = select(self._sites, self.layers)
        return self._selected[key]

    def _selected_names(self) -> str | list[str]:
        """Return the names or the pattern among the selected layers."""
        if isinstance(self.layers, str):
            return self.layers
        layers = [] if self.layers is None or isinstance(self.layers, int) else self.layers
        return [layer for layer in layers if isinstance(layer, str)]

    def _check_no_negative_index(self) -> None:
        """Refuse indices from the end, which change when more layers become known."""
        layers = [self.layers] if isinstance(self.layers, int) else self.layers or ()
        if isinstance(layers, str):
            return
        if any(isinstance(layer, int) and layer < 0 for layer in layers):
            raise ValueError(
                f"layers must not count from the end, got {self.layers}: the model has taps and "
                "other attention, so the last layer is unknown before it runs; count from the "
                f"start, or use names: {', '.join(self._sites)}"
            )

    def add(self, attention_map: AttentionMap, weights: Tensor) -> None:
        """Add a map."""
        site = attention_map.site
        layer = self._sites.index(site) if site in self._sites else None
        info = replace(attention_map.info, call=self.calls[site], layer=layer)
        self.calls[site] += 1
        self.recording.maps.append(replace(attention_map, info=info))
        self.recording.weights.append(weights)

    def add_third_party(self, recorded: RecordedWeights) -> None:
        """Add a map of intercepted attention among tokens."""
        weights = recorded.weights
        grid = recorded.grid
        values = weights[..., weights.shape[-1] - grid[0] * grid[1] :].unflatten(-1, grid)
        attention_map = AttentionMap(
            values,
            recorded.site,
            recorded.kind,
            info=recorded.info,
            margin=self.strides.margin(grid),
        )
        self.add(attention_map, weights)


def _no_maps_error(
    model: nn.Module, taps: dict[str, Tap], recording: Recording, third_party: ThirdPartyRecorder
) -> str:
    """Return why there is no map."""
    name = type(model).__name__
    if recording.unsupported:
        reasons = dict.fromkeys(recording.unsupported.values())
        listed = "; ".join(
            f"{_sites_with_reason(recording.unsupported, reason)}: {reason}" for reason in reasons
        )
        return (
            f"no attention of {name} can be recorded: {listed}; use a gradient method such as "
            "gradcam instead, or record another model"
        )
    if taps:
        return (
            f"{name} must run inside the with block and use its taps ({', '.join(taps)}), but no "
            "map was recorded"
        )
    if not third_party.ran:
        return f"{name} must run inside the with block, but it did not"
    return (
        f"no attention of {name} was recorded: it ran neither scaled_dot_product_attention, nor a "
        "softmax whose result is multiplied with values, nor torch.nn.MultiheadAttention. If it "
        "has no attention, use a gradient method such as gradcam instead; if it uses kernels of "
        "xformers, flash or flex attention, switch it to sdpa or eager"
    )


def _sites_with_reason(unsupported: dict[str, str], reason: str) -> str:
    sites = [site or "the model" for site, other in unsupported.items() if other == reason]
    return format_names(sites, 1)


@contextmanager
def _recording_tap(tap: Tap, site: str, collector: _MapCollector) -> Iterator[None]:
    request = collector.request

    def hook(tap: nn.Module, _: tuple[Tensor, ...], weights: Tensor) -> None:
        if isinstance(tap, Tap) and not is_probing():
            values = weights if request.differentiable else weights.detach()
            selected = _select_rows(values, tap, request, site)
            info = _tap_info(tap, request)
            maps = _to_grid(selected, tap, site)
            margin = (0, 0)
            if tap.kind in _SPATIAL_KINDS:
                margin = collector.strides.margin((maps.shape[-2], maps.shape[-1]))
            attention_map = AttentionMap(maps, site, tap.kind, info=info, margin=margin)
            collector.add(attention_map, selected)

    handle = tap.register_forward_hook(hook)
    tap.requests.append(request)
    try:
        yield
    finally:
        handle.remove()
        tap.requests.remove(request)


def _tap_info(tap: Tap, request: RecordRequest) -> MapInfo:
    if tap.fulfilled is None:
        return MapInfo()
    selection = {"queries": request.queries, "heads": request.heads}
    return MapInfo(prefix_tokens=tuple(tap.roles), more=selection)


def _select_rows(
    weights: Float[Tensor, "*axes"], tap: Tap, request: RecordRequest, site: str
) -> Float[Tensor, "*selected"]:
    """Return the requested rows of the weights that a block computed for all its recordings."""
    if tap.kind == "queries":
        rows = request.query_indices((), weights.shape[2])
        return weights[:, request.head_indices(weights.shape[1])][:, :, rows]
    complete = request.is_complete or request == tap.fulfilled
    if tap.kind != "tokens" or tap.single_query or complete:
        return weights
    if tap.fulfilled is None:
        raise ValueError(
            f"the attention at {site or 'the tap'} can only be recorded with queries='all' and "
            f"heads=None, got queries={request.queries!r} and heads={request.heads}; or exclude it "
            "with layers="
        )
    selected = weights[:, request.head_indices(weights.shape[1])]
    return selected[:, :, request.query_indices(tap.roles, weights.shape[2])]


def _to_grid(weights: Float[Tensor, "*axes"], tap: Tap, site: str) -> Float[Tensor, "*shaped"]:
    """Return weights over a flattened grid as weights over rows and columns."""
    if tap.grid is None:
        if tap.kind in ("tokens", "words", "queries"):
            raise ValueError(
                f"weights over {weights.shape[-1]} tokens must have a grid to become a map, but "
                f"the tap at {site or 'the root'} has none (weights {list(weights.shape)}); set "
                "tap.grid = (height, width) before the tap is called, or record another layer"
            )
        return weights
    rows, columns = tap.grid
    weights = weights[..., len(tap.roles) :]
    if weights.shape[-1] != rows * columns:
        raise ValueError(
            f"the last axis of the weights at {site} must have the length of the grid, {rows} x "
            f"{columns}, got shape {tuple(weights.shape)}; set tap.grid before the tap is called"
        )
    return weights.unflatten(-1, (rows, columns))
