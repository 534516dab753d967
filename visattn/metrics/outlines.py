"""Captions in outline: one letter of a small alphabet for each letter, so that rules stay short.

The alphabet is printable ASCII, a blank for all that separates, `é` for letters and digits beyond
ASCII, `§` for signs beyond ASCII, `’“”–…` for themselves and their likes, `«` for a single quote
that opens, and `¬` for a hyphen beyond ASCII, which only holds words together.
"""

import unicodedata

_SIGNS = (  # the official tokenizer knows the signs of about Unicode 6, and by no means all
    (0xA1, 0xBF), (0xD7, 0xD7), (0xF7, 0xF7), (0x2016, 0x2017), (0x201A, 0x201A),
    (0x201E, 0x2023), (0x2030, 0x2038), (0x203B, 0x203B), (0x203E, 0x2042), (0x2044, 0x2044),
    (0x2070, 0x2070), (0x2074, 0x207E), (0x2080, 0x208E), (0x20A4, 0x20A4), (0x2100, 0x214F),
    (0x2153, 0x215E), (0x2190, 0x2BFF), (0x3001, 0x3002), (0x3012, 0x3012), (0x30FB, 0x30FB),
    (0xFF01, 0xFF65), (0xFFE0, 0xFFE1), (0xFFE5, 0xFFE6),
)  # fmt: skip
_LETTERS = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Nd"}
_KNOWN = {
    "\x80": "$", "\x91": "«", "\x92": "’", "\x93": "“", "\x94": "”", "\x96": "–", "\x97": "–",
    "¤": "$", "«": "“", "»": "”", "\u2010": "¬", "\u2011": "¬", "–": "–", "—": "–", "―": "–",
    "\u2018": "«", "’": "’", "\u201b": "«", "“": "“", "”": "”", "…": "…", "\u2039": "«",
    "\u203a": "’", "₠": "$", "€": "$",
}  # fmt: skip


class _Outlines(dict[int, str]):
    """From a character's number to its letter, found when it is first met."""

    def __missing__(self, code: int) -> str:
        self[code] = letter = _outline(chr(code))
        return letter


def _outline(letter: str) -> str:
    if " " <= letter <= "~":
        return letter
    if letter in _KNOWN:
        return _KNOWN[letter]
    kind, code = unicodedata.category(letter), ord(letter)
    if code > 0xFFFF:  # emoji, for one
        return " "
    if kind in _LETTERS:
        return "é"
    return "§" if any(first <= code <= last for first, last in _SIGNS) else " "


_TABLE = _Outlines()


def outline(text: str) -> str:
    """Return a text of the same length, in the small alphabet.

    Example:
        >>> outline("Ça, 5 € “là” 🙂 ™")
        'éa, 5 $ “lé”   §'
    """
    return text.translate(_TABLE)
