"""Text on images and pages: fonts, line breaks, and sanitizing of what is not ours."""

import inspect
import math
import re
import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import ImageFont, features

from visattn.results.values import format_percent

if TYPE_CHECKING:
    from matplotlib.ft2font import FT2Font

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
    """A font that takes letters it lacks from fonts of the system, and shapes right-to-left text.

    Right-to-left scripts are laid out with Raqm, if Pillow was built with it. All other text uses
    Pillow's basic layout, which gives the same pixels on every machine.

    Args:
        path: Font file.
        size: Font size in pixels.
    """

    def __init__(self, path: Path, size: float) -> None:
        super().__init__(path, size, layout_engine=ImageFont.Layout.BASIC)
        self._others: dict[Path, ImageFont.FreeTypeFont] = {}
        self._raqm_font: ImageFont.FreeTypeFont | None = None
        if features.check("raqm"):
            self._raqm_font = ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.RAQM)

    def getlength(self, text: Any, *args: Any, **options: Any) -> float:
        """Return the width of a text in pixels."""
        other = self._font_for(text)
        return (other or super()).getlength(text, *args, **options)

    def getbbox(self, text: Any, *args: Any, **options: Any) -> Any:
        """Return left, top, right and bottom of a text in pixels."""
        other = self._font_for(text)
        if other is None:
            return super().getbbox(text, *args, **options)
        passed, down = self._on_baseline(super().getbbox, text, *args, **options)
        left, top, right, bottom = other.getbbox(**passed)
        return left, top + down, right, bottom + down

    def getmask2(self, text: Any, *args: Any, **options: Any) -> Any:
        """Return the mask of a text and its offset."""
        other = self._font_for(text)
        if other is None:
            return super().getmask2(text, *args, **options)
        passed, down = self._on_baseline(super().getmask2, text, *args, **options)
        mask, (x, y) = other.getmask2(**passed)
        return mask, (x, y + down)

    def _on_baseline(
        self, method: Callable[..., Any], *args: Any, **options: Any
    ) -> tuple[dict[str, Any], int]:
        """Return the arguments of a method with an anchor on the baseline, and how far to move it.

        All letters of a line stand on the baseline of this font, whatever font they are of.
        """
        bound = inspect.signature(method).bind(*args, **options).arguments
        passed = {**bound.pop("kwargs", {}), **bound}
        across, along = passed.get("anchor") or "la"
        ascent, descent = self.getmetrics()
        below = {"a": ascent, "m": (ascent - descent) // 2, "d": -descent}
        return {**passed, "anchor": f"{across}s"}, below.get(along, 0)

    def _font_for(self, text: Any) -> ImageFont.FreeTypeFont | None:
        if not isinstance(text, str) or text.isascii():
            return None
        if has_rtl_letters(text):
            return self._raqm_font
        if (path := fallback_font(text)) is None:
            return None
        if path not in self._others:
            basic = ImageFont.Layout.BASIC
            self._others[path] = ImageFont.truetype(path, self.size, layout_engine=basic)
        return self._others[path]


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


class FallbackFonts:
    """Fonts that have letters which the font of figures lacks.

    Args:
        font: The font of figures.
        others: Returns the other fonts, the preferred ones first; called when one is needed.
    """

    def __init__(self, font: Path, others: Callable[[], Sequence[Path]]) -> None:
        self._others = others
        self._font = _open_font(font)
        self._opened: dict[Path, FT2Font] = {}
        self._without: set[int] = set()  # blocks of 256 letters of which no font has one
        self._chosen: dict[str, tuple[Path | None, str]] = {}
        self._boxed: dict[str, None] = {}

    def choose(self, text: str) -> Path | None:
        """Return the other font that has the most letters of a text which the font lacks.

        None if the font has them all, or no other font has one.
        """
        if text.isascii():
            return None
        if text not in self._chosen:
            if len(self._chosen) > 4096:
                self._chosen.clear()
            self._chosen[text] = self._choose(text)
        path, boxed = self._chosen[text]
        self._boxed.update(dict.fromkeys(boxed))
        return path

    def pop_boxed(self) -> str:
        """Return the letters that were in no font since the last call, each once."""
        letters = "".join(self._boxed)
        self._boxed.clear()
        return letters

    def _choose(self, text: str) -> tuple[Path | None, str]:
        lacking = _letters_without_glyph(self._font, text)
        for letter in lacking:
            self._find(letter)
        rest = {path: _letters_without_glyph(font, text) for path, font in self._opened.items()}
        best = min(rest, key=lambda path: len(rest[path]), default=None)
        if not lacking or best is None or len(rest[best]) >= len(lacking):
            return None, lacking
        return best, rest[best]

    def _find(self, letter: str) -> None:
        """Open a font with a letter, unless one is open."""
        code = ord(letter)
        block = code >> 8
        if block in self._without or any(f.get_char_index(code) for f in self._opened.values()):
            return
        for path in self._others():
            if (font := _open_font(path)).get_char_index(code):
                self._opened[path] = font
                return
        self._without.add(block)


@cache
def _fallback_fonts() -> FallbackFonts:
    return FallbackFonts(_font_path(), _system_fonts)


def fallback_font(text: str) -> Path | None:
    """Return the font of the system that figures take for a text; None for their own.

    Example:
        >>> fallback_font("café")
    """
    return _fallback_fonts().choose(text)


def pop_boxed_letters() -> str:
    """Return the letters that figures showed as boxes since the last call, each once.

    Neither the font of figures nor one of the system has them.

    Example:
        >>> _ = pop_boxed_letters(), load_font(20).getlength("café")
        >>> pop_boxed_letters()
        ''
    """
    return _fallback_fonts().pop_boxed()


def _letters_without_glyph(font: "FT2Font", text: str) -> str:
    letters = dict.fromkeys(filter(str.isalnum, text))
    return "".join(letter for letter in letters if not font.get_char_index(ord(letter)))


@cache
def _system_fonts() -> list[Path]:
    """Return the font files of the system, upright fonts of normal weight first."""
    from matplotlib.font_manager import fontManager, weight_dict

    def plainness(font: Any) -> tuple[Any, ...]:
        weight: Any = weight_dict.get(font.weight, font.weight)
        return font.style != "normal", abs(weight - 400), "Sans" not in font.name, font.fname

    # Last Resort has a box for each letter of Unicode; matplotlib and macOS have a copy.
    usable = [f for f in fontManager.ttflist if "lastresort" not in f.name.replace(" ", "").lower()]
    fonts = sorted(usable, key=plainness)
    return [path for font in fonts if (path := Path(font.fname)).is_file()]


def _open_font(path: Path) -> "FT2Font":
    from matplotlib.ft2font import FT2Font

    return FT2Font(str(path))


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
