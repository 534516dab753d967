"""ROUGE-L: the longest sequence of words that a caption and a reference share."""

from collections.abc import Sequence

BETA = 1.2  # how much more recall counts than precision


def rouge_l(caption: str, references: Sequence[str]) -> float:
    """Return ROUGE-L of one caption, 0 to 1.

    The best precision and the best recall are taken over the references, each by itself. An empty
    line counts as one empty word. The score of several captions is the mean.

    Args:
        caption: Tokens with single blanks between them.
        references: The same, at least one.

    Example:
        >>> round(rouge_l("a dog runs", ["a big dog runs fast"]), 4)
        0.7176

    Source:
        Lin 2004, section 3, as in the evaluation code of COCO.
    """
    words = caption.split(" ")
    precision = recall = 0.0
    for reference in references:
        other = reference.split(" ")
        shared = lcs_length(words, other)
        precision = max(precision, shared / len(words))
        recall = max(recall, shared / len(other))
    if precision == 0 or recall == 0:
        return 0.0
    return (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)


def lcs_length(words: Sequence[str], other: Sequence[str]) -> int:
    """Return the length of the longest sequence that both hold, gaps allowed.

    Example:
        >>> lcs_length("a b c d".split(), "x b y d a".split())
        2

    Source:
        Hyyrö 2004, Bit-parallel LCS-length computation revisited: a row of the usual table as the
        bits of one number.
    """
    places: dict[str, int] = {}
    for place, word in enumerate(words):
        places[word] = places.get(word, 0) | 1 << place
    everything = (1 << len(words)) - 1
    row = everything
    for word in other:
        found = row & places.get(word, 0)
        row = (row + found | row - found) & everything
    return len(words) - row.bit_count()
