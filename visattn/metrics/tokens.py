"""Tokens of a caption, as the official scores of COCO count them."""

import re
from functools import lru_cache

from visattn.metrics.lexers import spans
from visattn.metrics.outlines import outline

# The official list, less four that never occur: brackets come out in lower case and stay.
REMOVED = frozenset(["''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"])

_NAMES = {
    "(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-",
    "–": "--", "…": "...", '"': "''", "«": "`", "’": "'", "“": "``", "”": "''",
    "£": "#", "¢": "cents",
    "¼": "1/4", "½": "1/2", "¾": "3/4", "⅓": "1/3", "⅔": "2/3",
    "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": "''", "&apos;": "'", "&nbsp;": "",
    "&mdash;": "--", "&ndash;": "--",
}  # fmt: skip
_ROUND = str.maketrans({"(": "-lrb-", ")": "-rrb-"})
_CLITIC = re.compile("['’](?:[msd]|re|ve|ll)|n['’`\u2018\u201b]t")
# What lies across blanks: numbers (5 1/2, telephones, no. 5), tags, stops in a row.
_LOOKS_ACROSS = re.compile(r"[0-9<]|\. \.|\b[A-Za-z]\. +[A-Z]")


def ptb_tokens(caption: str) -> list[str]:
    """Return the tokens of a caption that count in scores: lower case, without punctuation.

    They are those of the official tokenizer (Stanford's PTBTokenizer 3.4.1) with the official list
    of punctuation taken out, on all of 35,400 captions of Flickr8k and COCO. Oddities are kept:
    brackets are words, two exclamation marks are one. Numbers that belong together, as in 5 1/2,
    are one token with a no-break space in it. What lies far from captions may differ: entities of
    HTML, letters of rare scripts.

    Args:
        caption: As it was written. Line breaks count as blanks; emoji count as nothing.

    Example:
        >>> ptb_tokens("The man's dog can't jump over 3/4 of the logs (wet).")
        ['the', 'man', "'s", 'dog', 'ca', "n't", 'jump', 'over', '3/4', 'of', 'the', 'logs',
         '-lrb-', 'wet', '-rrb-']

    Source:
        Chen et al. 2015, arXiv:1504.00325, section 3.1.
    """
    text = caption.replace("\xad", "")  # a soft hyphen is none
    shape = text if text.isascii() and text.isprintable() else outline(text)
    if shape is text and not _LOOKS_ACROSS.search(text):
        return [token for chunk in text.split() for token in _of_chunk(chunk)]
    return _kept(text, shape)


@lru_cache(maxsize=2**16)
def _of_chunk(chunk: str) -> tuple[str, ...]:
    """Return what stays of a piece without blanks; pieces come again and again."""
    return tuple(_kept(chunk, chunk))


def _kept(text: str, shape: str) -> list[str]:
    tokens = (_named(text[first:last], shape[first:last]) for first, last in spans(shape))
    return [token for token in tokens if token and token not in REMOVED]


def _named(text: str, shape: str) -> str:
    """Return a token as the official tokenizer writes it."""
    text = text.lower()
    if text in _NAMES:
        return _NAMES[text]
    if len(shape) == 1:
        return text if shape in "é§" else _NAMES.get(shape, shape.lower())
    if _CLITIC.fullmatch(text) or not shape.strip("«’“”`"):
        return "".join(_NAMES.get(letter, letter) for letter in shape.lower())
    if not text.strip(". "):
        return "..."
    if text in ("--", "---", "----"):
        return "--"
    named = text if text.startswith("<") else text.translate(_ROUND)
    return named.replace(" ", "\xa0")
