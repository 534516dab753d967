"""Keys of all attention layers of a model, and the hidden states that they are made from."""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from visattn.recording.interception import Running, running_modules

_SOFTMAX = frozenset({F.softmax, torch.softmax, Tensor.softmax})
_CROSS_ATTENTION = ("encoder_hidden_states", "key_value_states", "cross_attention_states")
_SELF_ATTENTION = ("inputs_embeds", "hidden_states")
_MASKED = -1e4  # scores below are masked
_MIXTURES = 8


@dataclass(frozen=True, eq=False)
class KeySource:
    """Keys of an attention layer, and what they are made from.

    Args:
        num_queries: Number of queries.
        num_keys: Number of keys.
        origin: Hidden states from which the keys are projected, as the module received them; None
            if they were not found.
        keys: One row per key: random mixtures of it, or of the scores of the last query, which
            depend on no other key. Those of several images or windows follow each other.
        masked: Keys whose rows show nothing because the last query does not see them.
    """

    num_queries: int
    num_keys: int
    origin: Tensor | None
    keys: Float[Tensor, "m d"]
    masked: Bool[Tensor, " m"] | None = None

    @property
    def num_groups(self) -> int:
        """Number of images or windows that attend separately."""
        return len(self.keys) // self.num_keys

    @property
    def states(self) -> Float[Tensor, "m d"] | None:
        """The hidden states, one row per token."""
        return None if self.origin is None else self.origin.flatten(0, -2)


class KeySources(TorchFunctionMode):
    """Collects the keys of all attention layers, and optionally replaces all attention by zeros.

    Without attention a token depends on its own pixels only, so that gradients tell which pixels
    these are.

    Args:
        skip: Weights of linear layers that return zeros instead, by `id`.
        full_precision: Whether 16-bit models compute in float32.
        last: Given a layer and its source, whether the layers after it need no graph.
        trace: Whether to find the linear layers that keys are projected with.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        zero_attention: bool = True,
        skip: Collection[int] = (),
        full_precision: bool = False,
        last: Callable[[str, KeySource], bool] | None = None,
        trace: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.zero_attention = zero_attention
        self.skip = skip
        self.last = last
        self.full_precision = full_precision and any(p.dtype in HALF for p in model.parameters())
        self.stack: list[Running] = []
        self.sources: dict[str, KeySource] = {}
        self.trace = trace
        self._linear: dict[int, Tensor] = {}
        self._projections: set[int] = set()
        self._ended = False

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect inside the block."""
        with running_modules(self.model) as self.stack, self:
            yield

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a torch function; without its attention, if it is one."""
        kwargs, call = kwargs or {}, self.stack[-1] if self.stack else None
        if call is not None and func is F.linear:
            weight = args[1] if len(args) > 1 else kwargs["weight"]
            if id(weight) in self.skip:
                states = args[0] if args else kwargs["input"]
                return states.new_zeros(*states.shape[:-1], weight.shape[0])
            if self.trace:
                with torch.no_grad():
                    func, args, kwargs = in_float32(func, args, kwargs)
                    output = func(*args, **kwargs)
                self._linear[id(weight)] = output.requires_grad_()
                return output
        with torch.no_grad() if self._ended else nullcontext():
            if self.full_precision:
                func, args, kwargs = in_float32(func, args, kwargs)
            if call is None:
                return func(*args, **kwargs)
            return self._attention(call, func, args, kwargs)

    def _attention(
        self, call: Running, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if func is F.scaled_dot_product_attention:
            query, key, value = _query_key_value(args, kwargs)
            self._add(call, query.shape[-2], key.shape[-2], key)
            if self.zero_attention:
                return query.new_zeros(*query.shape[:-1], value.shape[-1])
        elif func is F.multi_head_attention_forward and self.zero_attention:
            query = args[0] if args else kwargs["query"]
            return torch.zeros_like(query), None
        elif func in _SOFTMAX:
            weights = func(*args, **kwargs)
            if not is_attention_softmax(call, weights, args, kwargs):
                return weights
            scores = args[0] if args else kwargs["input"]
            self._add(call, weights.shape[-2], weights.shape[-1], scores, scores=True)
            return torch.zeros_like(weights) if self.zero_attention else weights
        return func(*args, **kwargs)

    def _add(
        self, call: Running, num_queries: int, num_keys: int, keys: Tensor, *,
        scores: bool = False,
    ) -> None:  # fmt: skip
        site = call.site if call.index == 0 else f"{call.site}#{call.index + 1}"
        if site in self.sources:  # the first call has the prompt
            return
        rows, masked = _key_rows(keys, scores=scores)
        states = _key_states(self.stack, num_queries, num_keys)
        source = KeySource(num_queries, num_keys, states, rows, masked)
        self.sources[site] = source
        if self.last is not None and self.last(site, source):
            self._ended = True
        if self.trace and rows.requires_grad:
            weights = list(self._linear)
            gradients = torch.autograd.grad(
                rows.sum(), list(self._linear.values()), allow_unused=True
            )
            self._projections.update(
                weight
                for weight, gradient in zip(weights, gradients, strict=True)
                if gradient is not None
            )

    def without_keys(self) -> frozenset[int]:
        """Return the traced linear layers that ran, but those that keys are projected with."""
        return frozenset(set(self._linear) - self._projections)


HALF = (torch.float16, torch.bfloat16)
_NARROWING = frozenset({Tensor.half, Tensor.bfloat16})
_LOOKUPS = frozenset({F.embedding, torch.embedding})
_ATTRIBUTES = frozenset(
    {"__get__", "__set__", "__setitem__", "__getitem__", "size", "dim", "numel"}
)

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def in_float32(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Return a call of a torch function on float32 copies of its 16-bit tensors.

    It is for a torch-function mode that hears all calls of a model: weights are copied one at a
    time, while a function reads them, and what the model computes from them stays in float32.

    Example:
        >>> half = torch.ones(2, dtype=torch.float16)
        >>> add, args, kwargs = in_float32(torch.add, (half, 2**-20), {})
        >>> add(*args, **kwargs).dtype
        torch.float32
    """
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    first = args[0] if args else None
    if name in _ATTRIBUTES or (in_place and isinstance(first, Tensor) and first.dtype in HALF):
        return func, args, kwargs
    if func in _NARROWING:
        return Tensor.float, args, {}
    if func in _LOOKUPS:  # copies the chosen rows alone
        return (lambda *a, **k: _wide(func(*a, **k))), args, kwargs
    return func, _wide(args), _wide(kwargs)


def _wide(value: Any) -> Any:
    """Return a nested value with 16-bit tensors in float32, and float32 for 16-bit types."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in HALF else value
    if isinstance(value, torch.dtype):
        return torch.float32 if value in HALF else value
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(map(_wide, value))
    if isinstance(value, Mapping):
        return {key: _wide(item) for key, item in value.items()}
    return value


def _key_rows(keys: Tensor, *, scores: bool) -> tuple[Tensor, Tensor | None]:
    """Return a few random mixtures of each key, and which keys are masked."""
    masked = None
    # Eight random mixtures tell as surely as all channels whether a key changed or depends on a
    # pixel, and cost a fraction of the memory.
    if scores:  # `h q m`, or `g h q m`
        rows = keys[..., -1, :].unflatten(0, (-1, len(keys) if keys.ndim == 3 else 1))
        rows = rows.flatten(1, -2).transpose(1, 2).flatten(0, 1)
        hidden = rows < _MASKED
        masked, rows = hidden.all(1), rows.masked_fill(hidden, 0.0)
    else:  # `h m d`, or `g h m d` with several images or windows
        rows = keys.transpose(-3, -2).flatten(-2).flatten(0, -2)
    generator = torch.Generator().manual_seed(0)
    mixing = torch.randn(rows.shape[1], _MIXTURES, generator=generator).to(rows)
    return rows @ mixing, masked


def is_attention_softmax(
    call: Running, weights: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether a softmax is over keys: the last of four axes, or of three in an attention module.

    A softmax over three axes elsewhere is one over a vocabulary or over experts.
    """
    axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
    if axis is None or weights.ndim not in (3, 4) or axis % weights.ndim != weights.ndim - 1:
        return False
    return weights.ndim == 4 or "att" in type(call.module).__name__.lower()


def _query_key_value(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, ...]:
    arguments = {**dict(zip(("query", "key", "value"), args, strict=False)), **kwargs}
    return arguments["query"], arguments["key"], arguments["value"]


def _key_states(stack: list[Running], num_queries: int, num_keys: int) -> Tensor | None:
    """Return the hidden states that the keys of the innermost module are projected from.

    Cross-attention states are those of the module itself. For self-attention they are the input of
    the outermost module that has as many tokens, before any layer mixes them.
    """
    arguments = _arguments(stack[-1])
    for name in _CROSS_ATTENTION:  # their names say what they are; self-attention has no such
        if (states := _tokens(arguments.get(name), num_keys)) is not None:
            return states
    if num_queries != num_keys:
        # Cross-attention: the nearest module that was called with as many tokens has them.
        for call in reversed(stack):
            for argument in _arguments(call).values():
                if (states := _tokens(argument, num_keys)) is not None:
                    return states
        # Keys of image tokens and of the queries themselves, in either order.
        for argument in arguments.values():
            if (states := _tokens(argument, num_keys - num_queries)) is not None:
                return states
        return None
    for call in stack:
        arguments = _arguments(call)
        for name in (*_SELF_ATTENTION, *arguments):
            if name in _CROSS_ATTENTION:
                continue
            if (states := _tokens(arguments.get(name), num_keys)) is not None:
                return states
    return None


def _arguments(call: Running) -> dict[str, Any]:
    return {**{str(number): arg for number, arg in enumerate(call.args)}, **call.kwargs}


def _tokens(argument: Any, count: int) -> Tensor | None:
    """Return an argument if it holds `count` tokens of one image."""
    if not isinstance(argument, Tensor) or argument.ndim < 3 or not argument.is_floating_point():
        return None
    return argument if argument.shape[:-1].numel() == count else None
