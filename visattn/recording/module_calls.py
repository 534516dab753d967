"""Tracks which module of a model is running, with forward hooks."""

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from visattn.blocks.tap import Tap

_STATE = threading.local()


@dataclass(frozen=True, eq=False)
class TrackedWeights:
    """A tensor computed from the output of a softmax."""

    tensor: Tensor
    softmax: Tensor
    heads_mixed: bool = False


@dataclass(eq=False)
class ModuleCall:
    """One forward call of one module.

    Args:
        index: Number of earlier calls of it in this forward pass of the model.
        third_party: Whether its attention can only be intercepted (it has no `Tap`).
        projection_inputs: Inputs of its linear projections.
        tracked: Tensors computed from a softmax, by their `id`.
        num_attentions: Number of attention computations in it.
    """

    site: str
    module: nn.Module
    index: int
    third_party: bool
    projection_inputs: list[Tensor] = field(default_factory=list)
    tracked: dict[int, TrackedWeights] = field(default_factory=dict)
    num_attentions: int = 0
    state: dict[str, Any] = field(default_factory=dict)


OnEnter = Callable[[ModuleCall, tuple[Any, ...], dict[str, Any]], Any]
OnExit = Callable[[ModuleCall, tuple[Any, ...], dict[str, Any], Any], Any]


class ModuleCallStack:
    """The running modules of a model, outermost first.

    Layers of `torch.nn` count as part of the module that calls them, except multi-head attention.

    Args:
        probing: Whether to track probe runs (see `probing`) instead of regular runs.
    """

    def __init__(self, *, probing: bool = False) -> None:
        self.probing = probing
        self.stack: list[ModuleCall] = []
        self.counts: Counter[str] = Counter()

    @property
    def current(self) -> ModuleCall | None:
        """The innermost running module; None outside of the model."""
        return self.stack[-1] if self.stack else None

    @property
    def inactive(self) -> bool:
        """Whether the current run is not of the kind (probe or regular) that is tracked."""
        return is_probing() != self.probing

    @contextmanager
    def hooked(
        self,
        model: nn.Module,
        on_enter: OnEnter | None = None,
        on_exit: OnExit | None = None,
        sites: Collection[str] | None = None,
    ) -> Iterator[None]:
        """Call back whenever a module of a model starts and ends.

        If `on_enter` returns a pair, it replaces the arguments of the module. If `on_exit` returns
        anything but None, it replaces the output. With `sites` only these modules and the model
        itself are tracked.
        """
        with ExitStack() as hooks:
            for site, module in model.named_modules():
                wanted = sites is None or not site or site in sites
                if wanted and may_compute_attention(module):
                    self._register_hooks(hooks, site, module, on_enter, on_exit)
            yield
        self.stack.clear()

    def _register_hooks(
        self,
        hooks: ExitStack,
        site: str,
        module: nn.Module,
        on_enter: OnEnter | None,
        on_exit: OnExit | None,
    ) -> None:
        third_party = is_third_party(module)

        def pre_hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self.inactive:
                return None
            if not self.stack:
                self.counts.clear()
            call = ModuleCall(site, module, self.counts[site], third_party)
            self.counts[site] += 1
            self.stack.append(call)
            return on_enter(call, args, kwargs) if on_enter else None

        def hook(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            if self.inactive or not any(call.module is module for call in self.stack):
                return None
            while self.stack[-1].module is not module:  # left behind by an exception
                self.stack.pop()
            try:
                return on_exit(self.stack[-1], args, kwargs, output) if on_exit else None
            finally:
                self.stack.pop()

        for handle in (
            module.register_forward_pre_hook(pre_hook, with_kwargs=True),
            module.register_forward_hook(hook, with_kwargs=True, always_call=True),
        ):
            hooks.callback(handle.remove)


def tapped_attention(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the name of each tap that gets attention among tokens, and the module around it.

    Example:
        >>> [site for site, _ in tapped_attention(nn.Sequential(nn.Sequential(Tap("tokens"))))]
        ['0.0']
    """
    modules = dict(model.named_modules())
    for site, module in modules.items():
        if isinstance(module, Tap) and module.kind == "tokens":
            yield site, modules[site.rpartition(".")[0]]


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


def is_probing() -> bool:
    """Whether this thread is inside a `probing` block."""
    return getattr(_STATE, "probing", False)


@contextmanager
def probing() -> Iterator[None]:
    """Mark runs inside the block as probe runs, which recordings ignore.

    Example:
        >>> with probing():
        ...     is_probing()
        True
    """
    before = is_probing()
    _STATE.probing = True
    try:
        yield
    finally:
        _STATE.probing = before


def with_images(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], images: Tensor
) -> Callable[[Tensor], Any]:
    """Return a function that repeats a call of a module with other images.

    Other arguments of the batch are reduced to the first image, and repeated for each new one.
    """

    def replaced(argument: Any, others: Tensor) -> Any:
        if not isinstance(argument, Tensor):
            return argument
        if argument.shape == images.shape:
            return others
        batched = argument.ndim > 0 and len(argument) == len(images)
        return argument[:1].expand(len(others), *argument.shape[1:]) if batched else argument

    def forward(others: Tensor) -> Any:
        named = {name: replaced(argument, others) for name, argument in kwargs.items()}
        return module(*(replaced(argument, others) for argument in args), **named)

    return forward


def first_image_batch(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the first tensor with four axes among the arguments of a module."""
    arguments = (*args, *kwargs.values())
    return next((arg for arg in arguments if isinstance(arg, Tensor) and arg.ndim == 4), None)
