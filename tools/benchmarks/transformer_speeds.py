"""Vision Transformers timed beside those of others, what they hold, and what looking costs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.attention_growth import growths, write_page
from benchmarks.clocks import in_turn
from benchmarks.peak_memories import peak_memory
from benchmarks.transformer_rivals import CASES, WATCHED, alike, forward_of, hands, made
from visattn.recording.recorder import record

PARTS = ("speed", "memory", "rows", "growth")
PASSES = ("forward", "forward + backward")
FLOORS = {"timm": 0.97, "vit-pytorch": 1.0}
SECONDS = 6.0


class Figure(NamedTuple):
    """One thing that was measured.

    Args:
        title: What it is.
        amounts: By whose it is, or how it was done: seconds, or megabytes.
        ratio: What it comes to.
        least: The smallest in any round; the ratio itself where there was but one.
        most: The largest.
        meant: What the ratio is to be.
    """

    title: str
    amounts: dict[str, float]
    ratio: float
    least: float
    most: float
    meant: str

    def __str__(self) -> str:
        """Return it in a line."""
        told = ", ".join(f"{name} {amount:.3f}" for name, amount in self.amounts.items())
        spread = f"{self.least:.2f} to {self.most:.2f}; {self.meant}"
        return f"{self.title}: {told}; {self.ratio:.3f} ({spread})"


def figures(parts: Sequence[str], *, rounds: int, page: Path | None) -> Iterator[Figure]:
    """Measure one part after the other; the page is that of the growth.

    Raises:
        AssertionError: If our model and timm's do not give the same.
    """
    torch.manual_seed(0)
    if "speed" in parts:
        yield from speeds(rounds)
    if "memory" in parts:
        yield from memories()
    if "rows" in parts:
        yield watched_rows(rounds)
    if "growth" in parts:
        found = growths(rounds)
        if page:
            write_page(page, found, rounds=rounds)
        for growth in found:
            spent = dict(zip(map(str, growth.tokens), growth.seconds, strict=True))
            title = f"seconds by tokens, {growth.kind} attention; slope"
            slope = growth.slope
            yield Figure(title, spent, slope, slope, slope, growth.meant)


def speeds(rounds: int) -> Iterator[Figure]:
    """Time each size, forward and backward; the ratio is theirs to ours."""
    for case in CASES:
        models = alike(case)
        images = torch.randn(case.batch, 3, 224, 224)
        for passed in PASSES:
            ways = {
                hand: runner(model, images, learning=passed == PASSES[1])
                for hand, model in models.items()
            }
            timings = in_turn(ways, rounds, seconds_at_least=SECONDS)
            for hand in list(ways)[1:]:
                seconds = {name: timings[name].seconds for name in ("ours", hand)}
                title = f"{case.title}, {case.batch} images, {passed}, s; {hand} / ours"
                yield Figure(
                    title, seconds, *timings[hand][1:], f"at least {FLOORS[hand]} is meant"
                )


def runner(model: nn.Module, images: Tensor, *, learning: bool) -> Callable[[], object]:
    """Return what runs a model once, for scores alone or for slopes too."""
    model.train(learning)
    forward = forward_of(model)

    def score() -> None:
        model.eval()
        with torch.no_grad():
            forward(images)

    def learn() -> None:
        model.train()
        model.zero_grad()
        forward(images).square().mean().backward()

    return learn if learning else score


def memories() -> Iterator[Figure]:
    """Measure what a step holds, each in a process of its own; the ratio is ours to theirs."""
    for case in CASES:
        held: Mapping[str, float | None] = {hand: peak_memory(hand, case) for hand in hands()}
        known = {hand: amount for hand, amount in held.items() if amount is not None}
        for hand in list(known)[1:]:
            ratio = known["ours"] / known[hand]
            amounts = {name: known[name] for name in ("ours", hand)}
            title = f"{case.title}, {case.batch} images, forward + backward, MB; ours / {hand}"
            yield Figure(title, amounts, ratio, ratio, ratio, "at most 1 is meant")


def watched_rows(rounds: int) -> Figure:
    """Time a forward pass while the rows of the class token are recorded in all layers."""
    model = made("ours", WATCHED).eval()
    forward, images = forward_of(model), torch.randn(WATCHED.batch, 3, 224, 224)
    kept: list[int] = []

    @torch.no_grad()
    def plain() -> None:
        forward(images)

    @torch.no_grad()
    def watched() -> None:
        with record(model, queries="class") as seen:
            forward(images)
        kept.append(sum(weights.nbytes for weights in seen.weights))

    timings = in_turn({"ours": plain, "recorded": watched}, rounds, seconds_at_least=SECONDS)
    _, ratio, least, most = timings["recorded"]
    size = kept[-1] / WATCHED.batch / 2**20
    return Figure(
        f"{WATCHED.title}, {WATCHED.batch} images, forward, s; class rows of all layers recorded "
        f"({size:.2f} MiB an image) / not",
        {name: timing.seconds for name, timing in timings.items()},
        ratio,
        least,
        most,
        "at most 1.1 is meant, and 1 MiB",
    )
