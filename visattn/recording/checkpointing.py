"""Gradient checkpointing, switched off while a model is explained or recorded."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from torch import nn
from torch.utils import checkpoint

_FLAG_NAMES = ("with_cp",)
_GENERATORS = (
    "_checkpoint_without_reentrant_generator",
    "_checkpoint_without_reentrant_generator_impl",  # torch 2.15 and later
)


@contextmanager
def without_checkpointing(model: nn.Module) -> Iterator[None]:
    """Let a model keep its activations for the backward pass instead of computing them again.

    A block that runs again in the backward pass runs without the hooks and interceptors of the
    forward pass. And a model that checkpoints may call the layers of a stage one by one, so that
    the hooks of the stage never run. So attributes of modules that switch checkpointing on
    (`grad_checkpointing` of timm, `gradient_checkpointing` of Hugging Face, `use_checkpoint`,
    `with_cp`) are false meanwhile, and `torch.utils.checkpoint` calls its function directly.

    Args:
        model: Any module.

    Example:
        >>> model = nn.Identity()
        >>> model.grad_checkpointing = True
        >>> with without_checkpointing(model):
        ...     model.grad_checkpointing
        False
        >>> model.grad_checkpointing
        True
    """
    flags = [
        (module, name)
        for module in model.modules()
        for name, value in vars(module).items()
        if value is True and ("checkpoint" in name or name in _FLAG_NAMES)
    ]
    try:
        for module, name in flags:
            setattr(module, name, False)
        with _direct_calls.active():
            yield
    finally:
        for module, name in flags:
            setattr(module, name, True)


class _DirectCalls:
    """Makes `torch.utils.checkpoint` call its function directly, also in code that imported it.

    Threads share the module, so the last one to leave restores it.
    """

    def __init__(self) -> None:
        self._lock, self._count = Lock(), 0
        self._originals: dict[str, Any] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._replace()
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                if self._count == 0:
                    self._set(self._originals)

    def _replace(self) -> None:
        replacements: dict[str, Any] = dict.fromkeys(_GENERATORS, _keep_activations)
        replacements["CheckpointFunction"] = _ReentrantCall
        names = [name for name in replacements if hasattr(checkpoint, name)]
        self._originals = {name: getattr(checkpoint, name) for name in names}
        self._set({name: replacements[name] for name in names})

    @staticmethod
    def _set(functions: dict[str, Any]) -> None:
        for name, function in functions.items():
            setattr(checkpoint, name, function)


def _keep_activations(*_: Any, **__: Any) -> Iterator[None]:
    """Run around the function of a checkpoint without reentrance; do nothing before and after."""
    yield


class _ReentrantCall:
    """In place of the autograd function of a checkpoint with reentrance."""

    @staticmethod
    def apply(function: Callable[..., Any], _: bool, *args: Any) -> Any:
        return function(*args)


_direct_calls = _DirectCalls()
