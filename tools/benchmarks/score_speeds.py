"""Speed of rewards of self-critical training, and of the scores of maps by removal."""

import statistics
import time
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.perturbation_speeds import removal_figure
from benchmarks.transformer_speeds import SpeedFigure
from visattn.metrics.ngrams import (
    cider_d_score,
    idf_table,
    ngram_counts,
    weighted_cider_d,
    weighted_ngrams,
)

PARTS = ("rewards", "removal")
IMAGES, SAMPLES, REFERENCES, VOCABULARY = 128, 5, 5, 2_000


def score_figures(parts: Sequence[str], *, rounds: int) -> Iterator[SpeedFigure]:
    """Measure one part after the other."""
    if "rewards" in parts:
        yield reward_figure(rounds=rounds)
    if "removal" in parts:
        yield removal_figure(rounds=rounds)


def reward_figure(*, rounds: int) -> SpeedFigure:
    """Time CIDEr-D rewards of a batch, weighting references at each score and once.

    Raises:
        AssertionError: If the rewards differ.
    """
    random = np.random.default_rng(0)
    lengths = iter(random.integers(8, 16, IMAGES * (SAMPLES + REFERENCES)))

    def captions(count: int) -> list[list[str]]:
        ranks = (random.zipf(1.3, next(lengths)) % VOCABULARY for _ in range(count))
        return [[f"word{rank}" for rank in row] for row in ranks]

    references = [[ngram_counts(row) for row in captions(REFERENCES)] for _ in range(IMAGES)]
    samples = [captions(SAMPLES) for _ in range(IMAGES)]
    idf = idf_table(references)
    weighted = [[weighted_ngrams(row, idf) for row in rows] for rows in references]

    def plain() -> list[float]:
        pairs = zip(samples, references, strict=True)
        return [cider_d_score(ngram_counts(row), own, idf) for rows, own in pairs for row in rows]

    def ours() -> list[float]:
        pairs = zip(samples, weighted, strict=True)
        return [
            weighted_cider_d(weighted_ngrams(ngram_counts(row), idf), own)
            for rows, own in pairs
            for row in rows
        ]

    assert plain() == ours()  # noqa: S101
    seconds: dict[str, list[float]] = {"plain": [], "ours": []}
    for _ in range(rounds):
        for name, run in (("plain", plain), ("ours", ours)):
            begin = time.thread_time()
            run()
            seconds[name].append(time.thread_time() - begin)
    ratios = sorted(a / b for a, b in zip(*seconds.values(), strict=True))
    amounts = {name: statistics.median(times) for name, times in seconds.items()}
    return SpeedFigure(
        f"CIDEr-D of {IMAGES} x {SAMPLES} captions, CPU seconds; references weighted again / once",
        amounts, statistics.median(ratios), ratios[0], ratios[-1], "target: 1.7 or more",
    )  # fmt: skip
