"""Speed and memory of Vision Transformers compared with other libraries; cost of recording."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.attention_growth import time_attention, write_page
from benchmarks.clocks import in_turn
from benchmarks.peak_memories import peak_memory
from benchmarks.transformer_rivals import (
    CASES,
    RECORDED,
    build_model,
    forward_function,
    libraries,
    matching_models,
)
from visattn.recording.recorder import record

PARTS = ("speed", "memory", "rows", "growth")
PASSES = ("forward", "forward + backward")
FLOORS = {"timm": 0.97, "vit-pytorch": 1.0}
SECONDS = 6.0


class SpeedFigure(NamedTuple):
    """One measurement.

    Args:
        title: What was measured.
        amounts: Seconds or megabytes by library or method.
        ratio: Ratio of two amounts.
        least: Minimum of the ratio over the rounds; the ratio itself for a single round.
        most: Maximum.
        target: Target of the ratio.
    """

    title: str
    amounts: dict[str, float]
    ratio: float
    least: float
    most: float
    target: str

    def __str__(self) -> str:
        """Return a summary line."""
        amounts = ", ".join(f"{name} {amount:.3f}" for name, amount in self.amounts.items())
        spread = f"{self.least:.2f} to {self.most:.2f}; {self.target}"
        return f"{self.title}: {amounts}; {self.ratio:.3f} ({spread})"


def figures(parts: Sequence[str], *, rounds: int, page: Path | None) -> Iterator[SpeedFigure]:
    """Run the parts in order; `page` is the file for the scaling of attention.

    Raises:
        AssertionError: If our model and that of timm disagree.
    """
    torch.manual_seed(0)
    if "speed" in parts:
        yield from speeds(rounds)
    if "memory" in parts:
        yield from memories()
    if "rows" in parts:
        yield recording_speed(rounds)
    if "growth" in parts:
        growths = time_attention(rounds)
        if page:
            write_page(page, growths, rounds=rounds)
        for growth in growths:
            seconds = dict(zip(map(str, growth.tokens), growth.seconds, strict=True))
            title = f"seconds by tokens, {growth.kind} attention; slope"
            slope = growth.slope
            yield SpeedFigure(title, seconds, slope, slope, slope, growth.target)


def speeds(rounds: int) -> Iterator[SpeedFigure]:
    """Time each model size, forward and backward; the ratio is theirs to ours."""
    for case in CASES:
        models = matching_models(case)
        images = torch.randn(case.batch, 3, 224, 224)
        for passed in PASSES:
            runs = {
                library: runner(model, images, training=passed == PASSES[1])
                for library, model in models.items()
            }
            timings = in_turn(runs, rounds, seconds_at_least=SECONDS)
            for library in list(runs)[1:]:
                seconds = {name: timings[name].seconds for name in ("ours", library)}
                title = f"{case.title}, {case.batch} images, {passed}, s; {library} / ours"
                yield SpeedFigure(
                    title, seconds, *timings[library][1:], f"target: at least {FLOORS[library]}"
                )


def runner(model: nn.Module, images: Tensor, *, training: bool) -> Callable[[], object]:
    """Return a function that runs a model once, with or without a backward pass."""
    model.train(training)
    forward = forward_function(model)

    def score() -> None:
        model.eval()
        with torch.no_grad():
            forward(images)

    def learn() -> None:
        model.train()
        model.zero_grad()
        forward(images).square().mean().backward()

    return learn if training else score


def memories() -> Iterator[SpeedFigure]:
    """Measure the peak memory of a step in separate processes; the ratio is ours to theirs."""
    for case in CASES:
        peaks: Mapping[str, float | None] = {
            library: peak_memory(library, case) for library in libraries()
        }
        measured = {library: amount for library, amount in peaks.items() if amount is not None}
        for library in list(measured)[1:]:
            ratio = measured["ours"] / measured[library]
            amounts = {name: measured[name] for name in ("ours", library)}
            title = f"{case.title}, {case.batch} images, forward + backward, MB; ours / {library}"
            yield SpeedFigure(title, amounts, ratio, ratio, ratio, "target: at most 1")


def recording_speed(rounds: int) -> SpeedFigure:
    """Time a forward pass that records the class-token rows of all layers."""
    model = build_model("ours", RECORDED).eval()
    forward, images = forward_function(model), torch.randn(RECORDED.batch, 3, 224, 224)
    num_bytes: list[int] = []

    @torch.no_grad()
    def plain() -> None:
        forward(images)

    @torch.no_grad()
    def recorded() -> None:
        with record(model, queries="class") as records:
            forward(images)
        num_bytes.append(sum(weights.nbytes for weights in records.weights))

    timings = in_turn({"ours": plain, "recorded": recorded}, rounds, seconds_at_least=SECONDS)
    _, ratio, least, most = timings["recorded"]
    size = num_bytes[-1] / RECORDED.batch / 2**20
    return SpeedFigure(
        f"{RECORDED.title}, {RECORDED.batch} images, forward, s; class rows of all layers recorded "
        f"({size:.2f} MiB an image) / not",
        {name: timing.seconds for name, timing in timings.items()},
        ratio,
        least,
        most,
        "target: at most 1.1, and 1 MiB",
    )
