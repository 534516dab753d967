"""Character classes of regular expressions: marks of letters, and scripts without spaces."""

import re
import unicodedata
from collections.abc import Iterator

# Scripts without spaces between words: Han, kana, bopomofo, Thai, Lao, Burmese, Khmer.
UNSPACED_LETTERS = (
    "\u3005-\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
    "\u3041-\u3096\u309d-\u309f\u30a1-\u30fa\u30fc-\u30ff\u31f0-\u31ff\uff66-\uff9d\u3105-\u312f"
    "\u0e01-\u0e30\u0e32\u0e33\u0e40-\u0e46\u0e81-\u0eb0\u0eb2\u0eb3\u0ebd\u0ec0-\u0ec6\u0edc-\u0edf"
    "\u1000-\u102a\u103f\u1050-\u1055\u105a-\u105d\u1061\u1065\u1066\u106e-\u1070\u1075-\u1081\u108e"
    "\u1780-\u17b3\u17d7"
)
"""Ranges for the inside of a character class; a letter of them, with its marks, is a token."""
_VOWELS = "\u0e33\u0eb3"  # Thai and Lao am, which is drawn above the letter before it
_STACKING = "\u1039\u17d2"  # write the next Burmese or Khmer letter below this one


def _mark_ranges() -> Iterator[str]:
    """Yield ranges of the characters that Unicode calls marks."""
    first = -1
    for code in range(0x300, 0x20000):
        is_mark = unicodedata.category(chr(code)).startswith("M")
        if is_mark and first < 0:
            first = code
        elif not is_mark and first >= 0:
            yield f"{chr(first)}-{chr(code - 1)}"
            first = -1


MARKS = "".join(_mark_ranges())
"""Ranges of combining marks: vowel signs and accents, which belong to the letter before them."""
UNSPACED_TOKEN = (
    rf"[{UNSPACED_LETTERS}](?:[{MARKS}{_VOWELS}]|(?<=[{_STACKING}])[{UNSPACED_LETTERS}])*"
)
"""Pattern of a letter of a script without spaces, with its marks and the letters below it."""
_UNSPACED = re.compile(UNSPACED_TOKEN)
_PUNCTUATION = dict.fromkeys(map(ord, "、。〈〉《》「」『』【】・！（），．：；？"), " ")  # noqa: RUF001


def separate_unspaced(text: str) -> str:
    """Return a text with spaces around each letter of scripts that have no spaces between words.

    Their punctuation becomes spaces.

    Example:
        >>> separate_unspaced("两只狗, run。").split()
        ['两', '只', '狗', ',', 'run']
    """
    if text.isascii():
        return text
    return _UNSPACED.sub(r" \g<0> ", text.translate(_PUNCTUATION))
