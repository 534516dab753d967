"""Records the attention maps of a model while it runs."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import partial
from math import isnan, nan
from typing import Any, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from visattn.blocks.tap import RecordRequest, Tap
from visattn.recording.attention_call import ALL, AttentionCall, Rows
from visattn.recording.frozen import plain
from visattn.recording.interception import (
    Running,
    attention_calls,
    check_supports_hooks,
    in_this_run,
    is_third_party,
)
from visattn.recording.places import CellStrides
from visattn.recording.probe import ObservedTokens, Probe, probe_model
from visattn.recording.subject import Subject
from visattn.results.attention_map import AttentionMap, truncate_text
from visattn.results.info import MapInfo
from visattn.results.kinds import MapKind

_SPATIAL_KINDS = ("gate", "tokens", "words", "queries")
_NO_IMAGE = "no image was passed in before it ran, so its grid is unknown; record the whole model"
_OTHER_TOKENS = (
    "it got {} tokens instead of {} as in the probe run; positions are unknown where tokens are "
    "dropped or merged; record in evaluation mode"
)
LayerSelection = int | str | Sequence[int | str] | None


@dataclass(repr=False)
class Recording:
    """Recorded attention maps.

    Args:
        maps: In the order in which they were computed; the first axis is the batch. Their info
            has the index of the `layer` among those that can be recorded and of the `call` of the
            module, both from 0, and for attention among tokens the kinds of `prefix_tokens` and
            the selected `queries` and `heads`.
        weights: For each map the attention weights as the model computed them: `[b, h, n, n]` for
            attention among tokens, including the rows and columns of prefix tokens, which maps do
            not have. They share memory with the maps.
        unsupported: Why attention that ran cannot be recorded, by module name.
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
    model: nn.Module | Subject,
    *,
    queries: str | Sequence[int] = "all",
    layers: LayerSelection = None,
    heads: int | Sequence[int] | None = None,
    differentiable: bool = False,
) -> Iterator[Recording]:
    """Record the attention maps of every forward pass inside the `with` block.

    Maps are detached and stay on their device. The output of the model does not change by a single
    bit, and its hooks are removed afterwards. Only the requested weights of a transformer are
    computed: the rows of the class token are cheap, those of all tokens are quadratic. Gates and
    word attention have no queries and heads, and are recorded as a whole.

    Models of other libraries are recorded without changes: `scaled_dot_product_attention`, each
    softmax whose result is multiplied with values, and `torch.nn.MultiheadAttention` are
    intercepted. The first run with each image size adds probe runs that locate the tokens, so run
    all batches inside one block, or pass an analyzed model, which already has their positions.
    Every map is verified against the output of its layer. Attention with unknown token positions,
    or not among positions, is listed in `unsupported`. Inside the block the model runs uncompiled
    and without gradient checkpointing, and no other thread can record or explain it.

    Args:
        model: The model, or a result of `analyze_model`.
        queries: Queries of attention among tokens: `all`, `patches`, `class`, `distillation` or
            `register` tokens, or token indices, with prefix tokens before the patches. For a
            detector with queries (DETR), also query indices.
        layers: Indices of layers in the order of the model (-1 is the last one), names, or
            patterns of names such as `blocks.1*`; one or several, None for all.
        heads: Indices of attention heads, one or several; None for all.
        differentiable: Compute the model's output with the recorded weights and keep them in the
            autograd graph, to take gradients with respect to them. The output then differs in the
            last bits. It requires all queries and heads.

    Raises:
        ValueError: If the model has no attention that can be recorded, no such layers, tokens or
            heads, or a layer cannot record single ones; if weights over tokens have no grid or do
            not reproduce the output of their layer; or if the block ends without any map.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Sigmoid(), Tap("gate"))
        >>> with record(model) as recording:
        ...     _ = model(torch.zeros(1, 1, 2, 2))
        >>> recording.maps[0].site, recording.maps[0].values.unique()
        ('1', tensor([0.5000]))
    """
    if differentiable and (queries, heads) != ("all", None):
        raise ValueError("differentiable=True requires all queries and heads; select rows later")
    request = RecordRequest(
        queries if isinstance(queries, str) else tuple(queries),
        (heads,) if isinstance(heads, int) else None if heads is None else tuple(heads),
        differentiable,
    )
    recorder = _Recorder(model, request, [layers] if isinstance(layers, int | str) else layers)
    with plain(recorder.model), recorder.recording() as recording:
        yield recording


class _Recorder:
    """Turns the attention of a model into maps: as taps state it, else by positions of tokens."""

    def __init__(
        self,
        model: nn.Module | Subject,
        request: RecordRequest,
        layers: Sequence[int | str] | None,
    ) -> None:
        self.subject = model if isinstance(model, Subject) else None
        self.model = model.model if isinstance(model, Subject) else model
        self.request, self.layers = request, layers
        taps = {name: each for name, each in self.model.named_modules() if isinstance(each, Tap)}
        self.taps = {name: tap for name, tap in taps.items() if not tap.unsupported}
        reasons = {name: tap.unsupported for name, tap in taps.items() if tap.unsupported}
        self.recording_ = Recording(unsupported=reasons)
        self.names = list(self.taps)
        """Layers that can be recorded, as far as they are known."""
        self.num_calls = Counter[str]()
        self.strides = CellStrides()
        self.outermost: Running | None = None
        self.images: Tensor | None = None
        self.probed: Probe | None = None

    @contextmanager
    def recording(self) -> Iterator[Recording]:
        """Record inside the block."""
        if self.subject is None:
            check_supports_hooks(self.model)
        others = any(is_third_party(module) for module in self.model.modules())
        from_end = any(isinstance(layer, int) and layer < 0 for layer in self.layers or ())
        # Token positions are measured before the model runs; with taps they may not be needed.
        self.probe_first = not self.taps or (others and from_end)
        if not others:
            self._check_layers()
        with ExitStack() as stack:
            stack.enter_context(self.strides.watching(self.model))
            for site, tap in self.taps.items():
                if self.probe_first or self._wanted(site):
                    hook = in_this_run(partial(self._on_tap, site))
                    stack.enter_context(tap.listening(self.request, hook))
            if others:
                calls = attention_calls(self.model, self._on_call, self._on_start)
                stack.enter_context(calls)
            yield self.recording_
        if self.probed:
            self._check_layers()
        if not self.recording_.maps:
            raise ValueError(self._no_maps())

    def _on_start(self, running: Running) -> None:
        """Remember the arguments of a run of the model, or of a part of it."""
        arguments = (*running.args, *running.kwargs.values())
        images = next((each for each in arguments if getattr(each, "ndim", 0) == 4), None)
        self.outermost = None if images is None else running
        if images is None:
            return
        if self.images is None or self.images.shape != images.shape:
            self.probed = None  # grids depend only on the size of the image
        self.images = images.detach()
        if self.probe_first and self.probed is None:
            self._probe()

    def _probe(self) -> Probe:
        """Locate the tokens of all layers, by repeating the call with probe images."""
        images, subject, call = self.images, self.subject, self.outermost
        assert images is not None  # noqa: S101 - checked by the callers
        size = images.shape[2], images.shape[3]
        again = None if call is None else _with_images(call, images)
        if subject is not None and subject.info.input_size == size:
            probe = subject.probe
        else:
            own = call is not None and call.module is self.model
            probe = probe_model(self.model, size, images.shape[1], again if own else None)
        if again and probe.error:  # only a part of the model was called
            probe = probe_model(self.model, size, images.shape[1], again)
        found = {layer.site for layer in probe.attention_layers} | {*probe.query_layers}
        sites = [site for site in probe.layouts if site in found and site not in self.taps]
        self.names = [*self.taps, *sites]
        self.probed = probe
        return probe

    def _on_call(self, call: AttentionCall) -> Tensor | None:
        """Record intercepted attention; return the weights that the model continues with."""
        layout: ObservedTokens | str | None = call.unsupported or None
        if layout is None and self.images is None:
            layout = _NO_IMAGE
        if layout is None:
            probe = self.probed or self._probe()
            layout = probe.query_layers.get(call.site) or probe.layout_of(call.site, call.index)
            layout = layout or probe.error or "it did not run in the probe run"
        if isinstance(layout, ObservedTokens):
            if not self._wanted(call.site):
                return None
            if call.shape[2:] == layout.counts:
                return self._record(call, layout)
            layout = _OTHER_TOKENS.format(call.shape[3], layout.counts[1])
        self.recording_.unsupported.setdefault(call.site, layout)
        return None

    def _record(self, call: AttentionCall, layout: ObservedTokens) -> Tensor | None:
        """Record the requested rows."""
        layer, windows, request = layout.layer, layout.windows, self.request
        tokens = len(layer.prefix_tokens) + layer.grid[0] * layer.grid[1]
        heads, rows = request.head_indices(call.shape[1]), ALL
        if layer.num_queries:
            rows = request.query_indices((), layer.num_queries)
        elif not layer.single_query:
            rows = request.query_indices(layer.prefix_tokens, tokens)
        if request.differentiable:
            weights, deviation = call.weights(), nan
        else:
            with torch.no_grad():
                # With windows, all rows are computed before the requested ones are selected.
                weights, deviation = call.proved_weights(heads, rows if windows is None else ALL)
                weights = weights.detach()
        by_window = weights
        if windows is not None:
            by_window = weights.unflatten(0, (-1, len(windows))).transpose(1, 2)  # [b h w p p]
            weights = window_weights_to_dense(by_window, windows, tokens, rows)
        elif layer.single_query:
            weights = weights.squeeze(2)
        more: dict[str, Any] = {
            "deviation": None if isnan(deviation) else deviation,  # None: used by the model itself
            "queries": request.queries,
            "heads": request.heads,
        }
        if call.heads_mixed:
            more["mixed"] = "before the model mixed its heads"
        info = MapInfo(prefix_tokens=tuple(layout.key_prefix_tokens), more=more)
        rows, columns = layer.key_grid or layer.grid
        values = weights[..., weights.shape[-1] - rows * columns :].unflatten(-1, (rows, columns))
        kind: MapKind = "queries" if layer.num_queries else "tokens"
        self._add(call.site, kind, values, weights, info)
        if not request.differentiable:
            return None
        # Gradients are taken with respect to the recorded tensor: the model must compute with it.
        if windows is not None:
            by_window = dense_to_window_weights(weights, by_window, windows)
            return by_window.transpose(1, 2).flatten(0, 1)
        return weights.unsqueeze(2) if layer.single_query else weights

    def _on_tap(self, site: str, tap: Tap, _: Any, weights: Tensor) -> None:
        """Record what a block passes through its tap."""
        if not self._wanted(site):
            return
        weights = weights if self.request.differentiable else weights.detach()
        weights = _select_rows(weights, tap, self.request, site)
        info = MapInfo()
        if tap.fulfilled is not None:
            more = {"queries": self.request.queries, "heads": self.request.heads}
            info = MapInfo(prefix_tokens=tuple(tap.roles), more=more)
        values = _to_grid(weights, tap, site)
        self._add(site, cast("MapKind", tap.kind), values, weights, info)

    def _add(
        self, site: str, kind: MapKind, values: Tensor, weights: Tensor, info: MapInfo
    ) -> None:
        layer = self.names.index(site) if site in self.names else None
        info = replace(info, call=self.num_calls[site], layer=layer)
        self.num_calls[site] += 1
        margin = (0, 0)
        if kind in _SPATIAL_KINDS:
            margin = self.strides.margin((values.shape[-2], values.shape[-1]))
        self.recording_.maps.append(AttentionMap(values, site, kind, info=info, margin=margin))
        self.recording_.weights.append(weights)

    def _wanted(self, site: str) -> bool:
        """Whether a layer is selected."""
        return self.layers is None or any(self._fits(layer, site) for layer in self.layers)

    def _fits(self, layer: int | str, site: str) -> bool:
        if isinstance(layer, str):
            return fnmatch(site, layer)
        return -len(self.names) <= layer < len(self.names) and self.names[layer] == site

    def _check_layers(self) -> None:
        """Check that each selection fits a layer."""
        known = [*self.names, *self.recording_.unsupported]
        for layer in self.layers or ():
            if not any(self._fits(layer, site) for site in known):
                raise ValueError(
                    f"layers must be indices below {len(self.names)} or names of attention layers, "
                    f"got {layer!r}; the layers are {', '.join(self.names)}"
                )

    def _no_maps(self) -> str:
        """Return why there is no map."""
        name, unsupported = type(self.model).__name__, self.recording_.unsupported
        if not unsupported:
            return (
                f"{name} must run inside the with block and compute attention, but no map was "
                f"recorded: no tap ({', '.join(self.taps) or 'it has none'}) received weights, and "
                "neither scaled_dot_product_attention, torch.nn.MultiheadAttention nor a softmax "
                "multiplied with values ran. Kernels of xformers, flash or flex attention cannot "
                "be intercepted: switch to sdpa or eager. Without attention, use gradcam"
            )
        first = {reason: site for site, reason in reversed(unsupported.items())}
        listed = "; ".join(f"{site or 'the model'}: {reason}" for reason, site in first.items())
        return (
            f"no attention of {name} can be recorded: {listed}; use a gradient method such as "
            "gradcam instead, or record another model"
        )


def _with_images(call: Running, images: Tensor) -> Callable[[Tensor], Any]:
    """Return a function that repeats a call with other images.

    Other batched arguments are those of the first image, repeated for each new one.
    """

    def replaced(argument: Any, others: Tensor) -> Any:
        if not isinstance(argument, Tensor):
            return argument
        if argument.shape == images.shape:
            return others
        batched = argument.ndim > 0 and len(argument) == len(images)
        return argument[:1].expand(len(others), *argument.shape[1:]) if batched else argument

    def forward(others: Tensor) -> Any:
        named = {name: replaced(argument, others) for name, argument in call.kwargs.items()}
        return call.module(*(replaced(argument, others) for argument in call.args), **named)

    return forward


def _select_rows(
    weights: Float[Tensor, "*axes"], tap: Tap, request: RecordRequest, site: str
) -> Float[Tensor, "*selected"]:
    """Return the requested rows of the weights that a block computed for all its recordings."""
    has_rows = tap.kind in ("tokens", "queries") and not tap.single_query
    if not has_rows or request.is_complete or request == tap.fulfilled:
        return weights
    if tap.kind == "tokens" and tap.fulfilled is None:
        raise ValueError(
            f"the attention at {site or 'the tap'} can only be recorded with queries='all' and "
            f"heads=None, got queries={request.queries!r} and heads={request.heads}; or exclude it "
            "with layers="
        )
    roles = tap.roles if tap.kind == "tokens" else ()
    selected = weights[:, request.head_indices(weights.shape[1])]
    return selected[:, :, request.query_indices(roles, weights.shape[2])]


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
    return weights[..., len(tap.roles) :].unflatten(-1, tap.grid)


def window_weights_to_dense(
    weights: Float[Tensor, "b h w p p"],
    indices: Int[Tensor, "w p"],
    count: int,
    rows: Rows = ALL,
) -> Float[Tensor, "b h r {count}"]:
    """Return weights inside windows as dense weights over all tokens, 0 outside the window.

    A row sums to less than 1 if padding of its window received weight.

    Args:
        indices: Token of each slot, each token once; -1 for padding.
        rows: Tokens whose rows are returned.

    Example:
        >>> halves = torch.full((1, 1, 2, 2, 2), 0.5)
        >>> window_weights_to_dense(halves, torch.tensor([[1, 2], [-1, 0]]), 3)[0, 0]
        tensor([[0.5000, 0.0000, 0.0000],
                [0.0000, 0.5000, 0.5000],
                [0.0000, 0.5000, 0.5000]])

    Source:
        Liu et al. 2021, arXiv:2103.14030, section 3.2.
    """
    # Padding is -1 and sorts to the front; the other slots follow in the order of their tokens.
    slots = indices.flatten().argsort()[indices.numel() - count :][rows]
    own = weights.flatten(2, 3)[:, :, slots]
    tokens = indices[slots // indices.shape[1]].remainder(count + 1)  # padding: the extra column
    dense = own.new_zeros((*own.shape[:-1], count + 1))
    return dense.scatter(-1, tokens.expand(own.shape), own)[..., :count]


def dense_to_window_weights(
    dense: Float[Tensor, "b h n n"],
    weights: Float[Tensor, "b h w p p"],
    indices: Int[Tensor, "w p"],
) -> Float[Tensor, "b h w p p"]:
    """Return dense weights as weights inside windows: the inverse of `window_weights_to_dense`.

    Args:
        weights: Weights inside windows, which are kept for padding; dense weights have none.
        indices: Token of each slot, each token once; -1 for padding.

    Example:
        >>> indices = torch.tensor([[1, 2], [-1, 0]])
        >>> weights = torch.rand(1, 1, 2, 2, 2)
        >>> dense = window_weights_to_dense(weights, indices, 3)
        >>> torch.equal(dense_to_window_weights(dense, weights, indices), weights)
        True
    """
    rows, columns = indices.unsqueeze(-1), indices.unsqueeze(-2)
    return torch.where((rows >= 0) & (columns >= 0), dense[:, :, rows, columns], weights)
