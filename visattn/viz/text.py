"""Text in figures and pages: sanitizing of untrusted text, line breaks, and fonts."""

import math
import re
import textwrap
import unicodedata
from functools import cache
from typing import Any

from visattn.results.values import format_percent

ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"
_MAX_MARKS = 4  # combining marks per character; Vietnamese needs two, Hebrew and Thai three
# Control characters, surrogates and bidirectional formatting characters.
_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def sanitize_text(text: str, max_length: int | None = None) -> str:
    r"""Return a text with hidden characters replaced, excess combining marks removed, truncated.

    A bidirectional override can disguise a file name, and hundreds of combining marks on a
    character would cover the page.

    Args:
        text: Untrusted text.
        max_length: Maximum length; a longer text ends in an ellipsis.

    Example:
        >>> sanitize_text("photo\u202egpj.exe"), sanitize_text("an endless word", 6)
        ('photo�gpj.exe', 'an en…')
    """
    # Combining marks are removed below, so keep more than the maximum length until then.
    kept = text if max_length is None else text[: (_MAX_MARKS + 1) * max_length]
    shown = _HIDDEN.sub("\N{REPLACEMENT CHARACTER}", kept)
    if not shown.isascii():
        shown = _limit_marks(shown)
    if max_length is not None and (len(kept) < len(text) or len(shown) > max_length):
        return shown[: max_length - 1].rstrip() + ELLIPSIS
    return shown


def _limit_marks(text: str) -> str:
    """Return a text with a limited number of combining marks per character."""
    kept: list[str] = []
    marks = 0
    for character in text:
        marks = marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        if marks <= _MAX_MARKS:
            kept.append(character)
    return "".join(kept)


def fit_text(text: str, inches: float, *, size: float = 8.0, lines: int = 1) -> str:
    """Wrap a text to about a width, with an ellipsis if it is cut.

    Args:
        text: Untrusted text.
        inches: The width.
        size: Font size in points.
        lines: Maximum number of lines.

    Example:
        >>> fit_text("a man riding a horse", 0.6)
        'a man…'
        >>> fit_text("a man riding a horse", 0.6, lines=3).splitlines()
        ['a man', 'riding a', 'horse']
    """
    text = sanitize_text(" ".join(text.split()), 400)
    mean = sum(map(_width, text)) / max(1, len(text)) * 1.04 * size / 72  # inches per character
    count = max(3, int(inches / (mean or 1)))
    return "\n".join(textwrap.wrap(text, count, max_lines=lines, placeholder=ELLIPSIS))


@cache
def _width(letter: str) -> float:
    """Return the width of a character relative to its height."""
    from matplotlib.ft2font import FT2Font

    if unicodedata.east_asian_width(letter) in "WF":
        return 1.0
    font = FT2Font(_fonts()[0][1])
    if not font.get_char_index(ord(letter)):
        return 0.6
    font.set_size(64, 72)
    return font.load_char(ord(letter)).linearHoriAdvance / 65536 / 64


MISSING = "\N{WHITE SQUARE}"
_boxed: dict[str, None] = {}


def choose_fonts(text: Any) -> None:
    """Let a matplotlib text use other fonts of the system for characters that its fonts lack.

    Characters that no font has are drawn as boxes; see `pop_boxed_letters`.

    Args:
        text: A `matplotlib.text.Text`.
    """
    if (shown := text.get_text()).isascii():
        return
    families = list(text.get_fontfamily())
    for letter in dict.fromkeys(each for each in shown if not (each.isascii() or each.isspace())):
        family = _family_with(letter)
        if family is None and unicodedata.category(letter)[0] in "MC":  # a mark, a joiner
            shown = shown.replace(letter, "")
        elif family is None:
            _boxed[letter] = None
            shown = shown.replace(letter, MISSING)
        elif family not in families:
            families.append(family)
    text.set(text=shown, fontfamily=families)


def pop_boxed_letters() -> str:
    """Return the distinct characters that were drawn as boxes since the last call."""
    letters = "".join(_boxed)
    _boxed.clear()
    return letters


@cache
def _family_with(letter: str) -> str | None:
    """Return the first font family with a character: that of figures, then upright sans-serif."""
    return next((name for name, path in _fonts() if ord(letter) in _letters(path)), None)


@cache
def _fonts() -> list[tuple[str, str]]:
    from matplotlib.font_manager import fontManager, weight_dict

    def plainness(font: Any) -> tuple[Any, ...]:
        weight: Any = weight_dict.get(font.weight, font.weight)
        ours = font.name != "DejaVu Sans"
        return ours, font.style != "normal", abs(weight - 400), "Sans" not in font.name, font.fname

    # Last Resort, which comes with matplotlib and macOS, has boxes for all of Unicode.
    usable = [f for f in fontManager.ttflist if "lastresort" not in f.name.replace(" ", "").lower()]
    return [(font.name, font.fname) for font in sorted(usable, key=plainness)]


@cache
def _letters(path: str) -> frozenset[int]:
    from matplotlib.ft2font import FT2Font

    return frozenset(FT2Font(path).get_charmap())


def format_probability(log_prob: float) -> str:
    """Return a log-probability as a percentage.

    Example:
        >>> format_probability(-0.1), format_probability(-9.0), format_probability(-0.001)
        ('90 %', '<1 %', '>99 %')
    """
    return format_percent(math.exp(min(log_prob, 0.0)))


def join_notes(*parts: str) -> str:
    """Join the non-empty parts of a subtitle with dots.

    Example:
        >>> join_notes("photo.jpg", "", "the model saw 35 % of the photo")
        'photo.jpg · the model saw 35 % of the photo'
    """
    return " \N{MIDDLE DOT} ".join(filter(None, parts))
