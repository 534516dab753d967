"""Blocks timed against timm's and against plain ones, and the table of it."""

import copy
import platform
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from visattn.blocks.registry import create, names
from visattn.testing.behavior import awakened
from visattn.testing.candidate import catalogd

from .clocks import Timing, in_turn
from .plain_gates import GATES
from .plain_mixers import MIXERS
from .rivals import RIVALS

SHAPES = ((32, 256, 56, 56), (8, 64, 112, 112))
SECONDS = 6.0  # at least, of each comparison
PASSES = ("forward", "forward + backward")
PLAIN = {**GATES, **MIXERS}

# Numbers that a way holds at once for each pair of places, where it lays them out, and head.
PAIRS: dict[str, dict[str, int]] = {
    "nonlocal": {"plain": 2, "timm": 2},
    "danet": {"plain": 2},
    "botnet": {"ours": 12, "plain": 16, "timm": 16},
}


@dataclass(frozen=True)
class Speed:
    """One block at one shape, one way of running it.

    Args:
        block: Its name.
        shape: Batch, channels, height, width.
        passed: One of `PASSES`.
        timings: By `ours`, `timm`, `plain`.
        left_out: Why a way was not timed.
    """

    block: str
    shape: tuple[int, ...]
    passed: str
    timings: dict[str, Timing]
    left_out: dict[str, str]

    def __str__(self) -> str:
        """Return it in a line."""
        said = [f"{name} {_ratio(self.timings.get(name))}" for name in ("timm", "plain")]
        ours = self.timings.get("ours")
        first = f"{ours.seconds * 1000:.1f} ms" if ours else self.left_out["ours"]
        return f"{self.block} {_shape(self.shape)} {self.passed}: ours {first}, {', '.join(said)}"


def speeds(
    blocks: Sequence[str], shapes: Sequence[tuple[int, ...]], *, rounds: int, gigabytes: float
) -> Iterator[Speed]:
    """Time blocks, one shape and pass after another.

    Raises:
        ValueError: If a block and its plain version do not give the same.
    """
    if wrong := sorted(set(blocks) - set(names())):
        raise ValueError(f"no block {', '.join(wrong)}; there are {', '.join(names())}")
    for block in blocks:
        check_same(block)
        for shape in shapes:
            for passed in PASSES:
                yield speed(block, shape, passed, rounds=rounds, gigabytes=gigabytes)


def speed(
    block: str, shape: tuple[int, ...], passed: str, *, rounds: int, gigabytes: float
) -> Speed:
    """Time one block and what it is compared with, except for what would need too much memory."""
    torch.manual_seed(0)
    _, channels, height, width = shape
    x, slope = torch.randn(shape), torch.randn(shape)
    ours = create(block, channels)
    modules: dict[str, Callable[[], nn.Module]] = {
        "ours": lambda: ours,
        "plain": lambda: _Plainly(block, copy.deepcopy(ours)),
    }
    if block in RIVALS:
        modules["timm"] = lambda: RIVALS[block](channels, (height, width))
    ways, left_out = {}, {}
    for name, make in modules.items():
        if (needed := gigabytes_of_pairs(block, name, shape)) > gigabytes:
            left_out[name] = f"would take {needed:.0f} GB"
        else:
            ways[name] = _runner(make(), x, slope, learning=passed == PASSES[1])
    timings = in_turn(ways, rounds, seconds_at_least=SECONDS) if "ours" in ways else {}
    return Speed(block, shape, passed, timings, left_out)


def gigabytes_of_pairs(block: str, way: str, shape: tuple[int, ...]) -> float:
    """Return what the weights of all pairs of places take."""
    batch, _, height, width = shape
    return PAIRS.get(block, {}).get(way, 0) * batch * (height * width) ** 2 * 4 / 10**9


def check_same(block: str) -> None:
    """Raise unless a block and its plain version agree, in what they give and in slopes."""
    subject = replace(catalogd(block), channels=64)
    ours = awakened(subject).eval()
    plain = _Plainly(block, copy.deepcopy(ours)).eval()
    given: list[list[Tensor]] = []
    for module in (ours, plain):
        x = subject.features().requires_grad_()
        y = module(x)
        given.append([y.detach(), *torch.autograd.grad(y.square().mean(), x)])
    for one, other in zip(*given, strict=True):
        off = float((one - other).abs().max() / other.abs().max())
        if not off < 1e-4:
            raise ValueError(f"{block}: ours and the plain one differ by {off:.2g}")


class _Plainly(nn.Module):
    """A plain function around the weights of a block."""

    def __init__(self, name: str, block: nn.Module) -> None:
        super().__init__()
        self.name, self.block = name, block

    def forward(self, x: Tensor) -> Tensor:
        """Return the features under plain attention."""
        return PLAIN[self.name](self.block, x)


def _runner(module: nn.Module, x: Tensor, slope: Tensor, *, learning: bool) -> Callable[[], object]:
    module.train(learning)

    def forward() -> None:
        with torch.no_grad():
            module(x)

    def both() -> None:
        module.zero_grad()
        given = x.detach().requires_grad_()
        torch.autograd.backward(module(given), slope)

    return both if learning else forward


# ------------------------------------------------------------------ the table


def markdown(found: Sequence[Speed], *, rounds: int) -> str:
    """Return a page with a table for each shape and pass."""
    timed = list(dict.fromkeys(one.block for one in found))
    only = "" if timed == list(names()) else f" --only {' '.join(timed)}"
    lines = [
        "# How fast the blocks are",
        "",
        "How many times as long others take for the same: above 1, visattn is faster. Medians over "
        f"{rounds} or more interleaved rounds, smallest and largest in brackets; "
        f"torch {torch.__version__}, {torch.get_num_threads()} threads, {platform.machine()}, "
        "float32. Features are batch x channels x height x width. Forward: evaluation mode, no "
        "gradient. Plain: the equation as one writes it first, with the same weights and the same "
        "result. timm: its block set to the same widths.",
        "",
        f"`python tools/benchmark.py blocks --rounds {rounds}{only} --table docs/blocks_speed.md`",
    ]
    for shape, passed in dict.fromkeys((one.shape, one.passed) for one in found):
        lines += ["", f"## {passed.capitalize()}, {_shape(shape)}", ""]
        lines += ["| block | ours, ms | timm / ours | plain / ours |", "|---|---|---|---|"]
        lines += [_row(one) for one in found if (one.shape, one.passed) == (shape, passed)]
    return "\n".join([*lines, ""])


def _row(one: Speed) -> str:
    ours = one.timings.get("ours")
    cells = [one.block, f"{ours.seconds * 1000:.1f}" if ours else one.left_out["ours"]]
    others = ("timm", "plain")
    cells += [one.left_out.get(name) or _ratio(one.timings.get(name)) for name in others]
    return f"| {' | '.join(cells)} |"


def _ratio(timing: Timing | None) -> str:
    if timing is None:
        return "–"
    return f"{timing.ratio:.2f} ({timing.least:.2f} to {timing.most:.2f})"


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
