"""How the cost of attention grows with the number of tokens."""

import math
import platform
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.clocks import in_turn
from visattn.blocks.transformer.attention import Kind, TokenAttention
from visattn.blocks.transformer.token_layout import TokenLayout

KINDS: dict[Kind, tuple[str, str]] = {
    "full": ("#444444", "2 in the long run"),
    "window": ("#0072b2", "at most 1.15 is meant"),
    "neighborhood": ("#d55e00", "at most 1.15 is meant"),
    "linear": ("#009e73", "at most 1.15 is meant"),
}
SECONDS = 2.0  # at least, of each size
SIDES = (14, 28, 42, 56, 84, 112)
WIDTH, HEADS, EXTENT = 192, 3, 7


class Growth(NamedTuple):
    """What one kind of attention takes.

    Args:
        kind: As models name it.
        tokens: How many there were.
        seconds: Medians.
    """

    kind: Kind
    tokens: tuple[int, ...]
    seconds: tuple[float, ...]

    @property
    def slope(self) -> float:
        """By which power of the number of tokens seconds grow: least squares of logarithms."""
        points = [list(map(math.log, values)) for values in (self.tokens, self.seconds)]
        return statistics.linear_regression(points[0], points[1]).slope

    @property
    def last(self) -> float:
        """The same between the last two."""
        (some, more), (before, after) = self.tokens[-2:], self.seconds[-2:]
        return math.log(after / before) / math.log(more / some)

    @property
    def meant(self) -> str:
        """What the slope is to be."""
        return KINDS[self.kind][1]


def growths(rounds: int) -> list[Growth]:
    """Time a layer of each kind, forward, at each size of a square grid, in turn."""
    layers = {
        kind: TokenAttention(WIDTH, heads=HEADS, kind=kind, extent=(EXTENT, EXTENT)).eval()
        for kind in KINDS
    }
    spent: dict[Kind, list[float]] = {kind: [] for kind in KINDS}
    for side in SIDES:
        ways = {kind: runner(layer, side) for kind, layer in layers.items()}
        named = {"ours" if kind == "full" else kind: way for kind, way in ways.items()}
        timings = in_turn(named, rounds, seconds_at_least=SECONDS)
        for kind, seconds in spent.items():
            seconds.append(timings["ours" if kind == "full" else kind].seconds)
    tokens = tuple(side * side for side in SIDES)
    return [Growth(kind, tokens, tuple(seconds)) for kind, seconds in spent.items()]


def runner(layer: TokenAttention, side: int) -> Callable[[], object]:
    """Return what runs a layer once, on one image."""
    tokens, layout = torch.randn(1, side * side, WIDTH), TokenLayout((side, side))

    @torch.no_grad()
    def run() -> None:
        layer(tokens, layout)

    return run


# ------------------------------------------------------------------ the page


def write_page(page: Path, found: Sequence[Growth], *, rounds: int) -> None:
    """Write a page of Markdown and, beside it, its image."""
    image = page.with_suffix(".png")
    draw(image, found)
    page.write_text(markdown(found, rounds=rounds, image=image.name), encoding="utf-8")


def markdown(found: Sequence[Growth], *, rounds: int, image: str) -> str:
    """Return the page."""
    lines = [
        "# How the cost of attention grows",
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
        f"| tokens | {' | '.join(growth.kind for growth in found)} |",
        "|---|" + "---|" * len(found),
    ]
    for row, tokens in enumerate(found[0].tokens):
        lines.append(_row(f"{tokens:,}", [growth.seconds[row] * 1000 for growth in found], 1))
    lines.append(_row("slope", [growth.slope for growth in found], 2))
    lines.append(_row("slope, last two", [growth.last for growth in found], 2))
    command = (
        "`python tools/benchmark.py transformers --only growth --table docs/attention_growth.md`"
    )
    return "\n".join([*lines, "", command, ""])


def _row(name: str, numbers: Sequence[float], digits: int) -> str:
    return f"| {name} | {' | '.join(f'{number:.{digits}f}' for number in numbers)} |"


def draw(image: Path, found: Sequence[Growth]) -> None:
    """Draw a line for each kind, its name and slope at the end of it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.4), dpi=120, layout="constrained")
    axes = figure.subplots()
    for growth in found:
        color = KINDS[growth.kind][0]
        times = [second * 1000 for second in growth.seconds]
        axes.loglog(growth.tokens, times, "o-", color=color, markersize=4, linewidth=1.6)
    for growth, place in zip(found, label_places(found), strict=True):
        axes.annotate(
            f"{growth.kind}, slope {growth.slope:.2f}",
            (growth.tokens[-1], place),
            (8, 0),
            textcoords="offset points",
            color=KINDS[growth.kind][0],
            va="center",
            annotation_clip=False,
        )
    ticks = found[0].tokens
    axes.set_xticks(ticks, [f"{tokens:,}" for tokens in ticks])
    axes.minorticks_off()
    axes.set_xlabel("tokens")
    axes.set_ylabel("milliseconds, one layer, one image")
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(color="#dddddd", linewidth=0.6)
    figure.savefig(image)


def label_places(found: Sequence[Growth], apart: float = 0.055) -> list[float]:
    """Return at which millisecond each label stands: near the end of its line, none on another.

    Args:
        found: One line each.
        apart: How far labels stay from each other, as a share of the height, on logarithms.
    """
    every = [math.log(second * 1000) for growth in found for second in growth.seconds]
    step = apart * max(max(every) - min(every), 1e-9)
    ends = [math.log(growth.seconds[-1] * 1000) for growth in found]
    places, least = list(ends), -math.inf
    for number in sorted(range(len(ends)), key=ends.__getitem__):
        places[number] = least = max(ends[number], least + step)
    return [math.exp(place) for place in places]
