"""CIDEr-D: cosine similarity of TF-IDF weighted n-grams of captions and references."""

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from visattn.metrics.captioning.bleu import MAX_ORDER, Ngram, NgramCounts

SIGMA = 6.0  # of the bell curve over the difference of lengths


class IdfTable(NamedTuple):
    """Inverse document frequency of each n-gram."""

    weights: dict[Ngram, float]
    unseen_weight: float
    """Weight of an n-gram that occurs in no reference."""


class WeightedNgrams(NamedTuple):
    """N-grams of each order with their weights, the norms of these, and the length in words."""

    weights: list[dict[Ngram, float]]
    norms: list[float]
    length: int


def cider_d(
    captions: Sequence[NgramCounts], references: Sequence[Sequence[NgramCounts]]
) -> list[float]:
    """Return CIDEr-D of each caption, 0 to 10; the corpus score is their mean.

    Inverse document frequencies are computed over these references, so that scores depend on the
    set of images. With a single image every score is 0. Words are not stemmed.

    Args:
        captions: One per image.
        references: At least one per image.

    Example:
        >>> from visattn.metrics.captioning.bleu import ngram_counts
        >>> texts = ["a dog runs over the grass", "two red cars stand there"]
        >>> captions = [ngram_counts(text.split()) for text in texts]
        >>> references = [[caption] for caption in captions]
        >>> [round(score, 4) for score in cider_d(captions, references)]
        [10.0, 10.0]
        >>> cider_d(captions[:1], [captions[:1]])
        [0.0]

    Source:
        Vedantam et al. 2015, arXiv:1411.5726, section 6, as in the evaluation code of COCO.
    """
    idf = idf_table(references)
    return [
        cider_d_score(caption, image_references, idf)
        for caption, image_references in zip(captions, references, strict=True)
    ]


def idf_table(references: Sequence[Sequence[NgramCounts]]) -> IdfTable:
    """Return the inverse document frequency of each n-gram among the references.

    Args:
        references: References of each image; an n-gram counts once per image.

    Example:
        >>> from visattn.metrics.captioning.bleu import ngram_counts
        >>> references = [[ngram_counts(text.split())] for text in ("a dog", "a car")]
        >>> idf_table(references).weights[("a",)], round(idf_table(references).weights[("dog",)], 4)
        (0.0, 0.6931)
    """
    images: Counter[Ngram] = Counter()
    for image_references in references:
        images.update(
            {gram for grams in image_references for counts in grams.counts for gram in counts}
        )
    everything = math.log(len(references)) if references else 0.0
    weights = {gram: everything - math.log(count) for gram, count in images.items()}
    return IdfTable(weights, everything)


def cider_d_score(caption: NgramCounts, references: Sequence[NgramCounts], idf: IdfTable) -> float:
    """Return CIDEr-D of one caption, 0 to 10, with given inverse document frequencies.

    Args:
        caption: N-gram counts of the caption.
        references: N-gram counts of the references, at least one.
        idf: Inverse document frequencies from `idf_table`.

    Example:
        >>> from visattn.metrics.captioning.bleu import ngram_counts
        >>> references = [[ngram_counts(text.split())] for text in ("a dog", "a car")]
        >>> round(cider_d_score(references[0][0], references[0], idf_table(references)), 4)
        5.0
    """
    weighted = [weighted_ngrams(reference, idf) for reference in references]
    return weighted_cider_d(weighted_ngrams(caption, idf), weighted)


def weighted_cider_d(caption: WeightedNgrams, references: Sequence[WeightedNgrams]) -> float:
    """Return `cider_d_score` for n-grams that were weighted before, as in training on CIDEr-D.

    Args:
        caption: N-grams of the caption.
        references: N-grams of the references, at least one.
    """
    total = sum(_likeness(caption, reference) for reference in references)
    return 10 * total / MAX_ORDER / len(references)


def weighted_ngrams(ngrams: NgramCounts, idf: IdfTable) -> WeightedNgrams:
    """Return n-grams with their TF-IDF weights.

    Args:
        ngrams: N-gram counts of a caption.
        idf: Inverse document frequencies from `idf_table`.

    Example:
        >>> from visattn.metrics.captioning.bleu import ngram_counts
        >>> idf = IdfTable({("a",): 0.5}, 2.0)
        >>> weighted_ngrams(ngram_counts(["a", "dog"]), idf).weights[0]
        {('a',): 0.5, ('dog',): 2.0}
    """
    known, unseen = idf.weights.get, idf.unseen_weight
    weights = [
        {gram: count * known(gram, unseen) for gram, count in counts.items()}
        for counts in ngrams.counts
    ]
    norms = [math.sqrt(sum(weight * weight for weight in row.values())) for row in weights]
    return WeightedNgrams(weights, norms, ngrams.length)


def _likeness(caption: WeightedNgrams, reference: WeightedNgrams) -> float:
    """Return the sum of the cosines over n-gram orders, counts clipped to the reference."""
    total = 0.0
    rows = zip(caption.weights, caption.norms, reference.weights, reference.norms, strict=True)
    for ours, norm, theirs, other_norm in rows:
        shared = ours.keys() & theirs.keys()
        if not shared:
            break  # nor do they share a longer n-gram
        if norm and other_norm:
            product = sum(min(ours[gram], theirs[gram]) * theirs[gram] for gram in shared)
            total += product / (norm * other_norm)
    # The official code compares lengths in pairs of words, which differ by as much as words do:
    # only no word and one word have as many pairs, and no word shares nothing anyway.
    return total * math.exp(-((caption.length - reference.length) ** 2) / (2 * SIGMA**2))
