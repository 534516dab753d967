"""Checks of behavior: shapes, dtypes, gradients, independence of the batch, determinism."""

import copy
from collections.abc import Generator, Iterable
from contextlib import ExitStack, contextmanager
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.tap import Tap
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

TOLERANCE = 1e-5
_MODES = (("eval mode", False), ("training mode", True))


def is_batch_independent(under_test: BlockUnderTest) -> CheckResult:
    """Check that the output of an image does not depend on the other images of the batch.

    Example:
        >>> block = BlockUnderTest("softmax over the batch", lambda channels: nn.Softmax(0))
        >>> is_batch_independent(block)
        CheckResult(passed=False, details='alone and in a batch differ by ...')
    """
    block = perturbed_block(under_test).eval()
    x = under_test.features(3)
    with torch.no_grad():
        together = checked_forward(block, x, "batch of 3")
        alone = [checked_forward(block, x[[row]], "batch of 1") for row in range(3)]
    off = relative_error(torch.cat(alone), together)
    if off > TOLERANCE:
        return failed(f"alone and in a batch differ by {off:.2g} of the largest value")
    return passed(f"differs by {off:.0e}")


def is_deterministic(under_test: BlockUnderTest) -> CheckResult:
    """Check that the output is deterministic in evaluation mode and the state does not change.

    Example:
        >>> class Coin(nn.Dropout):
        ...     def forward(self, input):
        ...         return nn.functional.dropout(input)
        >>> is_deterministic(BlockUnderTest("coin", lambda channels: Coin())).passed
        False
    """
    block = perturbed_block(under_test).eval()
    x = under_test.features()
    before = {name: value.clone() for name, value in block.state_dict().items()}
    with torch.no_grad():
        first = checked_forward(block, x, "first run")
        second = checked_forward(block, x, "second run")
    if not torch.equal(first, second):
        return failed(f"eval mode, the same features differ by {relative_error(second, first):.2g}")
    after = block.state_dict()
    changed = [
        name for name in after if name not in before or _values_differ(before[name], after[name])
    ]
    if changed:
        return failed(f"eval mode, {', '.join(changed)} changes")
    return passed("exactly")


def preserves_input(under_test: BlockUnderTest) -> CheckResult:
    """Check that the input is not modified in place.

    Example:
        >>> preserves_input(BlockUnderTest("in place", lambda channels: nn.ReLU(inplace=True)))
        CheckResult(passed=False, details='eval mode, 100% of the input rows are overwritten')
    """
    for mode, training in _MODES:
        x = under_test.features()
        kept = x.clone()
        checked_forward(under_test.block().train(training), x, mode)
        changed = (x != kept).flatten(1).any(1).float().mean()
        if changed:
            return failed(f"{mode}, {float(changed):.0%} of the input rows are overwritten")
    return passed("unchanged")


def is_memory_format_invariant(under_test: BlockUnderTest) -> CheckResult:
    """Check that channels-last and strided inputs give the same output as contiguous ones.

    Example:
        >>> is_memory_format_invariant(BlockUnderTest("sigmoid", lambda channels: nn.Sigmoid()))
        CheckResult(passed=True, details='channels last, strided')
    """
    block = perturbed_block(under_test).eval()
    x = under_test.features()
    height, width = under_test.size
    wide = under_test.features(size=(height, 2 * width))
    wide[..., ::2] = x
    layouts = {
        "channels last": x.contiguous(memory_format=torch.channels_last),
        "strided": wide[..., ::2],
    }
    with torch.no_grad():
        wanted = checked_forward(block, x, "contiguous")
        for name, x_layout in layouts.items():
            if (off := relative_error(checked_forward(block, x_layout, name), wanted)) > TOLERANCE:
                return failed(f"{name}: differs by {off:.2g} of the largest value")
    return passed(", ".join(layouts))


def perturbed_block(
    under_test: BlockUnderTest, *, channels: int | None = None, seed: int = 0
) -> nn.Module:
    """Return a block with randomly perturbed parameters, none of them zero, as after training.

    Example:
        >>> perturbed_block(BlockUnderTest("norm", nn.BatchNorm2d), channels=2).bias
        Parameter containing:
        tensor([..., ...], requires_grad=True)
    """
    block = under_test.block(channels, seed=seed)
    random = torch.Generator().manual_seed(1000 + seed)
    with torch.no_grad():
        for parameter in block.parameters():
            # Noise as large as a usual initialization: 1 / sqrt(fan-in), and 1/2 for biases and
            # scales.
            fan = max(1, parameter.numel() // max(1, len(parameter))) if parameter.ndim > 1 else 4
            parameter.add_(torch.randn(parameter.shape, generator=random), alpha=fan**-0.5)
    return block


def _values_differ(first: object, other: object) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(other, torch.Tensor):
        return not torch.equal(first, other)
    return first is not other


PERTURBATION = 0.03
MIN_SENSITIVITY = 1e-2
_NUM_SEEDS = 8


def depends_on_input(under_test: BlockUnderTest) -> CheckResult:
    """Check that the gate depends on the input, for every number of channels.

    The input is perturbed for four images and eight sets of weights, and the weights at each tap
    must change in a quarter of the cases; an inactive ReLU may block the others. A softmax that
    saturates for large features is tested with small ones too. For a block without a tap the output
    must not be linear in the features, as it is with a constant gate (a ReLU on the features
    themselves would hide a constant gate).

    Example:
        >>> block = BlockUnderTest("a convolution", lambda c: nn.Conv2d(c, c, 1), widths=(4,))
        >>> depends_on_input(block)
        CheckResult(passed=False, details='C=4: the gate is constant (...e-... of the change ...)')
    """
    still: list[str] = []
    least = float("inf")
    for channels in under_test.widths:
        moves = _sensitivities(under_test, channels, 1.0)
        if min(moves.values(), default=1.0) < MIN_SENSITIVITY:
            soft = _sensitivities(under_test, channels, 0.1)
            moves = {site: max(moved, soft.get(site, 0.0)) for site, moved in moves.items()}
        for site, moved in moves.items():
            least = min(least, moved)
            if moved < MIN_SENSITIVITY:
                still.append(f"C={channels}: the gate is constant ({moved:.1g} of {site})")
    return failed("; ".join(still)) if still else passed(f"changes by {least:.2g} or more")


def _sensitivities(under_test: BlockUnderTest, channels: int, loudness: float) -> dict[str, float]:
    """Return the relative change of each gate, as the upper quartile over all cases."""
    results: dict[str, list[Tensor]] = {}
    for seed in range(_NUM_SEEDS):
        block = perturbed_block(under_test, channels=channels, seed=seed).double().eval()
        x = loudness * under_test.features(4, channels=channels, seed=seed).double()
        step = under_test.features(4, channels=channels, seed=seed + 99).double()
        step = PERTURBATION * loudness * step
        measure = _tap_sensitivity if _find_taps(block) else _output_curvature
        with error_context(f"C={channels}, float64"), torch.no_grad():
            for site, moved in measure(block, x, step).items():
                results.setdefault(site, []).append(moved)
    return {site: float(torch.cat(moved).quantile(0.75)) for site, moved in results.items()}


def _tap_sensitivity(
    block: nn.Module, x: Float[Tensor, "b c y x"], step: Float[Tensor, "b c y x"]
) -> dict[str, Tensor]:
    before = _tap_values(block, x)
    after = _tap_values(block, x + step)
    return {
        site: _rms(after[site] - gate) / _rms(gate).clamp_min(1e-30) / PERTURBATION
        for site, gate in before.items()
    }


def _output_curvature(
    block: nn.Module, x: Float[Tensor, "b c y x"], step: Float[Tensor, "b c y x"]
) -> dict[str, Tensor]:
    ahead = block(x + step)
    here = block(x)
    behind = block(x - step)
    bent = _rms(ahead - 2 * here + behind) / _rms(here).clamp_min(1e-30)
    return {"the change of the output": bent / PERTURBATION**2}


def _rms(values: Float[Tensor, "b c *axes"]) -> Float[Tensor, " b"]:
    return values.flatten(1).square().mean(1).sqrt()


def _tap_values(block: nn.Module, x: Float[Tensor, "b c y x"]) -> dict[str, Tensor]:
    """Return the weights at each tap, without softmax weights of a single channel."""
    values: dict[str, Tensor] = {}
    with _collect_taps(block, values):
        block(x)
    return values


@contextmanager
def _collect_taps(block: nn.Module, values: dict[str, Tensor]) -> Generator[None]:
    with ExitStack() as hooks:
        for name, tap in _find_taps(block).items():

            def keep(
                _: nn.Module, output: tuple[Tensor], weights: Tensor, name: str = name
            ) -> None:
                single = getattr(block, "channels", 0) == 1
                if not (single and bool((output[0] == 1).all())):  # a softmax over one channel
                    values[f"the change at {name}"] = weights

            hooks.callback(tap.register_forward_hook(keep).remove)
        yield


def _find_taps(block: nn.Module) -> dict[str, Tap]:
    modules = cast("Iterable[tuple[str, nn.Module]]", block.named_modules())
    return {name: module for name, module in modules if isinstance(module, Tap)}


SIZES = ((32, 32), (20, 33), (7, 7), (5, 3), (1, 9), (1, 1))
_TORCH_MESSAGE = "Expected more than 1 value per channel"


def preserves_shape(under_test: BlockUnderTest) -> CheckResult:
    """Check that the shape is preserved for any size, in evaluation and training mode.

    Example:
        >>> preserves_shape(BlockUnderTest("batch norm", torch.nn.BatchNorm2d)).passed
        True
    """
    for mode, training in _MODES:
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
        for mode, training in _MODES:
            x = under_test.features(channels=channels)
            checked_forward(block.train(training), x, f"C={channels}, {mode}")
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
    measured = ", ".join(f"{name} {off:.1e}" for name, off in worst.items())
    return _check_autocast(under_test, measured)


def _half_cases(
    under_test: BlockUnderTest, kind: torch.dtype
) -> list[tuple[tuple[int, int], float, str]]:
    """Return sizes and scales; bfloat16 has the range of float32 and needs no large scale."""
    height, width = LARGE_SIZE
    small = (under_test.size, 1.0, f"{under_test.size[0]}x{under_test.size[1]}")
    loud = (LARGE_SIZE, LARGE_SCALE, f"{height}x{width}, large")
    return [small, loud] if kind == torch.float16 else [small]


def _check_autocast(under_test: BlockUnderTest, measured: str) -> CheckResult:
    block = under_test.block().train()
    x = under_test.features().requires_grad_()
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
    for mode, training in _MODES:
        for scale in SCALES:
            case = f"x{scale:g}, {mode}"
            block = under_test.block().train(training)
            x = (under_test.features() * scale).requires_grad_()
            backward(checked_forward(block, x, case).mean())
            gradients = [x.grad, *(parameter.grad for parameter in block.parameters())]
            if not all(slope is None or slope.isfinite().all() for slope in gradients):
                return failed(f"{case}: a gradient is not finite")
    return passed("x 1e-4 to 1e4")


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
    size = (3, 5) if under_test.size == (11, 13) else under_test.size  # smaller than the default
    x = under_test.features(2, size=size).double().requires_grad_()
    with error_context("float64"):
        right = torch.autograd.gradcheck(
            block, (x,), eps=1e-5, atol=1e-4, fast_mode=True, raise_exception=False
        )
    if not right:
        return failed("differs from finite differences in float64")
    return passed("matches finite differences")
