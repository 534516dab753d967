"""Checks of form: any size, any width, a batch of one."""

import copy

import torch
from torch import Tensor

from visattn.testing.behavior import awakened
from visattn.testing.candidate import (
    BlockUnderTest,
    CheckResult,
    answered,
    distance,
    facing,
    failed,
    learn,
    stood,
)

SIZES = ((32, 32), (20, 33), (7, 7), (5, 3), (1, 9), (1, 1))
_TORCHS_OWN = "Expected more than 1 value per channel"


def keeps_shape(subject: BlockUnderTest) -> CheckResult:
    """Say whether features of any size come back in the same shape, in use and in training.

    Example:
        >>> keeps_shape(BlockUnderTest("batch norm", torch.nn.BatchNorm2d)).passed
        True
    """
    for mode, training in (("in use", False), ("in training", True)):
        block = subject.block().train(training)
        for height, width in SIZES:
            x = subject.features(3, size=(height, width))
            answered(block, x, f"{height}x{width}, {mode}")
    return stood(" ".join(f"{height}x{width}" for height, width in SIZES))


def takes_widths(subject: BlockUnderTest) -> CheckResult:
    """Say whether the block can be made and trained at every width, the narrowest included.

    Example:
        >>> takes_widths(BlockUnderTest("sigmoid", lambda channels: torch.nn.Sigmoid()))
        CheckResult(passed=True, said='C = 1, 4, 8, 16, 24')
    """
    for channels in subject.widths:
        block = subject.block(channels)
        answered(block.eval(), subject.features(channels=channels), f"C={channels}, in use")
        answered(block.train(), subject.features(channels=channels), f"C={channels}, in training")
    return stood(f"C = {', '.join(map(str, subject.widths))}")


def trains_alone(subject: BlockUnderTest) -> CheckResult:
    """Say whether the block trains on a batch of one, or says what to do instead.

    Example:
        >>> trains_alone(BlockUnderTest("sigmoid", lambda channels: torch.nn.Sigmoid())).passed
        True
    """
    refused: list[str] = []
    for height, width in (subject.size, (7, 7), (1, 1)):
        block = subject.block().train()
        x = subject.features(1, size=(height, width)).requires_grad_()
        try:
            y = answered(block, x, f"{height}x{width}")
        except ValueError as error:
            if not is_advice(error):
                raise
            refused.append(f"{height}x{width}")
            continue
        learn(y.square().sum())
        if not isinstance(x.grad, Tensor) or not x.grad.isfinite().all():
            return failed(f"{height}x{width}: the gradient is not finite")
    if refused:
        return CheckResult(
            passed=True, said=f"refuses {', '.join(refused)}, in words", refuses=True
        )
    return stood("runs at every size")


def is_advice(error: ValueError) -> bool:
    """Say whether a block refused in words of its own that name the numbers.

    Example:
        >>> try:
        ...     answered(torch.nn.BatchNorm2d(3), torch.zeros(1, 3, 1, 1), "1x1")
        ... except ValueError as error:
        ...     is_advice(error)
        False
    """
    cause = error.__cause__
    said = str(cause)
    numbered = any(sign.isdigit() for sign in said)
    return isinstance(cause, ValueError) and numbered and not said.startswith(_TORCHS_OWN)


BOUNDS = {torch.float16: 0.02, torch.bfloat16: 0.1}
LOUD = 6.0
"""With this many times as loud features the sum of squares of a large map leaves float16."""
LARGE = (40, 48)
SCALES = (1e-4, 1e-2, 1e2, 1e4)


def works_in_half(subject: BlockUnderTest) -> CheckResult:
    """Say whether half precision gives nearly what float32 gives from the same numbers.

    Example:
        >>> works_in_half(BlockUnderTest("sigmoid", lambda channels: torch.nn.Sigmoid())).passed
        True
    """
    worst: dict[str, float] = {}
    for kind, bound in BOUNDS.items():
        name = str(kind).removeprefix("torch.")
        for size, loud, case in _halves(subject, kind):
            x = (subject.features(1, size=size) * loud).to(kind)
            # Loud features and large weights leave one winner of a softmax: by chance, in half.
            half = (subject.block() if loud > 1 else awakened(subject)).eval().to(kind)
            whole = copy.deepcopy(half).float()
            with torch.no_grad():
                given = answered(half, x, f"{name}, {case}").float()
                off = distance(given, answered(whole, x.float(), f"float32, {case}"))
            if off > bound:
                return failed(f"{name}, {case}: off by {off:.2g} of the largest value")
            worst[name] = max(worst.get(name, 0.0), off)
    return _under_autocast(subject, ", ".join(f"{name} {off:.1e}" for name, off in worst.items()))


def _halves(subject: BlockUnderTest, kind: torch.dtype) -> list[tuple[tuple[int, int], float, str]]:
    """Return sizes and loudness; bfloat16 has float32's range, and nothing to fear from it."""
    height, width = LARGE
    small = (subject.size, 1.0, f"{subject.size[0]}x{subject.size[1]}")
    loud = (LARGE, LOUD, f"{height}x{width}, loud")
    return [small, loud] if kind == torch.float16 else [small]


def _under_autocast(subject: BlockUnderTest, measured: str) -> CheckResult:
    block, x = subject.block().train(), subject.features().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16), facing("autocast to bfloat16"):
        y: Tensor = block(x)
        learn(y.float().square().mean())
    if not y.isfinite().all():
        return failed("autocast to bfloat16: it is not finite")
    return stood(measured)


def stays_finite(subject: BlockUnderTest) -> CheckResult:
    """Say whether features and gradients stay finite, from x times 1e-4 to x times 1e4.

    Example:
        >>> stays_finite(BlockUnderTest("sigmoid", lambda channels: torch.nn.Sigmoid()))
        CheckResult(passed=True, said='x 1e-4 to 1e4')
    """
    for mode, training in (("in use", False), ("in training", True)):
        for scale in SCALES:
            case = f"x{scale:g}, {mode}"
            block = subject.block().train(training)
            x = (subject.features() * scale).requires_grad_()
            learn(answered(block, x, case).mean())
            slopes = [x.grad, *(parameter.grad for parameter in block.parameters())]
            if not all(slope is None or slope.isfinite().all() for slope in slopes):
                return failed(f"{case}: a gradient is not finite")
    return stood("x 1e-4 to 1e4")
