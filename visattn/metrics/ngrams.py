"""Caption scores of n-grams: BLEU, ROUGE-L, CIDEr-D."""

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
        >>> from visattn.metrics.ngrams import ngram_counts
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


BETA = 1.2  # weight of recall relative to precision


def rouge_l(caption: str, references: Sequence[str]) -> float:
    """Return ROUGE-L of a caption, 0 to 1; the corpus score is the mean over captions.

    The maximum precision and the maximum recall over the references are taken independently. An
    empty string counts as one empty word.

    Args:
        caption: Tokens, separated by single spaces.
        references: Tokens of each reference, at least one.

    Example:
        >>> round(rouge_l("a dog runs", ["a big dog runs fast"]), 4)
        0.7176

    Source:
        Lin 2004, section 3, as in the COCO evaluation code.
    """
    words = caption.split(" ")
    precision = recall = 0.0
    for reference in references:
        reference_words = reference.split(" ")
        common = lcs_length(words, reference_words)
        precision = max(precision, common / len(words))
        recall = max(recall, common / len(reference_words))
    if precision == 0 or recall == 0:
        return 0.0
    return (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)


def lcs_length(words: Sequence[str], other: Sequence[str]) -> int:
    """Return the length of the longest common subsequence.

    Example:
        >>> lcs_length("a b c d".split(), "x b y d a".split())
        2

    Source:
        Hyyrö 2004, Bit-parallel LCS-length computation revisited. A row of the dynamic programming
        table is stored in the bits of an integer.
    """
    # The words "a b a c" against "b c a". A bit of the row is 0 where the common subsequence of the
    # words up to there is one longer than that of the words before; the first word is the last bit:
    #
    #     words     c a b a
    #     start     1 1 1 1
    #     after b   1 1 0 1
    #     after c   0 1 0 1
    #     after a   1 0 1 0      two zeros: the length is 2
    #
    # One addition moves the zeros of all words at once, by its carries.
    positions: dict[str, int] = {}  # bit mask of the positions of each word
    for position, word in enumerate(words):
        positions[word] = positions.get(word, 0) | 1 << position
    all_bits = (1 << len(words)) - 1
    row = all_bits
    for word in other:
        matches = row & positions.get(word, 0)
        row = (row + matches | row - matches) & all_bits
    return len(words) - row.bit_count()


SIGMA = 6.0  # sigma of the Gaussian penalty for length differences


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
        >>> from visattn.metrics.ngrams import ngram_counts
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
    weighted = ([weighted_ngrams(each, idf) for each in lines] for lines in references)
    return [
        weighted_cider_d(weighted_ngrams(caption, idf), lines)
        for caption, lines in zip(captions, weighted, strict=True)
    ]


def idf_table(references: Sequence[Sequence[NgramCounts]]) -> IdfTable:
    """Return the inverse document frequency of each n-gram, which counts once per image.

    Example:
        >>> from visattn.metrics.ngrams import ngram_counts
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


def weighted_cider_d(caption: WeightedNgrams, references: Sequence[WeightedNgrams]) -> float:
    """Return CIDEr-D of one caption, 0 to 10, from TF-IDF-weighted n-grams."""
    total = sum(_likeness(caption, reference) for reference in references)
    return 10 * total / MAX_ORDER / len(references)


def weighted_ngrams(ngrams: NgramCounts, idf: IdfTable) -> WeightedNgrams:
    """Return n-grams with their TF-IDF weights.

    Example:
        >>> from visattn.metrics.ngrams import ngram_counts
        >>> idf = IdfTable({("a",): 0.5}, 2.0)
        >>> weighted_ngrams(ngram_counts(["a", "dog"]), idf).weights[0]
        {('a',): 0.5, ('dog',): 2.0}
    """
    weights = [
        {gram: count * idf.weights.get(gram, idf.unseen_weight) for gram, count in counts.items()}
        for counts in ngrams.counts
    ]
    norms = [math.sqrt(sum(weight * weight for weight in row.values())) for row in weights]
    return WeightedNgrams(weights, norms, ngrams.length)


def _likeness(caption: WeightedNgrams, reference: WeightedNgrams) -> float:
    """Return the sum of cosines over n-gram orders, with counts clipped to the reference."""
    total = 0.0
    rows = zip(caption.weights, caption.norms, reference.weights, reference.norms, strict=True)
    for ours, norm, theirs, other_norm in rows:
        shared = ours.keys() & theirs.keys()
        if not shared:
            break  # then they share no longer n-gram either
        if norm and other_norm:
            product = sum(min(ours[gram], theirs[gram]) * theirs[gram] for gram in shared)
            total += product / (norm * other_norm)
    # The official code compares lengths in pairs of words, which differ by as much as words do:
    # only no word and one word have as many pairs, and no word shares nothing anyway.
    return total * math.exp(-((caption.length - reference.length) ** 2) / (2 * SIGMA**2))
