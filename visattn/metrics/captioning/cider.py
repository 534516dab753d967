"""CIDEr-D: how much a caption says what the references agree on, rare words counting more."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from visattn.metrics.captioning.bleu import ORDER, Gram, NgramCounts

SIGMA = 6.0  # of the bell curve over the difference of lengths


class IdfTable(NamedTuple):
    """How much each run of words counts: the logarithm of how few images are told with it."""

    weights: dict[Gram, float]
    unseen: float
    """What a run counts that no image is told with."""


class _Weighed(NamedTuple):
    """Runs of each order with their weights, the norms of these, and the length in words."""

    weights: list[dict[Gram, float]]
    norms: list[float]
    length: int


def cider_scores(
    captions: Sequence[NgramCounts], references: Sequence[Sequence[NgramCounts]]
) -> list[float]:
    """Return CIDEr-D of each caption, 0 to 10; the score of all is the mean.

    How rare a run of words is, is counted over the references given here: the same caption scores
    otherwise in another set. Over one image every score is 0. Words are not stemmed.

    Args:
        captions: One per image.
        references: At least one per image.

    Example:
        >>> from visattn.metrics.captioning.bleu import ngram_counts
        >>> texts = ["a dog runs over the grass", "two red cars stand there"]
        >>> captions = [ngram_counts(text.split()) for text in texts]
        >>> [round(score, 4) for score in cider_scores(captions, [[told] for told in captions])]
        [10.0, 10.0]
        >>> cider_scores(captions[:1], [captions[:1]])
        [0.0]

    Source:
        Vedantam et al. 2015, arXiv:1411.5726, section 6, as in the evaluation code of COCO.
    """
    rarity = rarity_of(references)
    return [
        cider_score(caption, told, rarity)
        for caption, told in zip(captions, references, strict=True)
    ]


def rarity_of(references: Sequence[Sequence[NgramCounts]]) -> IdfTable:
    """Return how rare each run of words is among the references of images.

    Args:
        references: Of each image, one or more; a run counts once for an image.

    Example:
        >>> from visattn.metrics.captioning.bleu import ngram_counts
        >>> told = [[ngram_counts(text.split())] for text in ("a dog", "a car")]
        >>> rarity_of(told).weights[("a",)], round(rarity_of(told).weights[("dog",)], 4)
        (0.0, 0.6931)
    """
    images: Counter[Gram] = Counter()
    for told in references:
        images.update({gram for grams in told for counts in grams.counts for gram in counts})
    everything = math.log(len(references)) if references else 0.0
    weights = {gram: everything - math.log(count) for gram, count in images.items()}
    return IdfTable(weights, everything)


def cider_score(caption: NgramCounts, references: Sequence[NgramCounts], rarity: IdfTable) -> float:
    """Return CIDEr-D of one caption, 0 to 10, with words as rare as they are elsewhere.

    Args:
        caption: What is scored.
        references: What it is held against, at least one.
        rarity: As `rarity_of` returns it.

    Example:
        >>> from visattn.metrics.captioning.bleu import ngram_counts
        >>> told = [[ngram_counts(text.split())] for text in ("a dog", "a car")]
        >>> round(cider_score(told[0][0], told[0], rarity_of(told)), 4)
        5.0
    """
    weighed = _weighed(caption, rarity)
    total = sum(_likeness(weighed, _weighed(other, rarity)) for other in references)
    return 10 * total / ORDER / len(references)


def _weighed(grams: NgramCounts, rarity: IdfTable) -> _Weighed:
    weights = [
        {gram: count * rarity.weights.get(gram, rarity.unseen) for gram, count in counts.items()}
        for counts in grams.counts
    ]
    norms = [math.sqrt(sum(weight * weight for weight in row.values())) for row in weights]
    return _Weighed(weights, norms, grams.length)


def _likeness(caption: _Weighed, reference: _Weighed) -> float:
    """Return the sum over orders of the cosines, what is said too often counting once."""
    total = 0.0
    rows = zip(caption.weights, caption.norms, reference.weights, reference.norms, strict=True)
    for ours, norm, theirs, other_norm in rows:
        if norm and other_norm:
            shared = ours.keys() & theirs.keys()
            product = sum(min(ours[gram], theirs[gram]) * theirs[gram] for gram in shared)
            total += product / (norm * other_norm)
    # The official code compares lengths in pairs of words, which differ by as much as words do:
    # only no word and one word have as many pairs, and no word shares nothing anyway.
    return total * math.exp(-((caption.length - reference.length) ** 2) / (2 * SIGMA**2))
