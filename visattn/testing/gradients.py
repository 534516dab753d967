"""Checks of learning: every parameter is reached, and the derivatives are right."""

import torch
from torch import nn

from visattn.testing.behavior import awakened
from visattn.testing.candidate import (
    BlockUnderTest,
    CheckResult,
    answered,
    facing,
    failed,
    learn,
    stood,
)


def learns_everywhere(subject: BlockUnderTest) -> CheckResult:
    """Say whether every parameter gets a gradient within two steps, and none comes or goes.

    Two, since a block that begins as the identity holds most of itself back in the first.

    Example:
        >>> class Idle(nn.Conv2d):
        ...     def forward(self, input):
        ...         return input * self.bias.sum()
        >>> learns_everywhere(BlockUnderTest("idle", lambda channels: Idle(channels, channels, 1)))
        CheckResult(passed=False, said='no gradient in two steps for weight')
    """
    block = subject.block().train()
    named = dict(block.named_parameters())
    reached: set[str] = set()
    for step in range(2):
        block.zero_grad()
        x = subject.features(8, seed=step).requires_grad_()
        y = answered(block, x, f"step {step + 1}")
        learn((y - subject.features(8, seed=step + 2)).square().mean())
        for name, parameter in named.items():
            if parameter.grad is not None and parameter.grad.any():
                reached.add(name)
        _step(block)
    if late := sorted(dict(block.named_parameters()).keys() ^ named.keys()):
        return failed(f"{', '.join(late)} is made or lost while it runs")
    if unreached := [name for name in named if name not in reached]:
        return failed(f"no gradient in two steps for {', '.join(unreached)}")
    return stood(f"{len(named)} of {len(named)}")


def _step(block: nn.Module) -> None:
    with torch.no_grad():
        for parameter in block.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=0.1)


def has_right_slopes(subject: BlockUnderTest) -> CheckResult:
    """Say whether the gradient of the features is that of finite differences, in float64.

    Example:
        >>> has_right_slopes(BlockUnderTest("sigmoid", lambda channels: nn.Sigmoid()))
        CheckResult(passed=True, said='as finite differences')
    """
    block = awakened(subject).double().eval()
    x = subject.features(2, size=_small(subject.size)).double().requires_grad_()
    with facing("float64"):
        right = torch.autograd.gradcheck(
            block, (x,), eps=1e-5, atol=1e-4, fast_mode=True, raise_exception=False
        )
    if not right:
        return failed("differs from finite differences in float64")
    return stood("as finite differences")


def _small(size: tuple[int, int]) -> tuple[int, int]:
    """Return a smaller size where any will do: the default size does."""
    return (3, 5) if size == (11, 13) else size
