"""Checks of shapes and dtypes: sizes, channel counts, batch of one, half precision, scale."""

import copy

import torch
from torch import Tensor

from visattn.testing.behavior import perturbed_block
from visattn.testing.block_under_test import (
    BlockUnderTest,
    CheckResult,
    backward,
    checked_forward,
    error_context,
    failed,
    passed,
    relative_error,
)

SIZES = ((32, 32), (20, 33), (7, 7), (5, 3), (1, 9), (1, 1))
_TORCH_MESSAGE = "Expected more than 1 value per channel"


def preserves_shape(under_test: BlockUnderTest) -> CheckResult:
    """Check that the shape is preserved for any size, in evaluation and training mode.

    Example:
        >>> preserves_shape(BlockUnderTest("batch norm", torch.nn.BatchNorm2d)).passed
        True
    """
    for mode, training in (("eval mode", False), ("training mode", True)):
        block = under_test.block().train(training)
        for height, width in SIZES:
            x = under_test.features(3, size=(height, width))
            checked_forward(block, x, f"{height}x{width}, {mode}")
    return passed(" ".join(f"{height}x{width}" for height, width in SIZES))


def supports_channel_counts(under_test: BlockUnderTest) -> CheckResult:
    """Check that the block works with every number of channels, including one.

    Example:
        >>> supports_channel_counts(BlockUnderTest("sigmoid", lambda channels: torch.nn.Sigmoid()))
        CheckResult(passed=True, details='C = 1, 4, 8, 16, 24')
    """
    for channels in under_test.widths:
        block = under_test.block(channels)
        checked_forward(
            block.eval(), under_test.features(channels=channels), f"C={channels}, eval mode"
        )
        checked_forward(
            block.train(), under_test.features(channels=channels), f"C={channels}, training mode"
        )
    return passed(f"C = {', '.join(map(str, under_test.widths))}")


def trains_on_single_image(under_test: BlockUnderTest) -> CheckResult:
    """Check that the block trains on a batch of one image, or raises an informative error.

    Example:
        >>> sigmoid = BlockUnderTest("sigmoid", lambda channels: torch.nn.Sigmoid())
        >>> trains_on_single_image(sigmoid).passed
        True
    """
    refused: list[str] = []
    for height, width in (under_test.size, (7, 7), (1, 1)):
        block = under_test.block().train()
        x = under_test.features(1, size=(height, width)).requires_grad_()
        try:
            y = checked_forward(block, x, f"{height}x{width}")
        except ValueError as error:
            if not is_informative(error):
                raise
            refused.append(f"{height}x{width}")
            continue
        backward(y.square().sum())
        if not isinstance(x.grad, Tensor) or not x.grad.isfinite().all():
            return failed(f"{height}x{width}: the gradient is not finite")
    if refused:
        return CheckResult(
            passed=True,
            details=f"refuses {', '.join(refused)} with an informative error",
            refuses=True,
        )
    return passed("runs at every size")


def is_informative(error: ValueError) -> bool:
    """Return whether an error is the block's own message and states the numbers.

    Example:
        >>> try:
        ...     checked_forward(torch.nn.BatchNorm2d(3), torch.zeros(1, 3, 1, 1), "1x1")
        ... except ValueError as error:
        ...     is_informative(error)
        False
    """
    cause = error.__cause__
    message = str(cause)
    numbered = any(sign.isdigit() for sign in message)
    return isinstance(cause, ValueError) and numbered and not message.startswith(_TORCH_MESSAGE)


TOLERANCES = {torch.float16: 0.02, torch.bfloat16: 0.1}
LARGE_SCALE = 6.0
"""Scale at which the sum of squares over a large feature map overflows float16."""
LARGE_SIZE = (40, 48)
SCALES = (1e-4, 1e-2, 1e2, 1e4)


def supports_half_precision(under_test: BlockUnderTest) -> CheckResult:
    """Check that half precision gives nearly the same output as float32.

    Example:
        >>> sigmoid = BlockUnderTest("sigmoid", lambda channels: torch.nn.Sigmoid())
        >>> supports_half_precision(sigmoid).passed
        True
    """
    worst: dict[str, float] = {}
    for kind, bound in TOLERANCES.items():
        name = str(kind).removeprefix("torch.")
        for size, loud, case in _half_cases(under_test, kind):
            x = (under_test.features(1, size=size) * loud).to(kind)
            # With large features and weights softmax saturates, and half precision may flip it.
            half = (under_test.block() if loud > 1 else perturbed_block(under_test)).eval().to(kind)
            whole = copy.deepcopy(half).float()
            with torch.no_grad():
                output = checked_forward(half, x, f"{name}, {case}").float()
                off = relative_error(output, checked_forward(whole, x.float(), f"float32, {case}"))
            if off > bound:
                return failed(f"{name}, {case}: off by {off:.2g} of the largest value")
            worst[name] = max(worst.get(name, 0.0), off)
    return _check_autocast(
        under_test, ", ".join(f"{name} {off:.1e}" for name, off in worst.items())
    )


def _half_cases(
    under_test: BlockUnderTest, kind: torch.dtype
) -> list[tuple[tuple[int, int], float, str]]:
    """Return sizes and scales; bfloat16 has the range of float32 and needs no large scale."""
    height, width = LARGE_SIZE
    small = (under_test.size, 1.0, f"{under_test.size[0]}x{under_test.size[1]}")
    loud = (LARGE_SIZE, LARGE_SCALE, f"{height}x{width}, large")
    return [small, loud] if kind == torch.float16 else [small]


def _check_autocast(under_test: BlockUnderTest, measured: str) -> CheckResult:
    block, x = under_test.block().train(), under_test.features().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16), error_context("autocast to bfloat16"):
        y: Tensor = block(x)
        backward(y.float().square().mean())
    if not y.isfinite().all():
        return failed("autocast to bfloat16: it is not finite")
    return passed(measured)


def is_numerically_stable(under_test: BlockUnderTest) -> CheckResult:
    """Check that outputs and gradients are finite for inputs scaled by 1e-4 to 1e4.

    Example:
        >>> is_numerically_stable(BlockUnderTest("sigmoid", lambda channels: torch.nn.Sigmoid()))
        CheckResult(passed=True, details='x 1e-4 to 1e4')
    """
    for mode, training in (("eval mode", False), ("training mode", True)):
        for scale in SCALES:
            case = f"x{scale:g}, {mode}"
            block = under_test.block().train(training)
            x = (under_test.features() * scale).requires_grad_()
            backward(checked_forward(block, x, case).mean())
            gradients = [x.grad, *(parameter.grad for parameter in block.parameters())]
            if not all(slope is None or slope.isfinite().all() for slope in gradients):
                return failed(f"{case}: a gradient is not finite")
    return passed("x 1e-4 to 1e4")
