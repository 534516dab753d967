"""Scaling of the cost of attention with the number of tokens."""

import math
import platform
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.clocks import in_turn
from visattn.blocks.transformer.token_attention import AttentionType, TokenAttention, TokenLayout

KINDS: dict[AttentionType, tuple[str, str]] = {
    "full": ("#444444", "target: 2 asymptotically"),
    "window": ("#0072b2", "target: at most 1.15"),
    "neighborhood": ("#d55e00", "target: at most 1.15"),
    "linear": ("#009e73", "target: at most 1.15"),
}
SECONDS = 2.0  # minimum, per size
SIDES = (14, 28, 42, 56, 84, 112)
WIDTH, HEADS, EXTENT = 192, 3, 7


class Growth(NamedTuple):
    """Timings of one type of attention.

    Args:
        kind: Type of attention.
        tokens: Numbers of tokens.
        seconds: Median times.
    """

    kind: AttentionType
    tokens: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def slope(self) -> float:
        """Exponent of time as a power of the number of tokens, by least squares."""
        points = [list(map(math.log, values)) for values in (self.tokens, self.seconds)]
        return statistics.linear_regression(points[0], points[1]).slope

    @property
    def last(self) -> float:
        """Exponent between the last two sizes."""
        (few, many), (before, after) = self.tokens[-2:], self.seconds[-2:]
        return math.log(after / before) / math.log(many / few)

    @property
    def target(self) -> str:
        """Target of the slope."""
        return KINDS[self.kind][1]


def time_attention(rounds: int) -> list[Growth]:
    """Time a layer of each kind, forward, at each size of a square grid, in turn."""
    layers = {
        kind: TokenAttention(
            WIDTH, num_heads=HEADS, attn_type=kind, window_size=(EXTENT, EXTENT)
        ).eval()
        for kind in KINDS
    }
    seconds_by_kind: dict[AttentionType, list[float]] = {kind: [] for kind in KINDS}
    for side in SIDES:
        runs = {kind: runner(layer, side) for kind, layer in layers.items()}
        named = {"ours" if kind == "full" else kind: way for kind, way in runs.items()}
        timings = in_turn(named, rounds, seconds_at_least=SECONDS)
        for kind, seconds in seconds_by_kind.items():
            seconds.append(timings["ours" if kind == "full" else kind].seconds)
    tokens = tuple(side * side for side in SIDES)
    return [Growth(kind, tokens, tuple(seconds)) for kind, seconds in seconds_by_kind.items()]


def runner(layer: TokenAttention, side: int) -> Callable[[], object]:
    """Return a function that runs a layer once, on one image."""
    tokens, layout = torch.randn(1, side * side, WIDTH), TokenLayout((side, side))

    @torch.no_grad()
    def run() -> None:
        layer(tokens, layout)

    return run


# ------------------------------------------------------------------ the page


def write_page(page: Path, growths: Sequence[Growth], *, rounds: int) -> None:
    """Write a page of Markdown and, beside it, its image."""
    image = page.with_suffix(".png")
    draw(image, growths)
    page.write_text(markdown(growths, rounds=rounds, image=image.name), encoding="utf-8")


def markdown(growths: Sequence[Growth], *, rounds: int, image: str) -> str:
    """Return the page in Markdown."""
    lines = [
        "# Scaling of attention with the number of tokens",
        "",
        f"Milliseconds of one attention layer on one image, projections included: width {WIDTH}, "
        f"{HEADS} heads, windows and neighborhoods of {EXTENT} x {EXTENT}. Forward, evaluation "
        f"mode; medians over {rounds} or more interleaved rounds; torch {torch.__version__}, "
        f"{torch.get_num_threads()} threads, {platform.machine()}, float32. Slope: the power of "
        "the number of tokens by which milliseconds grow, by least squares over all sizes, and "
        "between the last two.",
        "",
        f"![Milliseconds over tokens, both by powers of ten]({image})",
        "",
        f"| tokens | {' | '.join(growth.kind for growth in growths)} |",
        "|---|" + "---|" * len(growths),
    ]
    for row, tokens in enumerate(growths[0].tokens):
        lines.append(_row(f"{tokens:,}", [growth.seconds[row] * 1000 for growth in growths], 1))
    lines.append(_row("slope", [growth.slope for growth in growths], 2))
    lines.append(_row("slope, last two", [growth.last for growth in growths], 2))
    page = "docs/notes/attention_growth.md"
    command = f"`python tools/benchmark.py transformers --only growth --table {page}`"
    return "\n".join([*lines, "", command, ""])


def _row(name: str, numbers: Sequence[float], digits: int) -> str:
    return f"| {name} | {' | '.join(f'{number:.{digits}f}' for number in numbers)} |"


def draw(image: Path, growths: Sequence[Growth]) -> None:
    """Plot time over tokens, one labeled line per type of attention."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for growth in growths:
        color = KINDS[growth.kind][0]
        times = [second * 1000 for second in growth.seconds]
        axes.loglog(growth.tokens, times, "o-", color=color, markersize=4, linewidth=1.6)
    for growth, position in zip(growths, label_positions(growths), strict=True):
        axes.annotate(
            f"{growth.kind}, slope {growth.slope:.2f}",
            (growth.tokens[-1], position),
            (8, 0),
            textcoords="offset points",
            color=KINDS[growth.kind][0],
            va="center",
            annotation_clip=False,
        )
    ticks = growths[0].tokens
    axes.set_xticks(ticks, [f"{tokens:,}" for tokens in ticks])
    axes.minorticks_off()
    axes.set_xlabel("tokens")
    axes.set_ylabel("milliseconds, one layer, one image")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    figure.savefig(image)


def label_positions(growths: Sequence[Growth], min_distance: float = 0.055) -> list[float]:
    """Return the y position of each label: near the end of its line, without overlaps.

    Args:
        growths: Timings, one per line.
        min_distance: Minimum distance of labels, as a fraction of the logarithmic axis.
    """
    every = [math.log(second * 1000) for growth in growths for second in growth.seconds]
    step = min_distance * max(max(every) - min(every), 1e-9)
    ends = [math.log(growth.seconds[-1] * 1000) for growth in growths]
    positions, lowest = list(ends), -math.inf
    for number in sorted(range(len(ends)), key=ends.__getitem__):
        positions[number] = lowest = max(ends[number], lowest + step)
    return [math.exp(position) for position in positions]
