"""Contexts in which a model is run and then restored: evaluation mode, frozen, unrounded."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from visattn.functional.numerics import without_autocast
from visattn.insertion.trace import modes_restored
from visattn.recording.checkpointing import without_checkpointing

_DEVICES = ("cpu", "cuda", "mps", "xpu")


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and restore the mode of each of its modules afterwards.

    Gradient checkpointing is switched off meanwhile (see `without_checkpointing`).

    Args:
        model: Any module.

    Example:
        >>> model = torch.nn.Dropout().train()
        >>> with eval_mode(model):
        ...     model.training
        False
        >>> model.training
        True
    """
    with modes_restored(model), without_checkpointing(model):
        yield


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode with frozen parameters and enabled gradients.

    With frozen parameters, a backward pass only computes gradients with respect to the inputs or
    activations of interest. Training modes, `requires_grad` of each parameter and the random state
    are restored afterwards, also after an exception.

    Args:
        model: Any module.

    Example:
        >>> model = torch.nn.Linear(2, 1).train()
        >>> with frozen(model):
        ...     model.training, model.weight.requires_grad
        (False, False)
        >>> model.training, model.weight.requires_grad
        (True, True)
    """
    states = [(weight, weight.requires_grad) for weight in model.parameters()]
    devices = {weight.device for weight, _ in states if weight.device.type == "cuda"}
    with (
        torch.random.fork_rng(devices=list(devices)),
        torch.inference_mode(mode=False),
        torch.enable_grad(),
        eval_mode(model),
    ):
        try:
            for weight, _ in states:
                weight.requires_grad = False
            yield
        finally:
            for weight, requires_grad in states:
                weight.requires_grad = requires_grad


@contextmanager
def unrounded() -> Iterator[None]:
    """Disable autocast on every device, for analyses of a model; also a decorator.

    What depends on what is decided by comparing values and gradients, which 16 bits would hide. The
    result is cached, too, and later runs may be without autocast.

    Example:
        >>> with torch.autocast("cpu"), unrounded():
        ...     torch.nn.Linear(2, 1)(torch.ones(1, 2)).dtype
        torch.float32
    """
    with ExitStack() as stack:
        for device in _DEVICES:
            stack.enter_context(without_autocast(torch.device(device)))
        yield


def with_grad(images: Tensor) -> Tensor:
    """Return a detached copy of images that requires a gradient.

    Example:
        >>> with_grad(torch.zeros(2)).requires_grad
        True
    """
    return images.detach().clone().requires_grad_()
