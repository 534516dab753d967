"""Records attention of models without taps, by intercepting torch functions."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isnan
from typing import Any

import torch
from torch import Tensor, nn

from visattn.blocks.tap import RecordRequest
from visattn.functional.windows import dense_to_window_weights, window_weights_to_dense
from visattn.recording.attention_call import (
    AttentionCall,
)
from visattn.recording.interception import AttentionInterceptor, sums_to_one
from visattn.recording.module_calls import (
    ModuleCall,
    ModuleCallStack,
    first_image_batch,
    with_images,
)
from visattn.recording.probe import ObservedTokens, ProbeResult, layout_of
from visattn.recording.probe_cache import NormalizingClassifier, probe_model
from visattn.recording.word_rows import row_tolerance
from visattn.results.info import MapInfo
from visattn.results.kinds import MapKind

_NO_IMAGE = "no image was passed in before it ran, so its grid is unknown; record the whole model"


@dataclass(frozen=True)
class RecordedWeights:
    """Intercepted weights of one attention call.

    Args:
        site: Qualified name of the module.
        weights: With the columns of prefix tokens.
        grid: Rows and columns of the keys.
        info: How they were computed.
        kind: `tokens`, or `queries` that lie nowhere on the image.
    """

    site: str
    weights: Tensor
    grid: tuple[int, int]
    info: MapInfo
    kind: MapKind = "tokens"


@dataclass
class ThirdPartyRecorder:
    """Records all modules of a model that have no taps.

    Args:
        model: The model.
        request: Selected queries and heads.
        select: Returns the layers to record, from those that can be recorded and those that cannot.
        on_weights: Receives the recorded weights.
        probe_first: Whether to probe the model as soon as it gets an image, instead of when a layer
            without a tap first computes attention.
        unsupported: Receives the reasons for layers that cannot be recorded.
        sites: Modules whose attention is intercepted; None for all.
    """

    model: nn.Module
    request: RecordRequest
    select: Callable[[Sequence[str], Sequence[str]], Sequence[str]]
    on_weights: Callable[[RecordedWeights], None]
    probe_first: bool
    unsupported: dict[str, str] = field(default_factory=dict)
    sites: Collection[str] | None = None
    ran: bool = False

    def __post_init__(self) -> None:
        """Create the call stack; there is no image yet."""
        self.calls = ModuleCallStack()
        self.differentiable = self.request.differentiable
        self._images: Tensor | None = None
        self._outer_call: tuple[ModuleCall, tuple[Any, ...], dict[str, Any]] | None = None
        self._probe_result: ProbeResult | None = None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record inside the block."""
        replace = self.replace_weights if self.differentiable else None
        interceptor = AttentionInterceptor(
            self.calls, self, replace, selected=lambda call: self._token_layout(call) is not None
        )
        with interceptor.intercepting(self.model, self._on_enter, self._on_exit, self.sites):
            yield

    def _on_enter(self, call: ModuleCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if len(self.calls.stack) == 1:
            self.ran = True
            images = first_image_batch(args, kwargs)
            if images is not None:
                # Grids depend on the size of the image and on nothing else of it.
                if self._images is None or self._images.shape != images.shape:
                    self._probe_result = None
                self._images = images.detach()
                self._outer_call = (call, args, kwargs)
                if self.probe_first and self._probe_result is None:
                    self._probe_result = self._probe(self._images)

    def _on_exit(self, *_: Any) -> None:
        if len(self.calls.stack) == 1:
            self._outer_call = None

    def on_unsupported(self, call: ModuleCall, reason: str) -> None:
        """Store why a layer cannot be recorded."""
        self.unsupported.setdefault(call.site, reason)

    def on_attention(self, call: ModuleCall, attention: AttentionCall) -> None:
        """Record the requested rows."""
        layout = self._token_layout(call)
        if layout is None:
            return
        with torch.no_grad():
            self._record_rows(call, layout, attention)

    def replace_weights(self, call: ModuleCall, attention: AttentionCall) -> Tensor | None:
        """Record the weights, and return those that the model continues with."""
        layout = self._token_layout(call)
        if layout is None or not self._has_expected_tokens(call, layout, attention):
            return None
        weights = attention.compute_weights(slice(None), slice(None))
        if not self._is_normalized(call, attention, weights):
            return None
        if layout.windows is None:
            recorded = weights.squeeze(2) if layout.layer.single_query else weights
            self.on_weights(self._recorded(layout, attention, recorded, torch.nan))
            return recorded.unsqueeze(2) if layout.layer.single_query else recorded
        # A method takes gradients of the dense map; the model must compute with that same tensor,
        # so weights go from windows to the map and back.
        by_window = _split_windows(weights, layout.windows)
        dense = window_weights_to_dense(by_window, layout.windows, _num_tokens(layout))
        self.on_weights(self._recorded(layout, attention, dense, torch.nan))
        windowed = dense_to_window_weights(dense, by_window, layout.windows)
        return windowed.transpose(1, 2).flatten(0, 1)

    def _record_rows(
        self, call: ModuleCall, layout: ObservedTokens, attention: AttentionCall
    ) -> None:
        layer = layout.layer
        request = self.request
        if not self._has_expected_tokens(call, layout, attention):
            return
        heads = request.head_indices(attention.shape[1])
        rows = slice(None)
        if not layer.single_query:
            prefix = () if layer.num_queries else layer.prefix_tokens
            rows = request.query_indices(prefix, _num_queries(layout))
        # Tokens are spread over windows: all rows are computed, and the wanted ones taken after.
        queries = rows if layout.windows is None else slice(None)
        weights = attention.compute_weights(heads, queries).detach()
        if not self._is_normalized(call, attention, weights):
            return
        deviation = attention.deviation(weights, heads, queries)
        if deviation > row_tolerance(weights):
            raise ValueError(
                f"the recorded weights of {call.site} times its values must equal its output, but "
                f"they differ by {deviation:.1e}; please report this model"
            )
        if layout.windows is not None:
            by_window = _split_windows(weights, layout.windows)
            weights = window_weights_to_dense(by_window, layout.windows, _num_tokens(layout), rows)
        elif layer.single_query:
            weights = weights.squeeze(2)
        self.on_weights(self._recorded(layout, attention, weights, deviation))

    def _has_expected_tokens(
        self, call: ModuleCall, layout: ObservedTokens, attention: AttentionCall
    ) -> bool:
        """Whether the number of tokens is that of the probe run; else store the reason."""
        layer = layout.layer
        rows, columns = layer.key_grid or layer.grid
        queries = 1 if layer.single_query else _num_queries(layout)
        expected = queries, len(layout.key_prefix_tokens) + rows * columns
        if layout.windows is not None:
            expected = (layout.windows.shape[1],) * 2
        if attention.shape[2:] == expected:
            return True
        self.on_unsupported(
            call,
            f"it got {attention.shape[3]} tokens instead of {expected[1]} as in the probe run; "
            "positions are unknown where tokens are dropped or merged; record in evaluation mode",
        )
        return False

    def _is_normalized(self, call: ModuleCall, attention: AttentionCall, weights: Tensor) -> bool:
        """Whether weights of the model sum to 1, as our softmax does; else store the reason."""
        if attention.weights is not None and not sums_to_one(weights):
            self.on_unsupported(call, "its weights do not sum to 1")
            return False
        return True

    def _recorded(
        self, layout: ObservedTokens, attention: AttentionCall, weights: Tensor, deviation: float
    ) -> RecordedWeights:
        layer = layout.layer
        more: dict[str, Any] = {
            "deviation": None if isnan(deviation) else deviation,  # None: used by the model itself
            "queries": self.request.queries,
            "heads": self.request.heads,
        }
        if layer.window_size is not None:
            more |= {"window": layer.window_size, "shift": layer.shift_size}
        if attention.heads_mixed:
            more["mixed"] = "before the model mixed its heads"
        grid = layer.key_grid or layer.grid
        info = MapInfo(prefix_tokens=tuple(layout.key_prefix_tokens), more=more)
        kind = "queries" if layer.num_queries else "tokens"
        return RecordedWeights(layer.site, weights, grid, info, kind)

    def _token_layout(self, call: ModuleCall) -> ObservedTokens | None:
        """Return the token positions of a layer; None if it is not selected or unsupported."""
        if self._images is None:
            self.on_unsupported(call, _NO_IMAGE)
            return None
        if self._probe_result is None:
            self._probe_result = self._probe(self._images)
        result = self._probe_result
        layout = layout_of(result.layouts, call.site, call.index)
        if call.site in result.query_layers:
            layer = result.query_layers[call.site]
            layout = ObservedTokens(layer, layer.prefix_tokens)
        if layout is None:
            self.on_unsupported(call, result.error or "it did not run in the probe run")
            return None
        if isinstance(layout, str):
            self.on_unsupported(call, layout)
            return None
        places = [layer.site for layer in result.attention_layers]
        supported = [site for site in result.layouts if site in {*places, *result.query_layers}]
        selected = self.select(supported, [site for site, _ in result.unsupported_layers])
        return layout if call.site in selected else None

    def _probe(self, images: Tensor) -> ProbeResult:
        size = (images.shape[2], images.shape[3])
        channels = images.shape[1]
        outer = self._outer_call
        model = self.model
        is_classifier = isinstance(model, NormalizingClassifier)
        if outer is None or (outer[0].module is model and is_classifier):
            return probe_model(model, size, len(getattr(model, "mean", ())) or channels)
        # What was called may be a part of the model (`model.visual(images)`), or all of it with
        # more arguments than an image: the probe repeats the same call with other images.
        call, args, kwargs = outer

        forward = with_images(call.module, args, kwargs, images)
        is_model = call.module is model
        if is_model and len(args) == 1 and not kwargs:
            return probe_model(model, size, channels)
        if is_model:
            plain = {name: arg for name, arg in kwargs.items() if not isinstance(arg, Tensor)}
            return probe_model(model, size, channels, forward, cache_key=f"{len(args)} {plain}")
        result = probe_model(model, size, channels)
        if not result.error:
            return result
        return probe_model(model, size, channels, forward, cache_key=call.site)


def _split_windows(weights: Tensor, windows: Tensor) -> Tensor:
    """Return weights of all windows, `[b * w, h, p, p]`, as `[b, h, w, p, p]`."""
    return weights.unflatten(0, (-1, len(windows))).transpose(1, 2)


def _num_queries(layout: ObservedTokens) -> int:
    return layout.layer.num_queries or _num_tokens(layout)


def _num_tokens(layout: ObservedTokens) -> int:
    rows, columns = layout.layer.grid
    return len(layout.layer.prefix_tokens) + rows * columns
