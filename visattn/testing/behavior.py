"""Checks of behavior: batch independence, determinism, inputs and memory formats."""

from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.tap import Tap
from visattn.testing.block_under_test import (
    BlockUnderTest,
    CheckResult,
    checked_forward,
    error_context,
    failed,
    passed,
    relative_error,
)

TOLERANCE = 1e-5


def is_batch_independent(under_test: BlockUnderTest) -> CheckResult:
    """Check that the output of an image does not depend on the other images of the batch.

    Example:
        >>> block = BlockUnderTest("softmax over the batch", lambda channels: nn.Softmax(0))
        >>> is_batch_independent(block)
        CheckResult(passed=False, details='alone and in a batch differ by ...')
    """
    block, x = perturbed_block(under_test).eval(), under_test.features(3)
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
    block, x = perturbed_block(under_test).eval(), under_test.features()
    before = {name: value.clone() for name, value in block.state_dict().items()}
    with torch.no_grad():
        first, second = (
            checked_forward(block, x, "first run"),
            checked_forward(block, x, "second run"),
        )
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
    for mode, training in (("eval mode", False), ("training mode", True)):
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
    block, x = perturbed_block(under_test).eval(), under_test.features()
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
        step = (
            PERTURBATION
            * loudness
            * under_test.features(4, channels=channels, seed=seed + 99).double()
        )
        measure: Callable[..., dict[str, Tensor]] = (
            _tap_sensitivity if _find_taps(block) else _output_curvature
        )
        with error_context(f"C={channels}, float64"), torch.no_grad():
            for site, moved in measure(block, x, step).items():
                results.setdefault(site, []).append(moved)
    return {site: float(torch.cat(moved).quantile(0.75)) for site, moved in results.items()}


def _tap_sensitivity(
    block: nn.Module, x: Float[Tensor, "b c y x"], step: Float[Tensor, "b c y x"]
) -> dict[str, Tensor]:
    before, after = _tap_values(block, x), _tap_values(block, x + step)
    return {
        site: _rms(after[site] - gate) / _rms(gate).clamp_min(1e-30) / PERTURBATION
        for site, gate in before.items()
    }


def _output_curvature(
    block: nn.Module, x: Float[Tensor, "b c y x"], step: Float[Tensor, "b c y x"]
) -> dict[str, Tensor]:
    ahead, here, behind = block(x + step), block(x), block(x - step)
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
                if not _is_single_channel_softmax(block, output[0]):
                    values[f"the change at {name}"] = weights

            hooks.callback(tap.register_forward_hook(keep).remove)
        yield


def _is_single_channel_softmax(block: nn.Module, weights: Tensor) -> bool:
    return getattr(block, "channels", 0) == 1 and bool((weights == 1).all())


def _find_taps(block: nn.Module) -> dict[str, Tap]:
    parts = cast("Iterable[tuple[str, nn.Module]]", block.named_modules())
    return {name: part for name, part in parts if isinstance(part, Tap)}
