"""Captions as numbers: which words there are, and how a line of text falls into them."""

import hashlib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Self

from visattn.models.captioner import END, PAD, SPECIALS, START, UNKNOWN

_ENDING = r"(?:n't|'(?:s|m|d|re|ve|ll))(?!\w)"  # what the Penn Treebank parts from a word
_RUN = r"\w[\w\u0300-\u036f]*"  # accents that no letter has taken in belong to the word
_PARTED = re.compile(_ENDING)
_WORD = re.compile(
    rf"(?:[^\W\d_]\.){{2,}}(?!\w)"  # u.s.
    rf"|{_ENDING}"
    rf"|\d+(?:[.,:]\d+)+(?!\w)"  # 1,000 and 9:30
    rf"|{_RUN}(?:['./-]{_RUN})*"  # dog, o'clock, t-shirt, 3/4
    r"|[#&$%]"
)


def split_words(caption: str) -> list[str]:
    """Return the words of a caption, lower-cased, without punctuation.

    Endings such as 's and n't are words of their own, as the Penn Treebank has them: so the words,
    joined by blanks, are scored as the caption itself would be. Emoji and brackets are no words.

    Law:
        Joined by blanks and split again, the words are the same.

    Example:
        >>> split_words("A dog's ball, well-worn.")
        ['a', 'dog', "'s", 'ball', 'well-worn']
    """
    text = unicodedata.normalize("NFC", caption.lower().replace("’", "'"))
    return _WORD.findall(_PARTED.sub(r" \g<0>", text))


class Vocabulary:
    """A fixed list of words, the first four of which are pad, start, end and unknown.

    Args:
        words: Every word once, `SPECIALS` first.
        counts: How often words stood in the captions that were counted, where that is known.

    Raises:
        ValueError: If the specials do not come first, or a word stands twice.

    Example:
        >>> vocabulary = Vocabulary.of(["a red ring", "a blue ring"])
        >>> vocabulary.encode("a green ring")
        [1, 4, 3, 5, 2]
        >>> vocabulary.decode([4, 5])
        'a ring'
    """

    def __init__(self, words: Sequence[str], counts: Mapping[str, int] | None = None) -> None:
        if tuple(words[: len(SPECIALS)]) != SPECIALS:
            raise ValueError(
                f"a vocabulary begins with {', '.join(SPECIALS)}, got {list(words[:4])}; "
                "Vocabulary.of counts one from captions"
            )
        self.words = tuple(words)
        self.counts = dict(counts or {})
        self._index = {word: index for index, word in enumerate(self.words)}
        if len(self._index) < len(self.words):
            twice = [word for word, count in Counter(words).items() if count > 1]
            raise ValueError(f"every word may stand once, but these stand twice: {twice[:5]}")

    @classmethod
    def of(
        cls, captions: Iterable[str], *, min_count: int = 1, max_words: int | None = None
    ) -> Self:
        """Return the vocabulary of these captions: the commonest word first, ties by alphabet.

        Args:
            captions: Of the training split, and of nothing else.
            min_count: Rarer words become unknown.
            max_words: So many words are kept at most, specials not counted.

        Raises:
            ValueError: If a limit is below 1, or leaves no word.
        """
        counts = Counter(word for caption in captions for word in split_words(caption))
        return cls.counted(counts, min_count=min_count, max_words=max_words)

    @classmethod
    def counted(
        cls, counts: Mapping[str, int], *, min_count: int = 1, max_words: int | None = None
    ) -> Self:
        """Return the vocabulary of captions whose words were counted: the commonest word first.

        Raises:
            ValueError: If a limit is below 1, or leaves no word.

        Example:
            >>> Vocabulary.counted({"ring": 1, "a": 2}).decode([4, 5])
            'a ring'
        """
        if min_count < 1 or (max_words is not None and max_words < 1):
            raise ValueError(
                f"min_count and max_words must be at least 1, got {min_count} and {max_words}"
            )
        kept = [word for word, count in counts.items() if count >= min_count]
        if counts and not kept:
            word, most = max(counts.items(), key=lambda pair: pair[1])
            raise ValueError(
                f"no word stands {min_count} times in the captions, the commonest, {word!r}, "
                f"{most} times; lower min_count"
            )
        kept = sorted(kept, key=lambda word: (-counts[word], word))[:max_words]
        return cls((*SPECIALS, *kept), {word: counts[word] for word in kept})

    def __len__(self) -> int:
        return len(self.words)

    @property
    def hash(self) -> str:
        """Sixteen letters that change whenever a word or the order does."""
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()[:16]

    def unknown_share(self, captions: Iterable[str]) -> float:
        """Return which share of all words of these captions is unknown; 0 if there is no word.

        Example:
            >>> Vocabulary.of(["a red ring"]).unknown_share(["a red ring", "a blue"])
            0.2
        """
        words = [word for caption in captions for word in split_words(caption)]
        return sum(word not in self._index for word in words) / max(1, len(words))

    def encode(self, caption: str) -> list[int]:
        """Return a caption as numbers, from start to end."""
        words = (self._index.get(word, UNKNOWN) for word in split_words(caption))
        return [START, *words, END]

    def decode(self, tokens: Iterable[int]) -> str:
        """Return the words of these numbers as one line; pad, start and end say nothing."""
        return " ".join(self.words[token] for token in tokens if token not in (PAD, START, END))
