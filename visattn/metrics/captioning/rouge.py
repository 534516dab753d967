"""ROUGE-L: F-measure of the longest common subsequence of a caption and a reference."""

from collections.abc import Sequence

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
    positions: dict[str, int] = {}  # bit mask of the positions of each word
    for position, word in enumerate(words):
        positions[word] = positions.get(word, 0) | 1 << position
    all_bits = (1 << len(words)) - 1
    row = all_bits
    for word in other:
        matches = row & positions.get(word, 0)
        row = (row + matches | row - matches) & all_bits
    return len(words) - row.bit_count()
