"""Checks of habits: each picture for itself, the same twice, hands off the input."""

import torch
from torch import nn

from visattn.blocks.conformance.subjects import (
    Candidate,
    Finding,
    answered,
    distance,
    failed,
    stood,
)

CLOSE = 1e-5


def sees_each_alone(subject: Candidate) -> Finding:
    """Say whether a picture comes back the same alone and among others.

    Example:
        >>> sees_each_alone(Candidate("softmax over the batch", lambda channels: nn.Softmax(0)))
        Finding(passed=False, said='alone and in a batch differ by ...')
    """
    block, x = awakened(subject).eval(), subject.features(3)
    with torch.no_grad():
        together = answered(block, x, "batch of 3")
        alone = [answered(block, x[[row]], "batch of 1") for row in range(3)]
    off = distance(torch.cat(alone), together)
    if off > CLOSE:
        return failed(f"alone and in a batch differ by {off:.2g} of the largest value")
    return stood(f"differs by {off:.0e}")


def repeats_itself(subject: Candidate) -> Finding:
    """Say whether the same features give exactly the same again, and leave no trace in the block.

    Example:
        >>> class Coin(nn.Dropout):
        ...     def forward(self, input):
        ...         return nn.functional.dropout(input)
        >>> repeats_itself(Candidate("coin", lambda channels: Coin())).passed
        False
    """
    block, x = awakened(subject).eval(), subject.features()
    before = {name: value.clone() for name, value in block.state_dict().items()}
    with torch.no_grad():
        first, second = answered(block, x, "once"), answered(block, x, "again")
    if not torch.equal(first, second):
        return failed(f"in use, the same features differ by {distance(second, first):.2g}")
    after = block.state_dict()
    changed = [name for name in after if name not in before or _differ(before[name], after[name])]
    if changed:
        return failed(f"in use, {', '.join(changed)} changes")
    return stood("exactly")


def leaves_input(subject: Candidate) -> Finding:
    """Say whether the features that are handed in stay what they were.

    Example:
        >>> leaves_input(Candidate("in place", lambda channels: nn.ReLU(inplace=True)))
        Finding(passed=False, said='in use, 100% of rows of the input are written over')
    """
    for mode, training in (("in use", False), ("in training", True)):
        x = subject.features()
        kept = x.clone()
        answered(subject.block().train(training), x, mode)
        changed = (x != kept).flatten(1).any(1).float().mean()
        if changed:
            return failed(f"{mode}, {float(changed):.0%} of rows of the input are written over")
    return stood("untouched")


def ignores_layout(subject: Candidate) -> Finding:
    """Say whether channels-last and cut-out features give what contiguous ones give.

    Example:
        >>> ignores_layout(Candidate("sigmoid", lambda channels: nn.Sigmoid()))
        Finding(passed=True, said='channels last, cut out')
    """
    block, x = awakened(subject).eval(), subject.features()
    height, width = subject.size
    wide = subject.features(size=(height, 2 * width))
    wide[..., ::2] = x
    layouts = {
        "channels last": x.contiguous(memory_format=torch.channels_last),
        "cut out": wide[..., ::2],
    }
    with torch.no_grad():
        wanted = answered(block, x, "contiguous")
        for name, laid in layouts.items():
            if (off := distance(answered(block, laid, name), wanted)) > CLOSE:
                return failed(f"{name}: differs by {off:.2g} of the largest value")
    return stood(", ".join(layouts))


def awakened(subject: Candidate, *, channels: int | None = None, seed: int = 0) -> nn.Module:
    """Return a block none of whose parameters is zero any more, as if it had been trained.

    Example:
        >>> awakened(Candidate("norm", nn.BatchNorm2d), channels=2).bias
        Parameter containing:
        tensor([..., ...], requires_grad=True)
    """
    block = subject.block(channels, seed=seed)
    random = torch.Generator().manual_seed(1000 + seed)
    with torch.no_grad():
        for parameter in block.parameters():
            fan = max(1, parameter.numel() // max(1, len(parameter))) if parameter.ndim > 1 else 4
            parameter.add_(torch.randn(parameter.shape, generator=random), alpha=fan**-0.5)
    return block


def _differ(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return not torch.equal(one, other)
    return one is not other
