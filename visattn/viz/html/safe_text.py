"""Sanitizing of untrusted text for display: control characters, combining marks, length."""

import re
import unicodedata

ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
_MAX_MARKS = 4  # combining marks per letter; Vietnamese needs two, Hebrew and Thai three
# Control characters, surrogates and bidirectional formatting characters.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
_RTL_LETTERS = re.compile(
    "[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]"
)


def sanitize_text(text: str, max_length: int | None = None) -> str:
    r"""Return a text with hidden characters replaced, excess combining marks removed, truncated.

    A bidirectional override can disguise a file name, and hundreds of combining marks on a letter
    would cover the page.

    Args:
        text: Untrusted text.
        max_length: Maximum length; a longer text ends in an ellipsis.

    Example:
        >>> sanitize_text("photo\u202egpj.exe"), sanitize_text("an endless word", 6)
        ('photo�gpj.exe', 'an en…')
    """
    if max_length is not None:
        # Combining marks are removed below, so keep more than the maximum length until then.
        text, truncated = (
            text[: (_MAX_MARKS + 1) * max_length],
            len(text) > (_MAX_MARKS + 1) * max_length,
        )
    else:
        truncated = False
    text = _HIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
    if not text.isascii():
        text = _limit_marks(text)
    if max_length is not None and (truncated or len(text) > max_length):
        return text[: max_length - 1].rstrip() + ELLIPSIS
    return text


def has_rtl_letters(text: str) -> bool:
    r"""Return whether a text contains letters of a right-to-left script.

    Example:
        >>> has_rtl_letters("a dog"), has_rtl_letters("\u05db\u05dc\u05d1")
        (False, True)
    """
    return _RTL_LETTERS.search(text) is not None


def _limit_marks(text: str) -> str:
    """Return a text with a limited number of combining marks per letter."""
    kept: list[str] = []
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        if marks <= _MAX_MARKS:
            kept.append(character)
    return "".join(kept)
