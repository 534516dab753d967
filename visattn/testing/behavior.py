"""Checks of habits: each image for itself, the same twice, hands off the input."""

from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.tap import Tap
from visattn.testing.candidate import (
    BlockUnderTest,
    CheckResult,
    answered,
    distance,
    facing,
    failed,
    stood,
)

CLOSE = 1e-5


def sees_each_alone(subject: BlockUnderTest) -> CheckResult:
    """Say whether an image comes back the same alone and among others.

    Example:
        >>> block = BlockUnderTest("softmax over the batch", lambda channels: nn.Softmax(0))
        >>> sees_each_alone(block)
        CheckResult(passed=False, said='alone and in a batch differ by ...')
    """
    block, x = awakened(subject).eval(), subject.features(3)
    with torch.no_grad():
        together = answered(block, x, "batch of 3")
        alone = [answered(block, x[[row]], "batch of 1") for row in range(3)]
    off = distance(torch.cat(alone), together)
    if off > CLOSE:
        return failed(f"alone and in a batch differ by {off:.2g} of the largest value")
    return stood(f"differs by {off:.0e}")


def repeats_itself(subject: BlockUnderTest) -> CheckResult:
    """Say whether the same features give exactly the same again, and leave no trace in the block.

    Example:
        >>> class Coin(nn.Dropout):
        ...     def forward(self, input):
        ...         return nn.functional.dropout(input)
        >>> repeats_itself(BlockUnderTest("coin", lambda channels: Coin())).passed
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


def leaves_input(subject: BlockUnderTest) -> CheckResult:
    """Say whether the features that are handed in stay what they were.

    Example:
        >>> leaves_input(BlockUnderTest("in place", lambda channels: nn.ReLU(inplace=True)))
        CheckResult(passed=False, said='in use, 100% of rows of the input are written over')
    """
    for mode, training in (("in use", False), ("in training", True)):
        x = subject.features()
        kept = x.clone()
        answered(subject.block().train(training), x, mode)
        changed = (x != kept).flatten(1).any(1).float().mean()
        if changed:
            return failed(f"{mode}, {float(changed):.0%} of rows of the input are written over")
    return stood("untouched")


def ignores_layout(subject: BlockUnderTest) -> CheckResult:
    """Say whether channels-last and cut-out features give what contiguous ones give.

    Example:
        >>> ignores_layout(BlockUnderTest("sigmoid", lambda channels: nn.Sigmoid()))
        CheckResult(passed=True, said='channels last, cut out')
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


def awakened(subject: BlockUnderTest, *, channels: int | None = None, seed: int = 0) -> nn.Module:
    """Return a block none of whose parameters is zero any more, as if it had been trained.

    Example:
        >>> awakened(BlockUnderTest("norm", nn.BatchNorm2d), channels=2).bias
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


STEP = 0.03
LEAST = 1e-2
_SEEDS = 8


def looks_at_input(subject: BlockUnderTest) -> CheckResult:
    """Say whether the gate moves with its input, at every width.

    Features are moved a little, for four images and eight sets of weights, and what passes each
    tap must move along in a quarter of the cases: a rectifier may sleep in the others. A softmax
    may have one winner among loud features: then it must move among soft ones. A block without
    a tap is judged by what it gives: under a constant gate that would be linear in the features.
    (So a rectifier among the features themselves hides a constant gate.)

    Example:
        >>> block = BlockUnderTest("a convolution", lambda c: nn.Conv2d(c, c, 1), widths=(4,))
        >>> looks_at_input(block)
        CheckResult(passed=False, said='C=4: the gate stays (...e-... of the move in the output)')
    """
    still: list[str] = []
    least = float("inf")
    for channels in subject.widths:
        moves = _moves(subject, channels, 1.0)
        if min(moves.values(), default=1.0) < LEAST:
            soft = _moves(subject, channels, 0.1)
            moves = {site: max(moved, soft.get(site, 0.0)) for site, moved in moves.items()}
        for site, moved in moves.items():
            least = min(least, moved)
            if moved < LEAST:
                still.append(f"C={channels}: the gate stays ({moved:.1g} of {site})")
    return failed("; ".join(still)) if still else stood(f"moves by {least:.2g} or more")


def _moves(subject: BlockUnderTest, channels: int, loudness: float) -> dict[str, float]:
    """Return how much each gate moves beside the features, where three of four move less."""
    found: dict[str, list[Tensor]] = {}
    for seed in range(_SEEDS):
        block = awakened(subject, channels=channels, seed=seed).double().eval()
        x = loudness * subject.features(4, channels=channels, seed=seed).double()
        step = STEP * loudness * subject.features(4, channels=channels, seed=seed + 99).double()
        measure: Callable[..., dict[str, Tensor]] = _of_taps if _taps(block) else _of_output
        with facing(f"C={channels}, float64"), torch.no_grad():
            for site, moved in measure(block, x, step).items():
                found.setdefault(site, []).append(moved)
    return {site: float(torch.cat(moved).quantile(0.75)) for site, moved in found.items()}


def _of_taps(
    block: nn.Module, x: Float[Tensor, "b c y x"], step: Float[Tensor, "b c y x"]
) -> dict[str, Tensor]:
    before, after = _tapped(block, x), _tapped(block, x + step)
    return {
        site: _size(after[site] - gate) / _size(gate).clamp_min(1e-30) / STEP
        for site, gate in before.items()
    }


def _of_output(
    block: nn.Module, x: Float[Tensor, "b c y x"], step: Float[Tensor, "b c y x"]
) -> dict[str, Tensor]:
    ahead, here, behind = block(x + step), block(x), block(x - step)
    bent = _size(ahead - 2 * here + behind) / _size(here).clamp_min(1e-30)
    return {"the move in the output": bent / STEP**2}


def _size(values: Float[Tensor, "b c *axes"]) -> Float[Tensor, " b"]:
    return values.flatten(1).square().mean(1).sqrt()


def _tapped(block: nn.Module, x: Float[Tensor, "b c y x"]) -> dict[str, Tensor]:
    """Return what passes each tap, but no shares of a single channel: they must be one."""
    seen: dict[str, Tensor] = {}
    with _listening(block, seen):
        block(x)
    return seen


@contextmanager
def _listening(block: nn.Module, seen: dict[str, Tensor]) -> Generator[None]:
    with ExitStack() as hooks:
        for name, tap in _taps(block).items():

            def keep(_: nn.Module, given: tuple[Tensor], weights: Tensor, name: str = name) -> None:
                if not _is_share_of_one(block, given[0]):
                    seen[f"the move at {name}"] = weights

            hooks.callback(tap.register_forward_hook(keep).remove)
        yield


def _is_share_of_one(block: nn.Module, weights: Tensor) -> bool:
    return getattr(block, "channels", 0) == 1 and bool((weights == 1).all())


def _taps(block: nn.Module) -> dict[str, Tap]:
    parts = cast("Iterable[tuple[str, nn.Module]]", block.named_modules())
    return {name: part for name, part in parts if isinstance(part, Tap)}
