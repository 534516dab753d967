"""Models that are asked, and come back as they were."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Set a model to evaluation, and give each of its parts back in the mode in which it was.

    Args:
        model: To be looked at.

    Example:
        >>> model = torch.nn.Dropout().train()
        >>> with evaluating(model):
        ...     model.training
        False
        >>> model.training
        True
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Let a model be asked for gradients of what goes into it, and leave no trace of that.

    Inside the block it is in evaluation mode and no parameter takes a gradient, so that of a
    backward pass only that part is computed which leads to what is asked for. Gradients are on,
    whatever the caller had. Modes, wishes for gradients and the random state come back, also after
    an error.

    Args:
        model: To be asked.

    Example:
        >>> model = torch.nn.Linear(2, 1).train()
        >>> with frozen(model):
        ...     model.training, model.weight.requires_grad
        (False, False)
        >>> model.training, model.weight.requires_grad
        (True, True)
    """
    wishes = [(weight, weight.requires_grad) for weight in model.parameters()]
    devices = {weight.device for weight, _ in wishes if weight.device.type == "cuda"}
    with (
        torch.random.fork_rng(devices=list(devices)),
        torch.inference_mode(mode=False),
        torch.enable_grad(),
        evaluating(model),
    ):
        try:
            for weight, _ in wishes:
                weight.requires_grad = False
            yield
        finally:
            for weight, wish in wishes:
                weight.requires_grad = wish


def asked(images: Tensor) -> Tensor:
    """Return a copy of images that takes a gradient.

    Example:
        >>> asked(torch.zeros(2)).requires_grad
        True
    """
    return images.detach().clone().requires_grad_()
