"""Words of generated tokens."""

from collections.abc import Iterable, Sequence
from typing import Any

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"  # a token ended inside a character


def split_words(
    tokenizer: Any, token_ids: Sequence[int], *, special_ids: Iterable[int] = ()
) -> tuple[tuple[str, ...], tuple[tuple[int, int], ...]]:
    """Return the words of generated tokens, and the range of tokens of each.

    Growing prefixes of the tokens are decoded, so that a token owns the characters that it adds. A
    word ends at white space; punctuation belongs to the word that it touches, a token of white
    space alone to the next word. Special tokens are no words.

    Args:
        tokenizer: A tokenizer of transformers, or anything with its `decode`.
        token_ids: Ids of the generated tokens.
        special_ids: Further ids that are no words; those of the tokenizer never are.

    Returns:
        The words, and for each the index of its first token and of the one after its last.

    Example:
        >>> class Letters:
        ...     all_special_ids = [0]
        ...     def decode(self, ids, **_):
        ...         return "".join("?ab ."[i] for i in ids)
        >>> split_words(Letters(), [1, 3, 2, 1, 4, 0])
        (('a', 'ba.'), ((0, 1), (1, 5)))
    """
    special = {*getattr(tokenizer, "all_special_ids", ()), *special_ids}
    words: list[str] = []
    spans: list[tuple[int, int]] = []
    kept: list[int] = []
    text, first, inside = "", None, False
    for index, token in enumerate(map(int, token_ids)):
        if token in special:
            inside, first = False, None
            continue
        kept.append(token)
        first = index if first is None else first
        longer = tokenizer.decode(kept, skip_special_tokens=True)
        if longer.endswith(_REPLACEMENT):
            continue
        added, text = longer[len(text) :], longer
        inside = _add(added, (first, index + 1), words, spans, inside=inside)
        first = None if added.strip() else first
    return tuple(words), tuple(spans)


def _add(
    added: str,
    span: tuple[int, int],
    words: list[str],
    spans: list[tuple[int, int]],
    *,
    inside: bool,
) -> bool:
    """Add the characters of a token; return whether the last word may go on."""
    if not added:
        return inside
    parts = added.split()
    if inside and parts and not added[0].isspace():
        words[-1] += parts.pop(0)
        spans[-1] = (spans[-1][0], span[1])
    words.extend(parts)
    spans.extend([span] * len(parts))
    return bool(words) and not added[-1].isspace()
