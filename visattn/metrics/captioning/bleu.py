"""BLEU, and the n-gram counts that BLEU and CIDEr-D share."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

MAX_ORDER = 4  # length of the longest n-gram

Ngram = tuple[str, ...]


class NgramCounts(NamedTuple):
    """Length and n-gram counts of a caption."""

    length: int  # number of words
    counts: tuple[Counter[Ngram], ...]  # of the n-grams of 1, 2, 3 and 4 words


def ngram_counts(words: Sequence[str]) -> NgramCounts:
    """Return the counts of all n-grams of one to four words.

    Example:
        >>> ngram_counts(["a", "dog", "a", "dog"]).counts[1]
        Counter({('a', 'dog'): 2, ('dog', 'a'): 1})
    """
    orders = (
        zip(*(words[first:] for first in range(n)), strict=False) for n in range(1, MAX_ORDER + 1)
    )
    return NgramCounts(len(words), tuple(Counter(ngrams) for ngrams in orders))


_TINY = 1e-15  # added to numerators, so that a precision without matches is not exactly 0
_SMALL = 1e-9  # added to denominators, so that captions without n-grams do not divide by 0


def bleu_scores(
    captions: Sequence[NgramCounts], references: Sequence[Sequence[NgramCounts]]
) -> tuple[list[float], list[list[float]]]:
    """Return BLEU-1 to BLEU-4 of the corpus and of each caption, 0 to 1.

    Corpus BLEU is not the mean over captions: matches and n-grams are summed over all captions,
    then divided. The brevity penalty uses the reference length closest to that of the caption, and
    the shorter of two equally close lengths.

    Args:
        captions: N-gram counts of the caption of each image.
        references: N-gram counts of the references of each image, at least one.

    Example:
        >>> from visattn.metrics.captioning.bleu import ngram_counts
        >>> caption, reference = map(ngram_counts, (["a", "dog", "runs"], ["a", "dog", "sits"]))
        >>> [round(score, 4) for score in bleu_scores([caption], [[reference]])[0]]
        [0.6667, 0.5774, 0.0, 0.0]

    Source:
        Papineni et al. 2002, section 2, with the constants of the COCO evaluation code.
    """
    rows = [
        _match_counts(caption, image_references)
        for caption, image_references in zip(captions, references, strict=True)
    ]
    corpus = [sum(column) for column in zip(*rows, strict=True)]
    return _bleu(corpus), [_bleu(row) for row in rows]


def _match_counts(caption: NgramCounts, references: Sequence[NgramCounts]) -> list[int]:
    """Return caption length, closest reference length, then matches and n-grams of each order."""
    lengths = (reference.length for reference in references)
    closest = min(lengths, key=lambda length: (abs(length - caption.length), length))
    matches = [
        sum(
            min(count, max(reference.counts[n][ngram] for reference in references))
            for ngram, count in caption.counts[n].items()
        )
        for n in range(MAX_ORDER)
    ]
    totals = [max(0, caption.length - n) for n in range(MAX_ORDER)]
    return [caption.length, closest, *matches, *totals]


def _bleu(counts: Sequence[int]) -> list[float]:
    """Return BLEU-1 to BLEU-4 from the counts of `_match_counts`."""
    length, closest = counts[:2]
    ratio = (length + _TINY) / (closest + _SMALL)
    brevity = math.exp(1 - 1 / ratio) if ratio < 1 else 1.0
    scores: list[float] = []
    product = 1.0
    for n, (matches, total) in enumerate(
        zip(counts[2 : 2 + MAX_ORDER], counts[2 + MAX_ORDER :], strict=True), 1
    ):
        product *= (matches + _TINY) / (total + _SMALL)
        scores.append(product ** (1 / n) * brevity)
    return scores
