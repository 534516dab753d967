"""Checks of gradients: all parameters get one, and they match finite differences."""

import torch
from torch import nn

from visattn.testing.behavior import perturbed_block
from visattn.testing.block_under_test import (
    BlockUnderTest,
    CheckResult,
    backward,
    checked_forward,
    error_context,
    failed,
    passed,
)


def reaches_all_parameters(under_test: BlockUnderTest) -> CheckResult:
    """Check that every parameter gets a gradient within two steps, and none is added or removed.

    A block that starts as the identity blocks most gradients in the first step.

    Example:
        >>> class Idle(nn.Conv2d):
        ...     def forward(self, input):
        ...         return input * self.bias.sum()
        >>> reaches_all_parameters(BlockUnderTest("idle", lambda c: Idle(c, c, 1)))
        CheckResult(passed=False, details='no gradient in two steps for weight')
    """
    block = under_test.block().train()
    named = dict(block.named_parameters())
    reached: set[str] = set()
    for step in range(2):
        block.zero_grad()
        x = under_test.features(8, seed=step).requires_grad_()
        y = checked_forward(block, x, f"step {step + 1}")
        backward((y - under_test.features(8, seed=step + 2)).square().mean())
        for name, parameter in named.items():
            if parameter.grad is not None and parameter.grad.any():
                reached.add(name)
        _sgd_step(block)
    if late := sorted(dict(block.named_parameters()).keys() ^ named.keys()):
        return failed(f"{', '.join(late)} is added or removed in the forward pass")
    if unreached := [name for name in named if name not in reached]:
        return failed(f"no gradient in two steps for {', '.join(unreached)}")
    return passed(f"{len(named)} of {len(named)}")


def _sgd_step(block: nn.Module) -> None:
    with torch.no_grad():
        for parameter in block.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=0.1)


def passes_gradcheck(under_test: BlockUnderTest) -> CheckResult:
    """Check the input gradient against finite differences in float64.

    Example:
        >>> passes_gradcheck(BlockUnderTest("sigmoid", lambda channels: nn.Sigmoid()))
        CheckResult(passed=True, details='matches finite differences')
    """
    block = perturbed_block(under_test).double().eval()
    x = under_test.features(2, size=_gradcheck_size(under_test.size)).double().requires_grad_()
    with error_context("float64"):
        right = torch.autograd.gradcheck(
            block, (x,), eps=1e-5, atol=1e-4, fast_mode=True, raise_exception=False
        )
    if not right:
        return failed("differs from finite differences in float64")
    return passed("matches finite differences")


def _gradcheck_size(size: tuple[int, int]) -> tuple[int, int]:
    """Return a smaller size if the default size is used."""
    return (3, 5) if size == (11, 13) else size
