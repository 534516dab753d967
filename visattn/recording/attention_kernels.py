"""Attention implementations of transformers, and how parts of a model are switched to another."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

RECORDABLE = ("sdpa", "eager")
"""Implementations whose weights can be intercepted, the faster one first."""

_SETTING = "_attn_implementation_internal"


def fused_kernels(model: nn.Module) -> dict[str, str]:
    """Return the attention implementation of each part of a model that hides its weights.

    Args:
        model: Any module.

    Example:
        >>> fused_kernels(nn.Linear(1, 1))
        {}
    """
    kernels = {
        name: getattr(getattr(module, "config", None), "_attn_implementation", None)
        for name, module in model.named_modules()
    }
    return {
        name: kernel
        for name, kernel in kernels.items()
        if isinstance(kernel, str) and kernel not in RECORDABLE
    }


@contextmanager
def recordable_attention(model: nn.Module, kernel: str = "sdpa") -> Iterator[None]:
    """Run the parts of a model that hide their weights with another attention implementation.

    These are parts with flash or flex attention, or a function that the user registered. They have
    their own implementation again afterwards, also after an exception.

    Args:
        model: Any module.
        kernel: `sdpa` or `eager`; parts that do not support `sdpa` run `eager`.

    Example:
        >>> with recordable_attention(nn.Linear(1, 1)):
        ...     pass
    """
    before: list[tuple[Any, str]] = []
    try:
        for name in fused_kernels(model):
            part: Any = model.get_submodule(name)
            if not any(config is part.config for config, _ in before):
                before.append((part.config, getattr(part.config, _SETTING)))
            supported = kernel != "sdpa" or getattr(part, "_supports_sdpa", True)
            setattr(part.config, _SETTING, kernel if supported else "eager")
        yield
    finally:
        for config, implementation in before:
            setattr(config, _SETTING, implementation)
