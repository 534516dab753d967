"""Checks of arithmetic: half precision, very soft and very loud features."""

import copy

import torch
from torch import Tensor

from visattn.blocks.conformance.habits import awakened
from visattn.blocks.conformance.subjects import (
    Candidate,
    Finding,
    answered,
    distance,
    facing,
    failed,
    learn,
    stood,
)

BOUNDS = {torch.float16: 0.02, torch.bfloat16: 0.1}
LOUD = 6.0
"""With this many times as loud features the sum of squares of a large map leaves float16."""
LARGE = (40, 48)
SCALES = (1e-4, 1e-2, 1e2, 1e4)


def works_in_half(subject: Candidate) -> Finding:
    """Say whether half precision gives nearly what float32 gives from the same numbers.

    Example:
        >>> works_in_half(Candidate("sigmoid", lambda channels: torch.nn.Sigmoid())).passed
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


def _halves(subject: Candidate, kind: torch.dtype) -> list[tuple[tuple[int, int], float, str]]:
    """Return sizes and loudness; bfloat16 has float32's range, and nothing to fear from it."""
    height, width = LARGE
    small = (subject.size, 1.0, f"{subject.size[0]}x{subject.size[1]}")
    loud = (LARGE, LOUD, f"{height}x{width}, loud")
    return [small, loud] if kind == torch.float16 else [small]


def _under_autocast(subject: Candidate, measured: str) -> Finding:
    block, x = subject.block().train(), subject.features().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16), facing("autocast to bfloat16"):
        y: Tensor = block(x)
        learn(y.float().square().mean())
    if not y.isfinite().all():
        return failed("autocast to bfloat16: it is not finite")
    return stood(measured)


def stays_finite(subject: Candidate) -> Finding:
    """Say whether features and gradients stay finite, from x times 1e-4 to x times 1e4.

    Example:
        >>> stays_finite(Candidate("sigmoid", lambda channels: torch.nn.Sigmoid()))
        Finding(passed=True, said='x 1e-4 to 1e4')
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
