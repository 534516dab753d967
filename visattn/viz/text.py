"""Text on images and pages: fonts, line breaks, and sanitizing of what is not ours."""

import math
import re
import unicodedata
from bisect import bisect_right
from functools import cache
from pathlib import Path
from typing import Any

from PIL import ImageFont, features

from visattn.results.values import format_percent

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


class UnicodeFont(ImageFont.FreeTypeFont):
    """A font that lays out right-to-left scripts with Raqm, if Pillow was built with it.

    All other text uses Pillow's basic layout, which gives the same pixels on every machine.

    Args:
        path: Font file.
        size: Font size in pixels.
    """

    def __init__(self, path: Path, size: float) -> None:
        super().__init__(path, size, layout_engine=ImageFont.Layout.BASIC)
        self._raqm_font: ImageFont.FreeTypeFont | None = None
        if features.check("raqm"):
            self._raqm_font = ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.RAQM)

    def getlength(self, text: Any, *args: Any, **options: Any) -> float:
        """Return the width of a text in pixels."""
        raqm_font = self._font_for(text)
        return (raqm_font or super()).getlength(text, *args, **options)

    def getbbox(self, text: Any, *args: Any, **options: Any) -> Any:
        """Return left, top, right and bottom of a text in pixels."""
        raqm_font = self._font_for(text)
        return (raqm_font or super()).getbbox(text, *args, **options)

    def getmask2(self, text: Any, *args: Any, **options: Any) -> Any:
        """Return the mask of a text and its offset."""
        raqm_font = self._font_for(text)
        return (raqm_font or super()).getmask2(text, *args, **options)

    def _font_for(self, text: Any) -> ImageFont.FreeTypeFont | None:
        return self._raqm_font if isinstance(text, str) and has_rtl_letters(text) else None


@cache
def load_font(size: float) -> UnicodeFont:
    """Return DejaVu Sans, which matplotlib installs.

    Args:
        size: Font size in pixels.

    Example:
        >>> load_font(20).getname()
        ('DejaVu Sans', 'Book')
    """
    return UnicodeFont(_font_path(), size)


def _font_path() -> Path:
    import matplotlib as mpl

    return Path(mpl.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")


def letters_without_glyph(text: str) -> str:
    """Return the letters of a text that the font of figures lacks and draws as boxes, each once.

    Example:
        >>> letters_without_glyph("a dog: 狗, 犬, 狗")
        '狗犬'
    """
    if text.isascii():
        return ""
    from matplotlib.ft2font import FT2Font

    font = FT2Font(str(_font_path()))
    letters = dict.fromkeys(filter(str.isalnum, text))
    return "".join(letter for letter in letters if not font.get_char_index(ord(letter)))


def truncate_text(text: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    """Return a text truncated to a width in pixels, with an ellipsis if it was truncated.

    Example:
        >>> truncate_text("a man riding a horse", load_font(20), 100.0)
        'a man r…'
    """
    # No character is narrower than a pixel except combining marks, which `sanitize_text` limits.
    text = sanitize_text(" ".join(text.split()), max(1, int(width) + 1))
    if font.getlength(text) <= width:
        return text

    def truncated_width(end: int) -> float:
        return font.getlength(text[:end].rstrip() + ELLIPSIS)

    end = bisect_right(range(len(text)), width, key=truncated_width)
    while end and truncated_width(end) > width:
        end -= 1
    return text[:end].rstrip().removesuffix(ELLIPSIS) + ELLIPSIS


def wrap_text(text: str, font: ImageFont.FreeTypeFont, width: float, lines: int) -> list[str]:
    """Return a text wrapped to a width in pixels; an ellipsis ends the last line if truncated.

    Example:
        >>> wrap_text("a man riding a horse", load_font(20), 150.0, 2)
        ['a man riding a', 'horse']
    """
    words = [sanitize_text(word) for word in text.split()]
    wrapped = []
    while words and len(wrapped) < lines - 1:
        count = 1
        while count < len(words) and font.getlength(" ".join(words[: count + 1])) <= width:
            count += 1
        wrapped.append(truncate_text(" ".join(words[:count]), font, width))
        words = words[count:]
    return [*wrapped, truncate_text(" ".join(words), font, width)] if words else wrapped


def format_time(seconds: float) -> str:
    """Return a time of a video as minutes and seconds.

    Example:
        >>> format_time(83.5)
        '1:23.50'
    """
    minutes, rest = divmod(seconds, 60)
    return f"{int(minutes)}:{rest:05.2f}"


def format_probability(log_prob: float) -> str:
    """Return a log-probability as a percentage.

    Example:
        >>> format_probability(-0.1), format_probability(-9.0), format_probability(-0.001)
        ('90 %', '<1 %', '>99 %')
    """
    return format_percent(math.exp(min(log_prob, 0.0)))


def join_notes(*parts: str) -> str:
    """Return the parts of a subtitle that are not empty, with dots between them.

    Example:
        >>> join_notes("photo.jpg", "", "the model saw 35 % of the photo")
        'photo.jpg · the model saw 35 % of the photo'
    """
    return " \N{MIDDLE DOT} ".join(filter(None, parts))
