"""Where half precision will not do: sums over many places, products that no scale holds down."""

from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor


def at_least_float32(x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """Return the numbers in float32 if they are narrower, and as they are otherwise.

    Example:
        >>> at_least_float32(torch.zeros(2, dtype=torch.float16)).dtype
        torch.float32
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


def may_overwrite(*tensors: Tensor) -> bool:
    """Return whether an operation on tensors may write its result over them.

    It may not where a gradient needs them again, and not under `torch.jit.trace`, whose check wants
    the same operations with gradients and without.

    Example:
        >>> may_overwrite(torch.ones(1)), may_overwrite(torch.ones(1, requires_grad=True))
        (True, False)
    """
    tracing: bool = torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
    return not (tracing or any(x.requires_grad for x in tensors))


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which autocast does not narrow what was widened.

    Nothing is entered where autocast is off, so that an exported graph does not hold the context.

    Example:
        >>> one = torch.ones(1, 1)
        >>> with torch.autocast("cpu"), without_autocast(one.device):
        ...     (one @ one).dtype
        torch.float32
    """
    known = torch.amp.is_autocast_available(device.type)  # not for meta, where shapes are tried
    if known and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
