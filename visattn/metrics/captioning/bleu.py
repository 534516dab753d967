"""Runs of one to four words, counted: what BLEU and CIDEr-D both compare."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

MAX_ORDER = 4  # the longest run

Ngram = tuple[str, ...]


class NgramCounts(NamedTuple):
    """A caption as BLEU and CIDEr-D see it."""

    length: int  # in words
    counts: tuple[Counter[Ngram], ...]  # of runs of 1, 2, 3 and 4 words


def ngram_counts(words: Sequence[str]) -> NgramCounts:
    """Return how often each run of one to four words occurs.

    Example:
        >>> ngram_counts(["a", "dog", "a", "dog"]).counts[1]
        Counter({('a', 'dog'): 2, ('dog', 'a'): 1})
    """
    runs = (
        zip(*(words[first:] for first in range(n)), strict=False) for n in range(1, MAX_ORDER + 1)
    )
    return NgramCounts(len(words), tuple(Counter(run) for run in runs))


# So that no match is almost nothing, and no run to match does not divide by zero.
_TINY, _SMALL = 1e-15, 1e-9


def bleu_scores(
    captions: Sequence[NgramCounts], references: Sequence[Sequence[NgramCounts]]
) -> tuple[list[float], list[list[float]]]:
    """Return BLEU-1 to BLEU-4 of all captions together, and of each alone; 0 to 1.

    The first is no mean of the second: matches are counted over all captions and then divided. A
    caption is measured against the reference whose length is closest; of two as close, the shorter.

    Args:
        captions: One per image.
        references: At least one per image.

    Example:
        >>> from visattn.metrics.captioning.bleu import ngram_counts
        >>> said, told = (ngram_counts(text.split()) for text in ("a dog runs", "a dog sits"))
        >>> [round(score, 4) for score in bleu_scores([said], [[told]])[0]]
        [0.6667, 0.5774, 0.0, 0.0]

    Source:
        Papineni et al. 2002, section 2, with the constants of the evaluation code of COCO.
    """
    rows = [_counted(caption, told) for caption, told in zip(captions, references, strict=True)]
    together = [sum(column) for column in zip(*rows, strict=True)]
    return _scores(together), [_scores(row) for row in rows]


def _counted(caption: NgramCounts, references: Sequence[NgramCounts]) -> list[int]:
    """Return length, closest length of a reference, and matches per order."""
    lengths = (reference.length for reference in references)
    closest = min(lengths, key=lambda length: (abs(length - caption.length), length))
    matches = [
        sum(
            min(count, max(reference.counts[n][gram] for reference in references))
            for gram, count in caption.counts[n].items()
        )
        for n in range(MAX_ORDER)
    ]
    runs = [max(0, caption.length - n) for n in range(MAX_ORDER)]
    return [caption.length, closest, *matches, *runs]


def _scores(row: Sequence[int]) -> list[float]:
    length, closest = row[:2]
    ratio = (length + _TINY) / (closest + _SMALL)
    brevity = math.exp(1 - 1 / ratio) if ratio < 1 else 1.0
    scores: list[float] = []
    product = 1.0
    for n, (matches, runs) in enumerate(
        zip(row[2 : 2 + MAX_ORDER], row[2 + MAX_ORDER :], strict=True), 1
    ):
        product *= (matches + _TINY) / (runs + _SMALL)
        scores.append(product ** (1 / n) * brevity)
    return scores
