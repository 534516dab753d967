"""Text in figures: the font, truncation and line wrapping."""

import math
from bisect import bisect_right
from functools import cache
from pathlib import Path
from typing import Any

from PIL import ImageFont, features

from visattn.viz.html.safe_text import ELLIPSIS, has_rtl_letters, sanitize_text

__all__ = ["ELLIPSIS", "UnicodeFont", "load_font", "truncate_text", "wrap_text"]


class UnicodeFont(ImageFont.FreeTypeFont):
    """A font that lays out right-to-left scripts with Raqm, if Pillow was built with it.

    All other text uses Pillow's basic layout, which gives the same pixels on every machine.

    Args:
        path: Font file.
        size: Font size in pixels.
    """

    def __init__(self, path: Path, size: int) -> None:
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
def load_font(size: int) -> UnicodeFont:
    """Return DejaVu Sans, which matplotlib installs.

    Args:
        size: Font size in pixels.

    Example:
        >>> load_font(20).getname()
        ('DejaVu Sans', 'Book')
    """
    import matplotlib as mpl

    path = Path(mpl.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    return UnicodeFont(path, size)


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
    words, wrapped = [sanitize_text(word) for word in text.split()], []
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
    """Return a probability as a percentage.

    Example:
        >>> format_probability(-0.1), format_probability(-9.0)
        ('90 %', '<1 %')
    """
    percent = 100 * math.exp(min(log_prob, 0.0))
    return "<1 %" if percent < 1 else f"{percent:.0f} %"
