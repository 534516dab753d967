"""Text in pictures: one typeface, and words that fit where they stand."""

from bisect import bisect_right
from functools import cache
from pathlib import Path

from PIL import ImageFont

ELLIPSIS = "\N{HORIZONTAL ELLIPSIS}"


@cache
def typeface(size: int) -> ImageFont.FreeTypeFont:
    """Return DejaVu Sans, as it comes with matplotlib.

    Args:
        size: Height of a line, in pixels.

    Example:
        >>> typeface(20).getname()
        ('DejaVu Sans', 'Book')
    """
    import matplotlib as mpl

    path = Path(mpl.get_data_path(), "fonts", "ttf", "DejaVuSans.ttf")
    return ImageFont.truetype(path, size, layout_engine=ImageFont.Layout.BASIC)


def shortened(text: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    """Return as much of a text as `width` pixels hold, with an ellipsis if that is not all.

    Example:
        >>> shortened("a man riding a horse", typeface(20), 100.0)
        'a man r…'
    """
    text = " ".join(text.split())
    if font.getlength(text) <= width:
        return text

    def long(end: int) -> float:
        return font.getlength(text[:end].rstrip() + ELLIPSIS)

    end = bisect_right(range(len(text)), width, key=long)
    while end and long(end) > width:
        end -= 1
    return text[:end].rstrip() + ELLIPSIS


def wrapped(text: str, font: ImageFont.FreeTypeFont, width: float, lines: int) -> list[str]:
    """Return a text in lines `width` pixels wide at most; the last ends in an ellipsis if it must.

    Example:
        >>> wrapped("a man riding a horse", typeface(20), 150.0, 2)
        ['a man riding a', 'horse']
    """
    rest, result = text.split(), []
    while rest and len(result) < lines - 1:
        count = len(rest)
        while count > 1 and font.getlength(" ".join(rest[:count])) > width:
            count -= 1
        result.append(shortened(" ".join(rest[:count]), font, width))
        rest = rest[count:]
    return [*result, shortened(" ".join(rest), font, width)] if rest else result
