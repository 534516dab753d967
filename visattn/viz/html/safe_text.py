"""Texts of others as they can be shown: no hidden signs, no towers of accents, no endless words."""

import re
import unicodedata

ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
_MARKS = 4  # accents on one letter; Vietnamese needs two, Hebrew and Thai three
# What is no sign, and what turns the order of others round: half pairs, controls, directions.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)
_RIGHT = re.compile(
    "[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc\U00010800-\U00010fff\U0001e800-\U0001efff]"
)


def shown_text(text: str, most: int | None = None) -> str:
    r"""Return a text with a mark for each sign that is hidden, and where it was cut.

    A file name that turns itself round looks like another one, and a hundred accents on a letter
    reach over the whole page.

    Args:
        text: Of others.
        most: How many characters are kept; the last is then an ellipsis.

    Example:
        >>> shown_text("photo\u202egpj.exe"), shown_text("an endless word", 6)
        ('photo�gpj.exe', 'an en…')
    """
    if most is not None:
        # Accents are left out below, so a little more than is kept has to be looked at.
        text, cut = text[: (_MARKS + 1) * most], len(text) > (_MARKS + 1) * most
    else:
        cut = False
    text = _HIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
    if not text.isascii():
        text = _without_towers(text)
    if most is not None and (cut or len(text) > most):
        return text[: most - 1].rstrip() + ELLIPSIS
    return text


def runs_leftwards(text: str) -> bool:
    r"""Return whether a text holds letters that are written from right to left.

    Example:
        >>> runs_leftwards("a dog"), runs_leftwards("\u05db\u05dc\u05d1")
        (False, True)
    """
    return _RIGHT.search(text) is not None


def _without_towers(text: str) -> str:
    """Return a text with no more than a few accents on each letter."""
    kept: list[str] = []
    marks = 0
    for sign in text:
        marks = marks + 1 if unicodedata.category(sign) in ("Mn", "Me") else 0
        if marks <= _MARKS:
            kept.append(sign)
    return "".join(kept)
