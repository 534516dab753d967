"""16-bit models that compute in float32, weight by weight."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

HALF = (torch.float16, torch.bfloat16)
_NARROWING = frozenset({Tensor.half, Tensor.bfloat16})
_LOOKUPS = frozenset({F.embedding, torch.embedding})
_ATTRIBUTES = frozenset(
    {"__get__", "__set__", "__setitem__", "__getitem__", "size", "dim", "numel"}
)

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


class Float32(TorchFunctionMode):
    """Computes in float32 what a model computes in 16 bits, without a copy of its weights.

    Example:
        >>> with Float32():
        ...     torch.ones(2, dtype=torch.float16).add(2**-20).dtype
        torch.float32
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a torch function on wider tensors."""
        func, args, kwargs = in_float32(func, args, kwargs or {})
        return func(*args, **kwargs)


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
