"""Attention of unmodified models, intercepted where it is computed.

    with attention_calls(model, on_call):
        model(images)

calls `on_call(call)` for each attention computation, with its weights on request. The model
continues with the weights that it returns; for None, outputs do not change by a single bit.

Libraries compute attention in three ways, and each can be intercepted at one point:

    F.scaled_dot_product_attention(q, k, v)         its arguments
    nn.MultiheadAttention, and its functional       its arguments; it is fused inside
    softmax(q @ k.mT) -> dropout, reshape -> @ v    the softmax, followed to the product
"""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from visattn.blocks.tap import Tap
from visattn.recording.attention_call import (
    AttentionCall,
    FusedCall,
    ProductCall,
    multihead_function,
    multihead_layer,
)

_SOFTMAX = frozenset({F.softmax, torch.softmax, Tensor.softmax})
_STARTS = _SOFTMAX | {F.scaled_dot_product_attention, F.multi_head_attention_forward}
_MATMUL = frozenset({torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm})
_PROJECTIONS = frozenset({F.linear, torch.conv2d, torch.conv1d})
_PROBES = threading.local()


def this_run() -> tuple[int, int, int]:
    """Return the thread, the backward pass (-1 for none) and the depth of `probing` contexts.

    Hooks react only to runs of the kind in which they were registered: not to other threads, which
    share the model, to blocks that gradient checkpointing runs again in a backward pass, or to
    probe runs that start later.
    """
    backward = torch._C._current_graph_task_id()  # noqa: SLF001
    return threading.get_ident(), backward, getattr(_PROBES, "depth", 0)


@contextmanager
def probing() -> Iterator[None]:
    """Hide the runs inside the context from hooks that were registered outside of it.

    Example:
        >>> before = this_run()
        >>> with probing():
        ...     this_run() == before
        False
    """
    depth = getattr(_PROBES, "depth", 0)
    _PROBES.depth = depth + 1
    try:
        yield
    finally:
        _PROBES.depth = depth


def in_this_run(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward hook that does nothing in runs of other kinds (see `this_run`).

    Example:
        >>> hook = in_this_run(lambda module, args, output: output + 1)
        >>> handle = (model := nn.Identity()).register_forward_hook(hook)
        >>> thread = threading.Thread(target=lambda: print(model(1)))
        >>> thread.start(), thread.join(), model(1)
        1
        (None, None, 2)
    """
    listening = this_run()

    @wraps(hook)
    def in_run(*call: Any) -> Any:
        return hook(*call) if this_run() == listening else None

    return in_run


@dataclass(frozen=True, eq=False)
class _Tracked:
    """A tensor computed from a softmax; `projected` if by linear layers, which may mix heads."""

    tensor: Tensor
    softmax: Tensor
    projected: bool = False


@dataclass(eq=False)
class Running:
    """A module whose forward method is running.

    Args:
        index: Number of earlier calls of it in this run of the model.
        third_party: Whether its attention must be intercepted, since it has no `Tap`.
    """

    site: str
    module: nn.Module
    index: int
    third_party: bool
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tracked: dict[int, _Tracked] = field(default_factory=dict)
    guard: Any = None


OnCall = Callable[[AttentionCall], Tensor | None]
OnStart = Callable[[Running], Any]


@contextmanager
def attention_calls(
    model: nn.Module, on_call: OnCall, on_start: OnStart | None = None
) -> Iterator[None]:
    """Call `on_call` for each attention computation of a model inside the context.

    Args:
        model: The model. Blocks of visattn are skipped: their `Tap` records them.
        on_call: Returns weights for the model to continue with, or None. `unsupported` of its
            argument is the reason if the weights cannot be recorded.
        on_start: Called with the outermost module when a run begins.

    Example:
        >>> attention = nn.MultiheadAttention(4, 2, batch_first=True)
        >>> x = torch.ones(1, 3, 4)
        >>> with attention_calls(attention, lambda call: print(call.shape, call.weights().shape)):
        ...     _ = attention(x, x, x)
        (1, 2, 3, 3) torch.Size([1, 2, 3, 3])
    """
    mode = _AttentionMode(on_call, on_start)
    with ExitStack() as handles:
        for site, module in model.named_modules():
            if may_compute_attention(module):
                enter = in_this_run(partial(mode.enter, site, is_third_party(module)))
                before = module.register_forward_pre_hook(enter, with_kwargs=True)
                leave = in_this_run(mode.leave)
                after = module.register_forward_hook(leave, with_kwargs=True, always_call=True)
                handles.callback(before.remove)
                handles.callback(after.remove)
        with mode:
            try:
                yield
            finally:
                while mode.stack:  # left over after an interrupt
                    mode.leave(mode.stack[-1].module, (), {}, None)


class _AttentionMode(TorchFunctionMode):
    """Intercepts the torch functions that a model calls, and tracks which of its modules run."""

    def __init__(self, on_call: OnCall, on_start: OnStart | None) -> None:
        super().__init__()
        self.on_call, self.on_start = on_call, on_start
        self.stack: list[Running] = []
        self.counts = Counter[str]()
        self._run = this_run()

    def enter(
        self, site: str, third_party: bool, module: nn.Module, args: Any, kwargs: Any
    ) -> None:
        """Push a module that starts to run, and keep the fast path of multi-head attention.

        Other layers of `torch.nn` count as part of the module that calls them.
        """
        if not self.stack:
            self.counts.clear()
        running = Running(site, module, self.counts[site], third_party, args, kwargs)
        self.stack.append(running)
        self.counts[site] += 1
        if self.on_start and len(self.stack) == 1:
            self.on_start(running)
        if isinstance(module, nn.MultiheadAttention):
            # An active mode would disable the fast path and change the last bits of the output.
            running.guard = torch._C.DisableTorchFunction()  # noqa: SLF001
            running.guard.__enter__()

    def leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
        """Undo `enter`, and report multi-head attention."""
        if not self.stack or self.stack[-1].module is not module:  # another hook raised before it
            return None
        running = self.stack[-1]
        try:
            if isinstance(module, nn.MultiheadAttention) and output is not None:
                return self._answer(running, multihead_layer(module, args, kwargs, output))
            return None
        finally:
            if running.guard:
                running.guard.__exit__(None, None, None)
            self.stack.pop()

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a torch function, and report it if it is attention."""
        kwargs = kwargs or {}
        running = self.stack[-1] if self.stack else None
        # Blocks of visattn are recorded by their Tap; intercepting them would add a second map.
        if running is None or not running.third_party or not (running.tracked or func in _STARTS):
            return func(*args, **kwargs)
        if this_run() != self._run:
            return func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            return self._answer(running, FusedCall(args, kwargs))
        if func is F.multi_head_attention_forward:
            call = multihead_function(args, kwargs, func(*args, **kwargs))
            return self._answer(running, call)
        if func in _SOFTMAX:
            return self._softmax(running, func, args, kwargs)
        return self._follow(running, func, args, kwargs)

    def _answer(self, running: Running, call: AttentionCall) -> Any:
        """Report attention, and return what the model continues with."""
        call.site, call.index = running.site, running.index
        weights = self.on_call(call)
        return call.result if weights is None or call.unsupported else call.result_of(weights)

    def _softmax(
        self, running: Running, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Tensor:
        weights = func(*args, **kwargs)
        axis = kwargs.get("dim", args[1] if len(args) > 1 else None)
        if weights.ndim < 3 or axis is None:
            return weights
        if axis % weights.ndim == weights.ndim - 1:
            running.tracked[id(weights)] = _Tracked(weights, weights)
        else:
            call = AttentionCall()
            where = f"axis {axis} of {weights.ndim}, not over the keys"
            call.unsupported = f"its softmax runs over {where}"
            self._answer(running, call)
        return weights

    def _follow(
        self, running: Running, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Follow a softmax through the functions of a module, up to the product with the values."""
        tensors = (x for arg in args for x in (arg if isinstance(arg, (list, tuple)) else (arg,)))
        tracked = next((t for x in tensors if (t := running.tracked.get(id(x)))), None)
        if tracked is not None and func in _MATMUL:
            running.tracked.clear()  # the product ends this attention; a module may compute another
            product = partial(func, **kwargs)
            call = ProductCall(
                product, args, tracked.tensor, tracked.softmax, projected=tracked.projected
            )
            return self._answer(running, call)
        result = func(*args, **kwargs)
        if tracked is not None and isinstance(result, Tensor) and result.is_floating_point():
            projected = tracked.projected or func in _PROJECTIONS
            running.tracked[id(result)] = _Tracked(result, tracked.softmax, projected)
        return result


def may_compute_attention(module: nn.Module) -> bool:
    """Whether the forward method of this module itself may compute attention.

    Example:
        >>> layers = nn.Linear(1, 1), nn.MultiheadAttention(1, 1), Tap("gate")
        >>> [may_compute_attention(layer) for layer in layers]
        [False, True, False]
    """
    if isinstance(module, nn.MultiheadAttention):
        return True
    return not isinstance(module, Tap) and not type(module).__module__.startswith("torch.nn.")


def is_third_party(module: nn.Module) -> bool:
    """Whether a module may compute attention and has no `Tap` to record it with.

    Example:
        >>> is_third_party(nn.Sequential(Tap("gate"))), is_third_party(nn.MultiheadAttention(1, 1))
        (False, True)
    """
    from_visattn = type(module).__module__.split(".")[0] == "visattn"
    has_tap = any(isinstance(child, Tap) for child in module.children())
    return may_compute_attention(module) and not from_visattn and not has_tap


def check_supports_hooks(model: nn.Module) -> None:
    """Check that the modules of a model run in Python, and that its attention can be intercepted.

    Raises:
        ValueError: If they do not, if weights are not loaded, or if attention kernels cannot be
            intercepted.

    Example:
        >>> check_supports_hooks(nn.Linear(1, 1))
    """
    scripted = any(isinstance(module, torch.jit.ScriptModule) for module in model.modules())
    # models from torch.export override their eval method
    if scripted or "eval" in vars(model):
        by = "torch.jit" if scripted else "torch.export"
        raise ValueError(f"the model must run in Python, but {by} made it; pass the original model")
    if any(weight.is_meta for weight in model.parameters()):
        raise ValueError("the weights of the model are on the meta device and must be loaded first")
    for name, kernel in fused_kernels(model).items():
        raise ValueError(
            "the attention implementation must be 'sdpa' or 'eager' to be recorded, got "
            f"{kernel!r} in {name or 'the model'}; call set_attn_implementation('sdpa') on the "
            "model first"
        )


_RECORDABLE = ("sdpa", "eager")
"""Implementations of Hugging Face whose weights can be intercepted."""


def fused_kernels(model: nn.Module) -> dict[str, str]:
    """Return the attention implementation of each part of a model that hides its weights.

    Example:
        >>> fused_kernels(nn.Linear(1, 1))
        {}
    """
    kernels = {
        name: getattr(getattr(module, "config", None), "_attn_implementation", None)
        for name, module in model.named_modules()
        # getattr of a missing attribute is slow on modules
        if "config" in vars(module) or hasattr(type(module), "config")
    }
    return {
        name: kernel
        for name, kernel in kernels.items()
        if isinstance(kernel, str) and kernel not in _RECORDABLE
    }
