"""The check that tells a gate from a constant: it must know its input."""

from collections.abc import Callable, Generator, Iterable
from contextlib import ExitStack, contextmanager
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.conformance.habits import awakened
from visattn.blocks.conformance.subjects import Candidate, Finding, facing, failed, stood
from visattn.blocks.taps import Tap

STEP = 0.03
LEAST = 1e-2
_SEEDS = 8


def looks_at_input(subject: Candidate) -> Finding:
    """Say whether the gate moves with its input, at every width.

    Features are moved a little, for four pictures and eight sets of weights, and what passes each
    tap must move along in a quarter of the cases: a rectifier may sleep in the others. A softmax
    may have one winner among loud features: then it must move among soft ones. A block without
    a tap is judged by what it gives: under a constant gate that would be linear in the features.
    (So a rectifier among the features themselves hides a constant gate.)

    Example:
        >>> looks_at_input(Candidate("a convolution", lambda c: nn.Conv2d(c, c, 1), widths=(4,)))
        Finding(passed=False, said='C=4: the gate stays (...e-... of the move in the output)')
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


def _moves(subject: Candidate, channels: int, loudness: float) -> dict[str, float]:
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
