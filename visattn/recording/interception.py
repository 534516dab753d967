"""Interception of attention in unmodified models, with a `TorchFunctionMode`."""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from visattn.recording.attention_call import (
    AttentionCall,
    disable_torch_function,
    functional_multihead_call,
    multihead_call,
    multihead_output,
    restore_torch_function,
    sdpa_call,
)
from visattn.recording.module_calls import (
    ModuleCall,
    ModuleCallStack,
    OnEnter,
    OnExit,
    TrackedWeights,
)
from visattn.recording.outputs import argument_tensors

_SOFTMAX = frozenset({F.softmax, torch.softmax, Tensor.softmax})
_MATMUL = frozenset({torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm})
_PROJECTIONS = frozenset({F.linear, torch.conv2d, torch.conv1d})
ReplaceWeights = Callable[[ModuleCall, AttentionCall], Tensor | None]
UNSUPPORTED_AXES = "its weights do not have the axes [batch, heads, queries, keys]"


@runtime_checkable
class AttentionListener(Protocol):
    """Callbacks of an `AttentionInterceptor`."""

    def on_attention(self, call: ModuleCall, attention: AttentionCall) -> None:
        """Handle attention that was computed in a module call."""
        ...

    def on_unsupported(self, call: ModuleCall, reason: str) -> None:
        """Handle attention in a module call that cannot be recorded."""
        ...


class AttentionInterceptor(TorchFunctionMode):
    """Intercepts attention wherever a model computes it, without changing the computation.

    It intercepts `scaled_dot_product_attention`, `multi_head_attention_forward`, and each softmax
    over the last axis: tensors that are computed from its output are tracked up to the matrix
    product with the values. The left operand of that product is the attention that the model used,
    whatever it did to it in between.

    Args:
        calls: The running modules.
        listener: Receives the attention calls.
        replace_weights: Returns weights that the model continues with, or None to let it compute
            them itself. If it is set, `listener.on_attention` is not called.
        identity_attention: Replace self-attention by the identity, so that every token keeps its
            content.
        selected: Whether multi-head attention in a module call is wanted, whose projections are
            computed once more; by default all is.
    """

    def __init__(
        self,
        calls: ModuleCallStack,
        listener: AttentionListener,
        replace_weights: ReplaceWeights | None = None,
        *,
        identity_attention: bool = False,
        selected: Callable[[ModuleCall], bool] | None = None,
    ) -> None:
        super().__init__()
        self.calls = calls
        self.listener = listener
        self.replace_weights = replace_weights
        self.identity_attention = identity_attention
        self.selected = selected
        self._depth = 0

    @contextmanager
    def intercepting(
        self,
        model: nn.Module,
        on_enter: OnEnter | None = None,
        on_exit: OnExit | None = None,
        sites: Collection[str] | None = None,
    ) -> Iterator[None]:
        """Intercept the attention of a model inside the block, also in `nn.MultiheadAttention`.

        The arguments are those of `ModuleCallStack.hooked`. With `sites` nothing is intercepted
        outside of these modules: a model then calls most of its functions as fast as ever.
        """

        def enter(call: ModuleCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            changed = on_enter(call, args, kwargs) if on_enter else None
            if sites is not None and call.site in sites:
                self._begin()
            if isinstance(call.module, nn.MultiheadAttention):
                disable_torch_function(call)
            return changed

        def leave(
            call: ModuleCall, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any
        ) -> Any:
            changed = None
            if isinstance(call.module, nn.MultiheadAttention):
                try:  # torch functions are not intercepted yet, also those that are called here
                    if output is not None:  # after an exception
                        changed = self._multihead_layer(call, call.module, args, kwargs, output)
                finally:
                    restore_torch_function(call)
            if on_exit:
                on_exit(call, args, kwargs, output)
            if sites is not None and call.site in sites:
                self._end()
            return changed

        with self.calls.hooked(model, enter, leave, sites), ExitStack() as stack:
            if sites is None:
                stack.enter_context(self)
            yield

    def _begin(self) -> None:
        """Intercept functions from here on; once, where one such module is part of another."""
        if self._depth == 0:
            self.__enter__()
        self._depth += 1

    def _end(self) -> None:
        self._depth -= 1
        if self._depth == 0:
            self.__exit__(None, None, None)

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a torch function, and intercept it if it is part of attention."""
        kwargs = kwargs or {}
        # Three ways in which libraries compute attention, and where each can be seen whole:
        #
        #     F.scaled_dot_product_attention(q, k, v)        its arguments
        #     nn.MultiheadAttention, and its functional      its arguments; it is fused inside
        #     softmax(q @ k.T) -> dropout, reshape -> @ v    the softmax, followed to the product
        #
        # Blocks of visattn are recorded by their Tap: twice would be two maps.
        call = None if self.calls.inactive else self.calls.current
        if call is None or not call.third_party:
            return func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._sdpa(call, args, kwargs)
        if func is F.multi_head_attention_forward:
            return self._multihead(call, args, kwargs)
        if func in _SOFTMAX:
            return self._softmax(call, func, args, kwargs)
        if call.tracked:
            return self._track(call, func, args, kwargs)
        if self.calls.probing and func in _PROJECTIONS:
            _store_projection_input(self.calls, args)
        return func(*args, **kwargs)

    def _sdpa(self, call: ModuleCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        attention = sdpa_call(args, kwargs)
        if attention is None:
            self.listener.on_unsupported(call, UNSUPPORTED_AXES)
            return F.scaled_dot_product_attention(*args, **kwargs)
        if self.identity_attention and attention.shape[2] == attention.shape[3]:
            self.listener.on_attention(call, attention)
            values = cast("Tensor", attention.values)
            return values if args[0].ndim == 4 else values.squeeze(1)
        replace = self.replace_weights
        if replace is not None and (weights := replace(call, attention)) is not None:
            dropout_p = attention.dropout_p
            dropped = F.dropout(weights, dropout_p) if dropout_p else weights
            output = dropped @ cast("Tensor", attention.values)
            return output if args[0].ndim == 4 else output.squeeze(1)
        output = F.scaled_dot_product_attention(*args, **kwargs)
        if replace is None:
            attention.output = output if output.ndim == 4 else output.unsqueeze(1)
            attention.traced = output, -2
            self.listener.on_attention(call, attention)
        return output

    def _multihead(self, call: ModuleCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Intercept the function behind `nn.MultiheadAttention`, called by another module."""
        output = F.multi_head_attention_forward(*args, **kwargs)
        if self.selected and not self.selected(call):
            return output
        with self._grad_mode():
            attention = functional_multihead_call(args, kwargs, output)
        return self._multihead_output(call, attention, output, batch_first=False)

    def _multihead_layer(
        self,
        call: ModuleCall,
        layer: nn.MultiheadAttention,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        output: Any,
    ) -> Any:
        if self.selected and not self.selected(call):
            return output
        with self._grad_mode():
            attention = multihead_call(layer, args, kwargs, output)
        return self._multihead_output(call, attention, output, batch_first=layer.batch_first)

    def _grad_mode(self) -> torch.set_grad_enabled:
        return torch.set_grad_enabled(self.replace_weights is not None and torch.is_grad_enabled())

    def _multihead_output(
        self, call: ModuleCall, attention: AttentionCall | str, output: Any, *, batch_first: bool
    ) -> Any:
        """Report finished multi-head attention; return its output, or that of other weights."""
        if isinstance(attention, str):
            self.listener.on_unsupported(call, attention)
            return output
        if self.calls.probing and attention.tokens is not None:
            call.projection_inputs.append(attention.tokens)
        weights = None
        if self.replace_weights is None:
            self.listener.on_attention(call, attention)
        else:
            weights = self.replace_weights(call, attention)
        if self.identity_attention and attention.shape[2] == attention.shape[3]:
            weights = torch.eye(attention.shape[3]).to(output[0])
        if weights is None:
            return output
        return multihead_output(attention, weights, output, batch_first=batch_first)

    def _softmax(
        self, call: ModuleCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor:
        weights = func(*args, **kwargs)
        axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if weights.ndim < 3 or axis is None:
            return weights
        if axis % weights.ndim != weights.ndim - 1:
            self.listener.on_unsupported(
                call, f"its softmax runs over axis {axis} of {weights.ndim}, not over the keys"
            )
        else:
            call.tracked[id(weights)] = TrackedWeights(weights, weights)
        return weights

    def _track(
        self, call: ModuleCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        candidates = (call.tracked.get(id(tensor)) for tensor in argument_tensors(args))
        tracked = next((weights for weights in candidates if weights is not None), None)
        if tracked is not None and func in _MATMUL:
            call.tracked.clear()  # the product ends this attention; a module may compute another
            args = self._weighted_sum(call, args, tracked)
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if tracked is not None and isinstance(result, Tensor) and result.is_floating_point():
            mixed = tracked.heads_mixed or func in _PROJECTIONS
            call.tracked[id(result)] = TrackedWeights(result, tracked.softmax, heads_mixed=mixed)
        return result

    def _weighted_sum(
        self, call: ModuleCall, args: tuple[Any, ...], tracked: TrackedWeights
    ) -> tuple[Any, ...]:
        """Intercept the product of weights and values; weights on the right are transposed."""
        transposed = tracked.tensor is not args[0]
        used = args[1].mT if transposed else args[0]
        attention = _explicit_call(used, args[0].mT if transposed else args[1], tracked)
        if isinstance(attention, str):
            self.listener.on_unsupported(call, attention)
            return args
        if self.replace_weights is None:
            attention.traced = (args[1], -1) if transposed else (args[0], -2)
            self.listener.on_attention(call, attention)
        if self.identity_attention and used.shape[-1] == used.shape[-2]:
            identity = torch.eye(used.shape[-1]).to(used).expand_as(used)
            return (args[0], identity) if transposed else (identity, args[1])
        if self.replace_weights is None:
            return args
        weights = self.replace_weights(call, attention)
        if weights is None or attention.heads_mixed:
            return args
        weights = weights.view(used.shape)
        return (args[0], weights.mT) if transposed else (weights, args[1])


def _explicit_call(used: Tensor, values: Tensor, tracked: TrackedWeights) -> AttentionCall | str:
    """Return the attention call of weights that the model computed, or why it is unsupported."""
    if values.ndim == 3:
        values = values.unsqueeze(1)
    weights = used.unsqueeze(1) if used.ndim == 3 else used
    if weights.ndim != 4:
        return UNSUPPORTED_AXES
    mixed = not sums_to_one(weights)
    if mixed:
        if not tracked.heads_mixed or tracked.softmax.shape != weights.shape:
            return "the weights that it uses do not sum to 1"
        weights = tracked.softmax
    groups, heads, queries, keys = weights.shape
    return AttentionCall(
        (groups, heads, queries, keys), values=values, weights=weights, heads_mixed=mixed
    )


def sums_to_one(weights: Float[Tensor, "*axes m"]) -> bool:
    """Whether every row of weights sums to 1, is all zeros, or is NaN.

    Example:
        >>> sums_to_one(torch.tensor([[0.25, 0.75], [0.0, 0.0]])), sums_to_one(torch.ones(2, 2))
        (True, False)
    """
    # Unseen by modes that look for what the model itself detaches.
    with torch._C.DisableTorchFunction():  # noqa: SLF001
        wide = weights.detach().to(torch.promote_types(weights.dtype, torch.float32))
    sums = wide.sum(-1)
    tolerance = 1e-5 if weights.dtype in (torch.float32, torch.float64) else 2e-2
    error = (sums - 1).abs()
    if bool((error <= tolerance).all()):  # the usual case, without another pass
        return True
    error = torch.minimum(error, wide.abs().amax(-1))
    return bool((error.nan_to_num(0.0) <= tolerance).all())


def _store_projection_input(calls: ModuleCallStack, args: tuple[Any, ...]) -> None:
    """Store the input of a projection with the running module and the one around it."""
    for call in calls.stack[-2:]:
        call.projection_inputs.append(args[0])
