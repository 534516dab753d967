"""Attention of models that do not show it, heard on its way through torch."""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from visattn.recording.attention_call import AttentionCall, fused_call
from visattn.recording.module_calls import ModuleCall, ModuleCalls, TrackedWeights

_SOFTMAX = frozenset({F.softmax, torch.softmax, Tensor.softmax})
_PRODUCTS = frozenset({torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm})
_PROJECTIONS = frozenset({F.linear, torch.conv2d, torch.conv1d})
Weave = Callable[[ModuleCall, AttentionCall], Tensor | None]
GROUPED = "its tokens meet in groups that are laid out along axes of their own"


@runtime_checkable
class AttentionListener(Protocol):
    """Who wants to know of attention."""

    def saw(self, place: ModuleCall, attention: AttentionCall) -> None:
        """Take note of attention that has run."""
        ...

    def refused(self, place: ModuleCall, reason: str) -> None:
        """Take note that what runs here cannot be a map."""
        ...


class Interception(TorchFunctionMode):
    """Hear attention wherever it is computed, without touching what is computed.

    Fused attention is taken at `scaled_dot_product_attention`. Of a softmax over the last axis what
    becomes of it is followed, up to the product with the values: what stands there is the attention
    that was used, whatever was done to it in between.

    Args:
        calls: Where the model is.
        listener: Who is told.
        weave: Returns the weights that the model is to go on with, or None for what it would do
            itself; then the listener is not told.
        apart: Whether tokens that attend to each other are to attend to themselves alone, so that
            what one of them carries stays where it is.
    """

    def __init__(
        self,
        calls: ModuleCalls,
        listener: AttentionListener,
        weave: Weave | None = None,
        *,
        apart: bool = False,
    ) -> None:
        super().__init__()
        self.calls, self.listener, self.weave, self.apart = calls, listener, weave, apart

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run what torch is asked to run, and listen."""
        kwargs = kwargs or {}
        place = None if self.calls.silent else self.calls.current
        if place is None or not place.foreign:
            return func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._fused(place, args, kwargs)
        if func in _SOFTMAX:
            return self._softmax(place, func, args, kwargs)
        if place.followed:
            return self._followed(place, func, args, kwargs)
        if self.calls.dry and func in _PROJECTIONS:
            _read(self.calls, args)
        return func(*args, **kwargs)

    def _fused(self, place: ModuleCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        attention = fused_call(args, kwargs)
        if attention is None:
            self.listener.refused(place, GROUPED)
            return F.scaled_dot_product_attention(*args, **kwargs)
        if self.apart and attention.shape[2] == attention.shape[3]:
            self.listener.saw(place, attention)
            values = cast("Tensor", attention.values)
            return values if args[0].ndim == 4 else values.squeeze(1)
        if self.weave is not None and (weights := self.weave(place, attention)) is not None:
            dropped = F.dropout(weights, attention.dropout) if attention.dropout else weights
            seen = dropped @ cast("Tensor", attention.values)
            return seen if args[0].ndim == 4 else seen.squeeze(1)
        output = F.scaled_dot_product_attention(*args, **kwargs)
        if self.weave is None:
            attention.output = output if output.ndim == 4 else output.unsqueeze(1)
            self.listener.saw(place, attention)
        return output

    def _softmax(
        self, place: ModuleCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor:
        weights = func(*args, **kwargs)
        axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if weights.ndim < 3 or axis is None:
            return weights
        if axis % weights.ndim != weights.ndim - 1:
            self.listener.refused(
                place, f"its softmax runs over axis {axis} of {weights.ndim}, not over keys"
            )
        else:
            place.followed[id(weights)] = TrackedWeights(weights, weights)
        return weights

    def _followed(
        self, place: ModuleCall, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        traces = [place.followed.get(id(one)) for one in _tensors(args)]
        trace = next((one for one in traces if one is not None), None)
        if trace is not None and func in _PRODUCTS:
            place.followed.clear()
            args = self._product(place, args, trace)
            return func(*args, **kwargs)
        result = func(*args, **kwargs)
        if trace is not None and isinstance(result, Tensor) and result.is_floating_point():
            mixed = trace.mixed or func in _PROJECTIONS
            place.followed[id(result)] = TrackedWeights(result, trace.softmax, mixed=mixed)
        return result

    def _product(
        self, place: ModuleCall, args: tuple[Any, ...], trace: TrackedWeights
    ) -> tuple[Any, ...]:
        """Hear a product with weights, which stand on its left or, turned, on its right."""
        right = trace.now is not args[0]
        used = args[1].mT if right else args[0]
        attention = _computed(used, args[0].mT if right else args[1], trace)
        if isinstance(attention, str):
            self.listener.refused(place, attention)
            return args
        if self.weave is None:
            self.listener.saw(place, attention)
        if self.apart and used.shape[-1] == used.shape[-2]:
            alone = torch.eye(used.shape[-1]).to(used).expand_as(used)
            return (args[0], alone) if right else (alone, args[1])
        if self.weave is None:
            return args
        again = self.weave(place, attention)
        if again is None or attention.mixed:
            return args
        again = again.view(used.shape)
        return (args[0], again.mT) if right else (again, args[1])


def _computed(used: Tensor, values: Tensor, trace: TrackedWeights) -> AttentionCall | str:
    """Return attention whose weights the model computed, or why it cannot be shown."""
    if values.ndim == 3:
        values = values.unsqueeze(1)
    weights = used.unsqueeze(1) if used.ndim == 3 else used
    if weights.ndim != 4:
        return GROUPED
    mixed = not sums_to_one(weights)
    if mixed:
        if not trace.mixed or trace.softmax.shape != weights.shape:
            return "the weights that it uses do not sum to 1"
        weights = trace.softmax
    groups, heads, queries, keys = weights.shape
    return AttentionCall(
        (groups, heads, queries, keys), values=values, computed=weights, mixed=mixed
    )


def sums_to_one(weights: Float[Tensor, "*axes m"]) -> bool:
    """Whether each row of weights does, or is empty, or not a number.

    Example:
        >>> sums_to_one(torch.tensor([[0.25, 0.75], [0.0, 0.0]])), sums_to_one(torch.ones(2, 2))
        (True, False)
    """
    wide = weights.detach().to(torch.promote_types(weights.dtype, torch.float32))
    sums = wide.sum(-1)
    near = 1e-5 if weights.dtype in (torch.float32, torch.float64) else 2e-2
    off = torch.minimum((sums - 1).abs(), wide.abs().amax(-1))
    return bool((off.nan_to_num(0.0) <= near).all())


def _tensors(args: tuple[Any, ...]) -> Iterator[Tensor]:
    for one in args:
        if isinstance(one, Tensor):
            yield one
        elif isinstance(one, (list, tuple)):
            yield from (part for part in one if isinstance(part, Tensor))


def _read(calls: ModuleCalls, args: tuple[Any, ...]) -> None:
    """Remember what a projection was given, for the module that runs and the one around it."""
    for place in calls.stack[-2:]:
        place.inputs.append(args[0])
