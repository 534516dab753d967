"""Text in images: one typeface, and words that fit where they stand."""

from bisect import bisect_right
from functools import cache
from pathlib import Path
from typing import Any

from PIL import ImageFont, features

from visattn.viz.html.safe_text import ELLIPSIS, runs_leftwards, shown_text

__all__ = ["ELLIPSIS", "Letters", "shortened", "typeface", "wrapped"]


class Letters(ImageFont.FreeTypeFont):
    """A typeface that also writes from right to left, and joins letters, where Pillow can.

    Everything else is laid out in Pillow's plain way, which is the same on every machine.

    Args:
        path: Of the typeface.
        size: Height of a line, in pixels.
    """

    def __init__(self, path: Path, size: int) -> None:
        super().__init__(path, size, layout_engine=ImageFont.Layout.BASIC)
        self._joined: ImageFont.FreeTypeFont | None = None
        if features.check("raqm"):
            self._joined = ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.RAQM)

    def getlength(self, text: Any, *args: Any, **options: Any) -> float:
        """Return how wide a text is, in pixels."""
        joined = self._for(text)
        return (joined or super()).getlength(text, *args, **options)

    def getbbox(self, text: Any, *args: Any, **options: Any) -> Any:
        """Return left, top, right and bottom of a text."""
        joined = self._for(text)
        return (joined or super()).getbbox(text, *args, **options)

    def getmask2(self, text: Any, *args: Any, **options: Any) -> Any:
        """Return the pixels of a text, and where they begin."""
        joined = self._for(text)
        return (joined or super()).getmask2(text, *args, **options)

    def _for(self, text: Any) -> ImageFont.FreeTypeFont | None:
        return self._joined if isinstance(text, str) and runs_leftwards(text) else None


@cache
def typeface(size: int) -> Letters:
    """Return DejaVu Sans, as it comes with matplotlib.

    Args:
        size: Height of a line, in pixels.

    Example:
        >>> typeface(20).getname()
        ('DejaVu Sans', 'Book')
    """
    import matplotlib as mpl

    path = Path(mpl.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    return Letters(path, size)


def shortened(text: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    """Return as much of a text as `width` pixels hold, with an ellipsis if that is not all.

    Example:
        >>> shortened("a man riding a horse", typeface(20), 100.0)
        'a man r…'
    """
    # No letter is narrower than a pixel, but for accents, which `shown_text` counts by themselves.
    text = shown_text(" ".join(text.split()), max(1, int(width) + 1))
    if font.getlength(text) <= width:
        return text

    def long(end: int) -> float:
        return font.getlength(text[:end].rstrip() + ELLIPSIS)

    end = bisect_right(range(len(text)), width, key=long)
    while end and long(end) > width:
        end -= 1
    return text[:end].rstrip().removesuffix(ELLIPSIS) + ELLIPSIS


def wrapped(text: str, font: ImageFont.FreeTypeFont, width: float, lines: int) -> list[str]:
    """Return a text in lines `width` pixels wide at most; the last ends in an ellipsis if it must.

    Example:
        >>> wrapped("a man riding a horse", typeface(20), 150.0, 2)
        ['a man riding a', 'horse']
    """
    rest, result = [shown_text(word) for word in text.split()], []
    while rest and len(result) < lines - 1:
        count = 1
        while count < len(rest) and font.getlength(" ".join(rest[: count + 1])) <= width:
            count += 1
        result.append(shortened(" ".join(rest[:count]), font, width))
        rest = rest[count:]
    return [*result, shortened(" ".join(rest), font, width)] if rest else result
