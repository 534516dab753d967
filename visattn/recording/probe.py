"""Locates the tokens of attention layers by sending token indices through a model."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from visattn.blocks.tap import RecordRequest, Tap
from visattn.recording.attention_call import AttentionCall
from visattn.recording.interception import (
    PROJECTIONS,
    Running,
    attention_calls,
    in_this_run,
    probing,
    running_modules,
)
from visattn.recording.model_info import AttentionLayer, FeatureLayer
from visattn.recording.outputs import OutputLayout, detect_output_layout
from visattn.recording.quadrant_probe import QuadrantProbeResult, tokens_aligned
from visattn.recording.token_grid import (
    PROBE_BATCH_SIZE,
    GridProbe,
    decode_indices,
    is_sequential,
    rectangular_window_size,
    windows_per_image,
)

_CHANNEL_ATTENTION = ("XCA", "ChannelAttention", "ChannelAttentionV2", "CrossCovarianceAttn")
_FIRST_QUERY = RecordRequest((0,))
_MISALIGNED = "changed image blocks do not show at the tokens of their position"
_NO_OUTPUT_POSITIONS = "its output does not lie on the positions of its queries"


@dataclass(frozen=True, eq=False)
class ObservedTokens:
    """Positions of the tokens of one attention layer.

    Args:
        layer: Metadata of the layer.
        key_prefix_tokens: Kinds of the tokens before the grid of the keys.
        windows: Token indices of each window, -1 for empty slots; None for global attention.
    """

    layer: AttentionLayer
    key_prefix_tokens: tuple[str, ...]
    windows: Tensor | None = None


Layouts = Mapping[str, Sequence[ObservedTokens | str]]
"""Positions of the tokens of each call of each module, or why it cannot be recorded."""


def layout_of(layouts: Layouts, site: str, index: int) -> ObservedTokens | str | None:
    """Return the positions of the tokens of a call; None if the module did not run in the probe.

    Several images may have run one after the other: call 3 of a module that runs twice per image is
    its second.
    """
    calls = layouts.get(site)
    return calls[index % len(calls)] if calls else None


@dataclass(eq=False)
class ProbeResult:
    """Result of the probe runs of a model.

    Args:
        layouts: For each module that computes attention and each of its calls, the positions of its
            tokens, or why it cannot be recorded.
        query_layers: Layers in which queries that lie nowhere on the image attend to a grid, as in
            the decoder of DETR, by module.
        attention_inputs: Inputs of attention that lie on a grid.
        prefix_tokens: Kinds of the tokens that the model puts before its grid.
        quadrants: Result of the run on quadrant images.
        output: Location of the class scores in the output of the model.
        error: Why the model could not be run; "" if it could.
    """

    layouts: dict[str, list[ObservedTokens | str]] = field(default_factory=dict)
    query_layers: dict[str, AttentionLayer] = field(default_factory=dict)
    attention_inputs: tuple[FeatureLayer, ...] = ()
    prefix_tokens: tuple[str, ...] = ()
    quadrants: QuadrantProbeResult = field(default_factory=QuadrantProbeResult)
    output: OutputLayout = field(default_factory=OutputLayout)
    error: str = ""

    @property
    def attention_layers(self) -> list[AttentionLayer]:
        """Attention layers that can be recorded, in the order in which they run."""
        first_calls = (calls[0] for calls in self.layouts.values())
        return [layout.layer for layout in first_calls if isinstance(layout, ObservedTokens)]

    @property
    def unsupported_layers(self) -> list[tuple[str, str]]:
        """Attention layers that cannot be recorded, and why."""
        first_calls = ((site, calls[0]) for site, calls in self.layouts.items())
        return [(site, reason) for site, reason in first_calls if isinstance(reason, str)]


class ModelProbe:
    """Runs a model on zeros, with token indices in place of activations.

    The input of every block is replaced by tokens that encode their own index, norms pass them
    through, and the indices are decoded where attention projects its tokens. So windows are found
    as the model itself partitions, shifts and pads them. The run on quadrant images verifies that
    the tokens lie on the image in this order.
    """

    def __init__(
        self,
        model: nn.Module,
        image_size: tuple[int, int],
        prefix_tokens: tuple[str, ...],
        quadrants: QuadrantProbeResult,
    ) -> None:
        self.model = model
        self.image_size = image_size
        self.prefix_tokens = prefix_tokens
        self.quadrants = quadrants
        self.stack: list[Running] = []
        self.grids = GridProbe(image_size, prefix_tokens, quadrants.grids)
        self.result = ProbeResult(prefix_tokens=prefix_tokens, quadrants=quadrants)
        self.attention_inputs: dict[str, FeatureLayer] = {}

    def run(self, forward: Callable[[], Any]) -> ProbeResult:
        """Return what was found while the model runs."""
        with ExitStack() as stack:
            stack.enter_context(probing())
            stack.enter_context(attention_calls(self.model, self._on_call))
            running = running_modules(self.model, self._on_enter, self._on_exit)
            self.stack = stack.enter_context(running)
            stack.enter_context(_ProjectionInputs(self.stack))
            for site, module in self.model.named_modules():
                is_tap = isinstance(module, Tap)
                make = self._tap_hook if is_tap else self.grids.forward_hook
                hook = in_this_run(make(site))
                if isinstance(module, Tap) and module.unsupported:
                    self.result.layouts[site] = [module.unsupported]
                elif isinstance(module, Tap) and module.kind == "tokens":
                    stack.enter_context(module.listening(_FIRST_QUERY, hook))
                else:
                    stack.callback(module.register_forward_hook(hook).remove)
            self.result.output = detect_output_layout(forward(), PROBE_BATCH_SIZE)
        sites = dict.fromkeys(layer.site for layer in self.attention_inputs.values())
        aligned = self.quadrants.feature_layers
        self.result.attention_inputs = tuple(aligned[site] for site in sites if site in aligned)
        return self.result

    def _on_call(self, attention: AttentionCall) -> None:
        """Store the shape of attention until the module ends."""
        call = self.stack[-1]
        self.quadrants.attention_modules.add(call.site)
        if attention.unsupported:
            call.state.setdefault("unsupported", attention.unsupported)
            return
        if attention.tokens is not None:
            call.state["projected"].append(attention.tokens)
        call.state["attentions"] += 1
        call.state["shape"] = attention.shape

    def _on_enter(self, call: Running) -> Any:
        args, kwargs = call.args, call.kwargs
        call.state |= {"projected": [], "attentions": 0}
        # Methods explain what attention reads: the norm before it, not the residual stream.
        norm = _norm_of_same_block(self.grids.last_norm, call.site)
        call.state["input_layer"] = norm or self._parent_input()
        call.state["last_features"] = self.grids.last_features
        # The model itself gets images, which are no tokens.
        if isinstance(call.module, nn.MultiheadAttention) or len(self.stack) == 1:
            return None
        for index, arg in enumerate(args):
            if isinstance(arg, Tensor) and (code := self.grids.encode(arg)) is not None:
                return (*args[:index], code, *args[index + 1 :]), kwargs
        for name, arg in kwargs.items():
            if isinstance(arg, Tensor) and (code := self.grids.encode(arg)) is not None:
                return args, {**kwargs, name: code}
        return None

    def _parent_input(self) -> FeatureLayer | None:
        """Return the last feature layer before the enclosing module began."""
        stack = self.stack
        return stack[-2].state["last_features"] if len(stack) > 1 else None

    def _on_exit(self, call: Running, output: Any) -> None:
        if not call.third_party or not (call.state["attentions"] or "unsupported" in call.state):
            return
        layout = self._token_layout(call, output)
        if isinstance(layout, ObservedTokens) and not _is_aligned(self.quadrants, call, layout):
            layout = _MISALIGNED
        self.result.layouts.setdefault(call.site, []).append(layout)
        if isinstance(layout, str) and (queries := self._query_layer(call)) is not None:
            self.result.query_layers[call.site] = queries
        if isinstance(layout, ObservedTokens):
            self._store_input(call, call.site, single_query=layout.layer.single_query)

    def _query_layer(self, call: Running) -> AttentionLayer | None:
        """Return the layer, if queries that lie nowhere attend to a grid in it; else None."""
        if "unsupported" in call.state or call.state["attentions"] > 1:
            return None
        groups, heads, queries, keys = call.state["shape"]
        tokens = self.quadrants.attention_tokens.get((call.site, call.index))
        split = self.grids.split(keys)
        if groups != PROBE_BATCH_SIZE or queries == keys or tokens is None or split is None:
            return None
        prefix, grid = split
        if not tokens_aligned(tokens.keys, grid, len(prefix), None):
            return None
        return AttentionLayer(call.site, grid, heads, prefix, num_queries=queries)

    def _store_input(self, call: Running, site: str, *, single_query: bool) -> None:
        if not single_query and call.state["input_layer"] is not None:
            self.attention_inputs.setdefault(site, call.state["input_layer"])

    def _token_layout(self, call: Running, output: Any) -> ObservedTokens | str:
        """Return the positions of the tokens of finished attention, or why they are unknown."""
        if type(call.module).__name__ in _CHANNEL_ATTENTION:
            return "it attends among channels, not among positions"
        if "unsupported" in call.state:
            return call.state["unsupported"]
        if call.state["attentions"] > 1:
            return "it combines several softmaxes, none of which alone is its attention"
        groups, heads, queries, keys = call.state["shape"]
        decoded = (decode_indices(tensor, groups, queries) for tensor in call.state["projected"])
        indices = next((index for index in decoded if index is not None), None)
        windows = None
        if indices is not None and queries == keys:
            windows = windows_per_image(indices, PROBE_BATCH_SIZE)
            if windows is None:
                return "the windows of several images are interleaved"
        elif groups != PROBE_BATCH_SIZE:
            return "the grid positions of the tokens of its groups could not be traced"
        elif self.grids.permuted:
            return "its tokens are not in the order of their grid"
        # One window that holds all tokens in order is global attention.
        if windows is not None and not is_sequential(windows):
            layout = self._window_layout(call.site, windows, heads)
        else:
            layout = self._global_layout(call.site, heads, queries, keys)
        tokens = int(windows.max()) + 1 if windows is not None else queries
        if isinstance(layout, ObservedTokens) and not layout.layer.single_query:
            observed = layout.layer.grid in self.grids.observed_grids
            positions = _has_positions(output, groups * queries, PROBE_BATCH_SIZE * tokens)
            valid = observed if positions is None else positions
            pools = replace(layout, layer=replace(layout.layer, pools=positions is None))
            return pools if valid else _NO_OUTPUT_POSITIONS
        return layout

    def _window_layout(self, site: str, windows: Tensor, heads: int) -> ObservedTokens | str:
        num_tokens = int(windows.max()) + 1
        split = self.grids.split(num_tokens)
        if split is None:
            return _no_grid_error(num_tokens, self.prefix_tokens)
        prefix, grid = split
        if prefix:
            return "its windows contain tokens that are not part of the grid"
        # Shifted windows are rolled: the first window begins at the token that was moved there.
        shift = divmod(max(int(windows[0, 0]), 0), grid[1])
        window = rectangular_window_size(windows, grid[1])
        layer = AttentionLayer(
            site, grid, heads, window_size=window, shift_size=shift if window else (0, 0)
        )
        return ObservedTokens(layer, (), windows)

    def _global_layout(
        self, site: str, heads: int, queries: int, keys: int
    ) -> ObservedTokens | str:
        single_query = queries == 1 < keys
        key_split = query_split = self.grids.split(keys)
        if not single_query and queries != keys:
            query_split = self.grids.split(queries)
        if key_split is None or query_split is None:
            return _no_grid_error(keys if key_split is None else queries, self.prefix_tokens)
        key_prefix, key_grid = key_split
        prefix, grid = query_split
        other_grid = None if key_grid == grid else key_grid
        layer = AttentionLayer(site, grid, heads, prefix, other_grid, single_query=single_query)
        return ObservedTokens(layer, key_prefix)

    def _tap_hook(self, site: str) -> Callable[..., Any]:
        def hook(tap: nn.Module, _: tuple[Any, ...], weights: Tensor) -> None:
            if not isinstance(tap, Tap) or tap.grid is None:
                return
            if tap.kind == "queries":
                heads, count = weights.shape[1], weights.shape[2]
                layer = AttentionLayer(site, tap.grid, heads, num_queries=count)
                self.result.query_layers[site] = layer
                return
            if tap.fulfilled is None and not tap.single_query:  # it computed no map in this run
                return
            heads = weights.shape[1] if weights.ndim > 2 else None
            layer = AttentionLayer(site, tap.grid, heads, tap.roles, single_query=tap.single_query)
            self.result.layouts[site] = [ObservedTokens(layer, tap.roles)]
            if self.stack:
                self._store_input(self.stack[-1], site, single_query=tap.single_query)

        return hook


class _ProjectionInputs(TorchFunctionMode):
    """Stores the input of a projection with the running module and the one around it."""

    def __init__(self, stack: list[Running]) -> None:
        super().__init__()
        self.stack = stack

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a torch function."""
        if func in PROJECTIONS and self.stack and self.stack[-1].third_party:
            for call in self.stack[-2:]:
                call.state["projected"].append(args[0])
        return func(*args, **(kwargs or {}))


def _is_aligned(quadrants: QuadrantProbeResult, call: Running, layout: ObservedTokens) -> bool:
    """Whether the tokens of attention respond to quadrants at their inferred positions."""
    tokens = quadrants.attention_tokens.get((call.site, call.index))
    layer = layout.layer
    if tokens is None:
        return False
    key_grid = layer.key_grid or layer.grid
    prefix = len(layout.key_prefix_tokens)
    if not tokens_aligned(tokens.keys, key_grid, prefix, layout.windows):
        return False
    if layer.single_query or tokens.queries is None:
        return True
    return tokens_aligned(tokens.queries, layer.grid, len(layer.prefix_tokens), layout.windows)


def _no_grid_error(num_tokens: int, prefix_tokens: tuple[str, ...]) -> str:
    prefix = ", ".join(prefix_tokens) or "none"
    return f"{num_tokens} tokens form no grid of the image (prefix tokens: {prefix})"


def _has_positions(output: Any, slots: int, tokens: int) -> bool | None:
    """Whether the output of attention has a position for each query; None if it is pooled."""
    tensor = output[0] if isinstance(output, tuple) and output else output
    if not isinstance(tensor, Tensor) or tensor.ndim < 3:
        return None
    counts = {tensor.numel() // tensor.shape[-1]}
    if tensor.ndim == 4:
        counts.add(tensor.numel() // tensor.shape[1])
    return bool(counts & {slots, tokens})


def _norm_of_same_block(norm: FeatureLayer | None, site: str) -> FeatureLayer | None:
    """Return a norm if it is in the block that contains the module."""
    block = "" if norm is None else norm.site.rpartition(".")[0]
    return norm if block and site.startswith(f"{block}.") else None
