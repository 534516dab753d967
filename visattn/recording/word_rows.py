"""Attention rows of the words of a vision-language model, and the origin of its keys."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from visattn.recording.attention_call import AttentionCall
from visattn.recording.module_calls import ModuleCall, ModuleCallStack
from visattn.recording.torch_function import AttentionInterceptor, sums_to_one

_SOFTMAX = frozenset({F.softmax, torch.softmax, Tensor.softmax})
_CROSS_ATTENTION = ("encoder_hidden_states", "key_value_states", "cross_attention_states")
_SELF_ATTENTION = ("inputs_embeds", "hidden_states")


def call_site(call: ModuleCall) -> str:
    """Return the name of a module call; `layer#2` is the second call of `layer`."""
    return call.site if call.index == 0 else f"{call.site}#{call.index + 1}"


@dataclass(frozen=True, eq=False)
class KeySource:
    """What the keys of an attention layer are made from.

    Args:
        num_queries: Number of queries.
        num_keys: Number of keys.
        origin: Hidden states from which the keys are projected, as the module received them; None
            if they were not found.
    """

    num_queries: int
    num_keys: int
    origin: Tensor | None

    @property
    def states(self) -> Float[Tensor, "m d"] | None:
        """The hidden states, one row per key."""
        return None if self.origin is None else self.origin.flatten(0, -2)


class KeySources(TorchFunctionMode):
    """Collects the sources of all keys, and optionally replaces all attention by zeros.

    Without attention a token depends on its own pixels only, so that gradients tell which pixels
    these are.

    Args:
        model: The model.
        zero_attention: Whether attention returns zeros.
    """

    def __init__(self, model: nn.Module, *, zero_attention: bool = True) -> None:
        super().__init__()
        self.model, self.zero_attention = model, zero_attention
        self.calls = ModuleCallStack()
        self.sources: dict[str, KeySource] = {}

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect inside the block."""
        with self.calls.hooked(self.model, _store_arguments, _do_nothing), self:
            yield

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a torch function; without its attention, if it is one."""
        kwargs = kwargs or {}
        call = self.calls.current
        if call is None:
            return func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            query, key, value = _query_key_value(args, kwargs)
            self._add(call, query.shape[-2], key.shape[-2])
            if self.zero_attention:
                return query.new_zeros(*query.shape[:-1], value.shape[-1])
        elif func is F.multi_head_attention_forward and self.zero_attention:
            query = args[0] if args else kwargs["query"]
            return torch.zeros_like(query), None
        elif func in _SOFTMAX:
            weights = func(*args, **kwargs)
            if not is_attention_softmax(call, weights, args, kwargs):
                return weights
            self._add(call, weights.shape[-2], weights.shape[-1])
            return torch.zeros_like(weights) if self.zero_attention else weights
        return func(*args, **kwargs)

    def _add(self, call: ModuleCall, num_queries: int, num_keys: int) -> None:
        states = _key_states(self.calls.stack, num_queries, num_keys)
        self.sources.setdefault(call_site(call), KeySource(num_queries, num_keys, states))


def is_attention_softmax(
    call: ModuleCall, weights: Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
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


def _store_arguments(call: ModuleCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    call.state["arguments"] = {**{str(number): arg for number, arg in enumerate(args)}, **kwargs}


def _do_nothing(*_: Any) -> None:
    return None


def _key_states(stack: list[ModuleCall], num_queries: int, num_keys: int) -> Tensor | None:
    """Return the hidden states that the keys of the innermost module are projected from.

    Cross-attention states are those of the module itself. For self-attention they are the input of
    the outermost module that has as many tokens, before any layer mixes them.
    """
    arguments = stack[-1].state["arguments"]
    for name in _CROSS_ATTENTION:
        if (states := _tokens(arguments.get(name), num_keys)) is not None:
            return states
    if num_queries != num_keys:
        for call in reversed(stack):
            for argument in call.state["arguments"].values():
                if (states := _tokens(argument, num_keys)) is not None:
                    return states
        # resamplers: the keys are image tokens, followed by the queries themselves
        for argument in arguments.values():
            if (states := _tokens(argument, num_keys - num_queries)) is not None:
                return states
        return None
    for call in stack:
        arguments = call.state["arguments"]
        for name in (*_SELF_ATTENTION, *arguments):
            if name in _CROSS_ATTENTION:
                continue
            if (states := _tokens(arguments.get(name), num_keys)) is not None:
                return states
    return None


def _tokens(argument: Any, count: int) -> Tensor | None:
    """Return an argument if it holds `count` tokens of one image."""
    if not isinstance(argument, Tensor) or argument.ndim < 3 or not argument.is_floating_point():
        return None
    return argument if argument.shape[:-1].numel() == count else None


class WordRows:
    """Records the last rows of attention layers, and verifies them.

    Args:
        model: The model.
        sites: Attention layers to record, with the number of last query rows to record of each;
            None for all rows.
        keep: Receives the weights of a layer, `[b h r m]`, and returns what is kept of them.
        differentiable: Whether the model continues with the recorded weights, so that they are
            part of the graph; they are kept as `[h n m]`, without `keep`.
    """

    def __init__(
        self,
        model: nn.Module,
        sites: Mapping[str, int | None],
        *,
        keep: Callable[[str, Tensor], Tensor],
        differentiable: bool = False,
    ) -> None:
        self.model, self.sites, self.keep = model, sites, keep
        self.differentiable = differentiable
        self.calls = ModuleCallStack()
        self.rows: dict[str, Tensor] = {}
        self.unsupported: dict[str, str] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record inside the block."""
        replace = self.replace_weights if self.differentiable else None
        with (
            self.calls.hooked(self.model, _do_nothing, _do_nothing),
            AttentionInterceptor(self.calls, self, replace),
        ):
            yield

    def on_unsupported(self, call: ModuleCall, reason: str) -> None:
        """Store why a layer cannot be recorded."""
        if call_site(call) in self.sites:
            self.unsupported.setdefault(call_site(call), reason)

    def on_attention(self, call: ModuleCall, attention: AttentionCall) -> None:
        """Record the requested rows."""
        site = call_site(call)
        if site not in self.sites:
            return
        num_rows = self.sites[site]
        first = 0 if num_rows is None else attention.shape[2] - num_rows
        queries = slice(None) if first == 0 else slice(first, attention.shape[2])
        with torch.no_grad():
            weights = attention.compute_weights(slice(None), queries)
            if not sums_to_one(weights):
                self.on_unsupported(call, "its weights do not sum to 1")
                return
            deviation = attention.deviation(weights, slice(None), queries)
            if deviation > row_tolerance(weights):
                raise ValueError(
                    f"the recorded weights of {site} times its values must equal its output, but "
                    f"they differ by {deviation:.1e}; please report this model"
                )
            self.rows[site] = self.keep(site, _heads_as_axis(weights))

    def replace_weights(self, call: ModuleCall, attention: AttentionCall) -> Tensor | None:
        """Record the weights, and return those that the model continues with."""
        site = call_site(call)
        if site not in self.sites:
            return None
        weights = attention.compute_weights(slice(None), slice(None))
        if self.differentiable and not weights.requires_grad:  # no pixel reaches this layer
            weights = weights.detach().requires_grad_()
        if not self.differentiable:
            self.rows[site] = self.keep(site, _heads_as_axis(weights))
            return weights
        self.rows[site] = _heads_as_axis(weights)[0]
        # the model continues from this node of the graph
        return self.rows[site].reshape(weights.shape)


def _heads_as_axis(weights: Tensor) -> Tensor:
    """Return weights of one caption as `[1 h r m]`; bmm has the heads on the batch axis."""
    return weights.transpose(0, 1) if weights.shape[1] == 1 else weights


def row_tolerance(weights: Tensor) -> float:
    """Return by how much weights times values may differ from the output of the layer."""
    if weights.dtype not in (torch.float32, torch.float64):
        return 2e-2
    return 2e-6 if weights.device.type == "cpu" else 2e-3  # accelerators may use TF32
