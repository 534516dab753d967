"""Captions as numbers: which words there are, and how a line of text falls into them."""

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Self

from visattn.models.captioners import END, PAD, SPECIALS, START, UNKNOWN

_WORD = re.compile(r"\w+(?:['’-]\w+)*")


def split_words(caption: str) -> list[str]:
    """Return the words of a caption, lower-cased, without punctuation.

    Example:
        >>> split_words("A dog's ball, well-worn.")
        ['a', "dog's", 'ball', 'well-worn']
    """
    return _WORD.findall(caption.lower())


class Vocabulary:
    """A fixed list of words, the first four of which are pad, start, end and unknown.

    Args:
        words: Every word once, `SPECIALS` first.

    Raises:
        ValueError: If the specials do not come first, or a word stands twice.

    Example:
        >>> vocabulary = Vocabulary.of(["a red ring", "a blue ring"])
        >>> vocabulary.encode("a green ring")
        [1, 4, 3, 5, 2]
        >>> vocabulary.decode([4, 5])
        'a ring'
    """

    def __init__(self, words: Sequence[str]) -> None:
        if tuple(words[: len(SPECIALS)]) != SPECIALS:
            raise ValueError(
                f"a vocabulary begins with {', '.join(SPECIALS)}, got {list(words[:4])}; "
                "Vocabulary.of counts one from captions"
            )
        self.words = tuple(words)
        self._index = {word: index for index, word in enumerate(self.words)}
        if len(self._index) < len(self.words):
            twice = [word for word, count in Counter(words).items() if count > 1]
            raise ValueError(f"every word may stand once, but these stand twice: {twice[:5]}")

    @classmethod
    def of(cls, captions: Iterable[str], *, min_count: int = 1) -> Self:
        """Return the vocabulary of these captions: the commonest word first, ties by alphabet.

        Args:
            captions: Of the training split, and of nothing else.
            min_count: Rarer words become unknown.
        """
        counts = Counter(word for caption in captions for word in split_words(caption))
        kept = [word for word, count in counts.items() if count >= min_count]
        return cls((*SPECIALS, *sorted(kept, key=lambda word: (-counts[word], word))))

    def __len__(self) -> int:
        return len(self.words)

    @property
    def hash(self) -> str:
        """Sixteen letters that change whenever a word or the order does."""
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()[:16]

    def encode(self, caption: str) -> list[int]:
        """Return a caption as numbers, from start to end."""
        words = (self._index.get(word, UNKNOWN) for word in split_words(caption))
        return [START, *words, END]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the words of these numbers as one line; pad, start and end say nothing."""
        return " ".join(self.words[token] for token in tokens if token not in (PAD, START, END))
