"""Speed of blocks compared with timm and plain implementations, with a table."""

import copy
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from visattn.blocks.registry import create_block, list_blocks
from visattn.testing.behavior import perturbed_block
from visattn.testing.block_under_test import registered_block

from .clocks import Timing, in_turn
from .plain_gates import GATES
from .plain_mixers import MIXERS
from .rivals import RIVALS

SHAPES = ((32, 256, 56, 56), (8, 64, 112, 112))
SECONDS = 6.0  # minimum, per comparison
PASSES = ("forward", "forward + backward")
PLAIN = {**GATES, **MIXERS}

# Floats that an implementation stores per pair of positions and head.
PAIRS: dict[str, dict[str, int]] = {
    "nonlocal": {"plain": 2, "timm": 2},
    "danet": {"plain": 2},
    "botnet": {"ours": 12, "plain": 16, "timm": 16},
}


@dataclass(frozen=True)
class Speed:
    """Timings of one block at one shape, forward or with backward.

    Args:
        block: Name of the block.
        shape: Batch, channels, height, width.
        passed: One of `PASSES`.
        timings: Timings of `ours`, `timm` and `plain`.
        left_out: Reasons for implementations that were not timed.
    """

    block: str
    shape: tuple[int, ...]
    passed: str
    timings: dict[str, Timing]
    left_out: dict[str, str]

    def __str__(self) -> str:
        """Return a summary line."""
        others = [f"{name} {_ratio(self.timings.get(name))}" for name in ("timm", "plain")]
        ours = self.timings.get("ours")
        first = f"{ours.seconds * 1000:.1f} ms" if ours else self.left_out["ours"]
        return f"{self.block} {_shape(self.shape)} {self.passed}: ours {first}, {', '.join(others)}"


def time_blocks(
    blocks: Sequence[str], shapes: Sequence[tuple[int, ...]], *, rounds: int, max_gigabytes: float
) -> Iterator[Speed]:
    """Time blocks, one shape and pass after another.

    Raises:
        ValueError: If there is no such block, or if a block and its plain version disagree.
    """
    if unknown := sorted(set(blocks) - set(list_blocks())):
        raise ValueError(
            f"there is no block {', '.join(unknown)}; choose from {', '.join(list_blocks())}"
        )
    for block in blocks:
        check_same(block)
        for shape in shapes:
            for passed in PASSES:
                yield time_block(block, shape, passed, rounds=rounds, max_gigabytes=max_gigabytes)


def time_block(
    block: str, shape: tuple[int, ...], passed: str, *, rounds: int, max_gigabytes: float
) -> Speed:
    """Time one block, timm's and the plain one, unless one needs too much memory."""
    torch.manual_seed(0)
    _, channels, height, width = shape
    x, grad = torch.randn(shape), torch.randn(shape)
    ours = create_block(block, channels)
    modules: dict[str, Callable[[], nn.Module]] = {
        "ours": lambda: ours,
        "plain": lambda: PlainBlock(block, copy.deepcopy(ours)),
    }
    if block in RIVALS:
        modules["timm"] = lambda: RIVALS[block](channels, (height, width))
    runs, left_out = {}, {}
    for name, make in modules.items():
        if (needed := gigabytes_of_pairs(block, name, shape)) > max_gigabytes:
            left_out[name] = f"needs {needed:.0f} GB"
        else:
            runs[name] = _runner(make(), x, grad, training=passed == PASSES[1])
    timings = in_turn(runs, rounds, seconds_at_least=SECONDS) if "ours" in runs else {}
    return Speed(block, shape, passed, timings, left_out)


def gigabytes_of_pairs(block: str, implementation: str, shape: tuple[int, ...]) -> float:
    """Return the memory of pairwise attention weights."""
    batch, _, height, width = shape
    return PAIRS.get(block, {}).get(implementation, 0) * batch * (height * width) ** 2 * 4 / 10**9


def check_same(block: str) -> None:
    """Raise unless a block and its plain version agree in output and input gradient."""
    under_test = replace(registered_block(block), channels=64)
    ours = perturbed_block(under_test).eval()
    plain = PlainBlock(block, copy.deepcopy(ours)).eval()
    results: list[list[Tensor]] = []
    for module in (ours, plain):
        x = under_test.features().requires_grad_()
        y = module(x)
        results.append([y.detach(), *torch.autograd.grad(y.square().mean(), x)])
    for ours_result, plain_result in zip(*results, strict=True):
        difference = (ours_result - plain_result).abs().max()
        error = float(difference / plain_result.abs().max())
        if not error < 1e-4:
            raise ValueError(f"{block}: ours and the plain version differ by {error:.2g}")


class PlainBlock(nn.Module):
    """Plain implementation with the weights of a block."""

    def __init__(self, name: str, block: nn.Module) -> None:
        super().__init__()
        self.name, self.block = name, block

    def forward(self, x: Tensor) -> Tensor:
        """Apply the plain implementation."""
        return PLAIN[self.name](self.block, x)


def _runner(module: nn.Module, x: Tensor, grad: Tensor, *, training: bool) -> Callable[[], object]:
    module.train(training)

    def forward() -> None:
        with torch.no_grad():
            module(x)

    def both() -> None:
        module.zero_grad()
        features = x.detach().requires_grad_()
        torch.autograd.backward(module(features), grad)

    return both if training else forward


# ------------------------------------------------------------------ the table


def markdown(speeds: Sequence[Speed], *, rounds: int) -> str:
    """Return a page with a table for each shape and pass."""
    timed = list(dict.fromkeys(speed.block for speed in speeds))
    only = "" if timed == list(list_blocks()) else f" --only {' '.join(timed)}"
    lines = [
        "# Speed of the blocks",
        "",
        "Time of other implementations divided by the time of visattn: above 1, visattn is faster. "
        "Medians over "
        f"{rounds} or more interleaved rounds, minimum and maximum in parentheses; "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}, "
        "float32. Features are batch x channels x height x width. Forward: evaluation mode, no "
        "gradient. Plain: a direct implementation of the equation with the same weights and the "
        "same result. timm: its block of the same widths.",
        "",
        f"`python tools/benchmark.py blocks --rounds {rounds}{only} "
        "--table docs/notes/blocks_speed.md`",
    ]
    for shape, passed in dict.fromkeys((speed.shape, speed.passed) for speed in speeds):
        lines += ["", f"## {passed.capitalize()}, {_shape(shape)}", ""]
        lines += ["| block | ours, ms | timm / ours | plain / ours |", "|---|---|---|---|"]
        lines += [_row(speed) for speed in speeds if (speed.shape, speed.passed) == (shape, passed)]
    return "\n".join([*lines, ""])


def _row(speed: Speed) -> str:
    ours = speed.timings.get("ours")
    cells = [speed.block, f"{ours.seconds * 1000:.1f}" if ours else speed.left_out["ours"]]
    others = ("timm", "plain")
    cells += [speed.left_out.get(name) or _ratio(speed.timings.get(name)) for name in others]
    return f"| {' | '.join(cells)} |"


def _ratio(timing: Timing | None) -> str:
    if timing is None:
        return "–"
    return f"{timing.ratio:.2f} ({timing.least:.2f} to {timing.most:.2f})"


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
