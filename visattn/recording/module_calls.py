"""Which part of a model is running."""

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from visattn.blocks.tap import Tap

_STATE = threading.local()


@dataclass(frozen=True, eq=False)
class TrackedWeights:
    """A tensor that comes from a softmax.

    Args:
        now: The tensor.
        softmax: What the softmax gave.
        mixed: Whether a linear map came between the two.
    """

    now: Tensor
    softmax: Tensor
    mixed: bool = False


@dataclass(eq=False)
class ModuleCall:
    """One run of one module.

    Args:
        site: Path of the module.
        module: Itself.
        number: How often it ran before, on this way through the model.
        foreign: Whether nobody but an interception can see its attention.
        inputs: What its projections were given.
        followed: Tensors that come from a softmax, by their `id`.
        attentions: How much attention was seen in it.
        notes: What listeners want to remember of it.
    """

    site: str
    module: nn.Module
    number: int
    foreign: bool
    inputs: list[Tensor] = field(default_factory=list)
    followed: dict[int, TrackedWeights] = field(default_factory=dict)
    attentions: int = 0
    notes: dict[str, Any] = field(default_factory=dict)


Entered = Callable[[ModuleCall, tuple[Any, ...], dict[str, Any]], Any]
Left = Callable[[ModuleCall, tuple[Any, ...], dict[str, Any], Any], Any]


class ModuleCalls:
    """The modules that are running, the outermost first.

    Layers of `torch.nn` count as part of the module that calls them, but for multi-head attention.
    """

    def __init__(self, *, dry: bool = False) -> None:
        self.dry = dry
        self.stack: list[ModuleCall] = []
        self.counts: Counter[str] = Counter()

    @property
    def current(self) -> ModuleCall | None:
        """The innermost module that is running; None outside of the model."""
        return self.stack[-1] if self.stack else None

    @property
    def silent(self) -> bool:
        """Whether what runs now is meant for other ears."""
        return is_dry() != self.dry

    @contextmanager
    def watching(self, model: nn.Module, entered: Entered, left: Left) -> Iterator[None]:
        """Call back whenever a module of a model begins, with what it is given, and ends.

        What `entered` gives back, if it is a pair, takes the place of what the module is given;
        what `left` gives back, unless it is None, that of its output.
        """
        with ExitStack() as hooks:
            for site, module in model.named_modules():
                if is_place(module):
                    self._watch(hooks, site, module, entered, left)
            yield
        self.stack.clear()

    def _watch(
        self, hooks: ExitStack, site: str, module: nn.Module, entered: Entered, left: Left
    ) -> None:
        foreign = is_foreign(module)

        def begin(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if self.silent:
                return None
            if not self.stack:
                self.counts.clear()
            call = ModuleCall(site, module, self.counts[site], foreign)
            self.counts[site] += 1
            self.stack.append(call)
            return entered(call, args, kwargs)

        def end(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            if self.silent or not any(call.module is module for call in self.stack):
                return None
            while self.stack[-1].module is not module:  # an error left others behind
                self.stack.pop()
            try:
                return left(self.stack[-1], args, kwargs, output)
            finally:
                self.stack.pop()

        for handle in (
            module.register_forward_pre_hook(begin, with_kwargs=True),
            module.register_forward_hook(end, with_kwargs=True, always_call=True),
        ):
            hooks.callback(handle.remove)


def is_place(module: nn.Module) -> bool:
    """Whether attention may be computed in the forward method of this very module.

    Example:
        >>> is_place(nn.Linear(1, 1)), is_place(nn.MultiheadAttention(1, 1)), is_place(Tap("gate"))
        (False, True, False)
    """
    if isinstance(module, nn.MultiheadAttention):
        return True
    return not isinstance(module, Tap) and not type(module).__module__.startswith("torch.nn.")


def is_foreign(module: nn.Module) -> bool:
    """Whether a module may attend to something and has no tap to show it by.

    Example:
        >>> is_foreign(nn.Sequential(Tap("gate"))), is_foreign(nn.MultiheadAttention(1, 1))
        (False, True)
    """
    ours = type(module).__module__.split(".")[0] == "visattn"
    return is_place(module) and not ours and not any(map(_is_tap, module.children()))


def _is_tap(module: nn.Module) -> bool:
    return isinstance(module, Tap)


def is_dry() -> bool:
    """Whether a model runs on zeros, to be read, in this thread."""
    return getattr(_STATE, "dry", False)


@contextmanager
def dry() -> Iterator[None]:
    """Say that what runs inside the block is a trial, which no recording is to keep.

    Example:
        >>> with dry():
        ...     is_dry()
        True
    """
    before = is_dry()
    _STATE.dry = True
    try:
        yield
    finally:
        _STATE.dry = before


def first_image(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """Return the first tensor of four axes among what a module is given."""
    given = (*args, *kwargs.values())
    return next((one for one in given if isinstance(one, Tensor) and one.ndim == 4), None)
