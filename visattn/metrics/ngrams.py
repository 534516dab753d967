"""Runs of one to four words, counted: what BLEU and CIDEr-D both compare."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

ORDER = 4  # the longest run

Gram = tuple[str, ...]


class Grams(NamedTuple):
    """A caption as BLEU and CIDEr-D see it."""

    length: int  # in words
    counts: tuple[Counter[Gram], ...]  # of runs of 1, 2, 3 and 4 words


def ngram_counts(words: Sequence[str]) -> Grams:
    """Return how often each run of one to four words occurs.

    Example:
        >>> ngram_counts(["a", "dog", "a", "dog"]).counts[1]
        Counter({('a', 'dog'): 2, ('dog', 'a'): 1})
    """
    runs = (zip(*(words[first:] for first in range(n)), strict=False) for n in range(1, ORDER + 1))
    return Grams(len(words), tuple(Counter(run) for run in runs))
