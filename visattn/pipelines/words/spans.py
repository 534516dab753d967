"""Words of generated tokens."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os.path import commonprefix
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.metrics.ptb_tokenizer import UNSPACED_LETTERS

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # a token ended inside a character
# Tibetan separates syllables by a mark, not by spaces, so that its words are split at tokens, too.
_UNSPACED = re.compile(f"[{UNSPACED_LETTERS}\u0f00-\u0fff]")


@dataclass(frozen=True)
class Words:
    """Words of a text.

    Args:
        words: The words.
        spans: Index of the first token of each, and of the one after its last.
        spaces: Whether each is preceded by white space.
        split: Whether words of a script without spaces were split at tokens.
    """

    words: tuple[str, ...]
    spans: tuple[tuple[int, int], ...]
    spaces: tuple[bool, ...]
    split: bool


def split_words(
    tokenizer: Any,
    token_ids: Sequence[int],
    *,
    special_ids: Iterable[int] = (),
    per_token: bool = False,
) -> Words:
    """Return the words of generated tokens, and the range of tokens of each.

    Growing prefixes of the tokens are decoded, so that a token owns the characters that it adds. A
    word ends at white space; punctuation belongs to the adjacent word, a token of only white space
    to the next word. Scripts without spaces between words, such as Chinese, Japanese and Thai, are
    split at tokens instead. Special tokens are skipped.

    Args:
        tokenizer: A tokenizer of transformers, or any object with its `decode`.
        token_ids: Ids of the generated tokens.
        special_ids: Ids to skip, in addition to the special ids of the tokenizer.
        per_token: Whether each token with visible characters is a word.

    Example:
        >>> class Letters:
        ...     all_special_ids = [0]
        ...     def decode(self, ids, **_):
        ...         return "".join("?ab .猫犬"[i] for i in ids)
        >>> result = split_words(Letters(), [1, 3, 2, 1, 4, 0])
        >>> result.words, result.spans
        (('a', 'ba.'), ((0, 1), (1, 5)))
        >>> split_words(Letters(), [5, 6, 4, 3, 1, 0]).words
        ('猫', '犬.', 'a')
    """
    special = {*getattr(tokenizer, "all_special_ids", ()), *special_ids}
    # Clean-up joins "isn ' t" to "isn't": a longer prefix would have a shorter text.
    options = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    text = ""
    owners: list[tuple[int, int]] = []
    ends: set[int] = set()
    kept: list[int] = []
    first: int | None = None
    # A character belongs to the tokens since the last one that added a visible character:
    #
    #     token            0    1     2       3              4         5
    #     adds             a    _     caf     half of é      é         .
    #     decoded so far   a    a_    a_caf   a_caf?         a_café    a_café.
    #     its owners       0    1     1, 2    no character   3, 4      5
    for index, token in enumerate(map(int, token_ids)):
        if token in special:
            ends.add(len(text))
            first = None
            continue
        kept.append(token)
        first = index if first is None else first
        longer = tokenizer.decode(kept, **options)
        if longer.endswith(_REPLACEMENT):
            longer = longer.rstrip(_REPLACEMENT)
            # The next token completes the character, if there is one.
            if index + 1 < len(token_ids) or len(longer) <= len(text):
                continue
        same = len(commonprefix([text, longer]))  # noqa: RUF071 (letters)
        added = longer[same:]
        text = longer
        owners[same:] = [(first, index + 1)] * len(added)
        first = None if added.strip() else first
    return _words(text, owners, ends, per_token=per_token)


def word_means(
    values: Float[Tensor, "t ..."], spans: Sequence[tuple[int, int]]
) -> Float[Tensor, "w ..."]:
    """Return the mean over the tokens of each word.

    Example:
        >>> word_means(torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), [(0, 2), (2, 3)])
        tensor([[2., 3.],
                [5., 6.]])
    """
    words = [values[start:stop].mean(0) for start, stop in spans]
    return torch.stack(words) if words else values[:0]


def _words(text: str, owners: list[tuple[int, int]], ends: set[int], *, per_token: bool) -> Words:
    """Return the words of a text whose characters belong to ranges of tokens."""
    words: list[str] = []
    spans: list[tuple[int, int]] = []
    spaces: list[bool] = []
    split = inside = False
    for index, (character, owner) in enumerate(zip(text, owners, strict=True)):
        if character.isspace():
            inside = False
            continue
        last = text[index - 1] if inside else ""
        border = inside and owner != owners[index - 1]
        unspaced = border and _UNSPACED.search(last + character) is not None
        unspaced &= character.isalnum()  # not punctuation or a mark on the previous character
        if not inside or index in ends or unspaced or (border and per_token):
            words.append(character)
            spans.append(owner)
            spaces.append(not inside or index in ends)
            split |= unspaced
        else:
            words[-1] += character
            spans[-1] = (min(spans[-1][0], owner[0]), max(spans[-1][1], owner[1]))
        inside = True
    return Words(tuple(words), tuple(spans), tuple(spaces), split)
