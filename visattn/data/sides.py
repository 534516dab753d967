"""Words for left and right, which a mirrored photo makes wrong."""

import re
import unicodedata

# Words, or how they begin. Where spaces separate words, "bright" is no side.
_SIDES = re.compile(
    r"\b(?:left|right"  # English
    r"|links|linke(?!d)|recht[se]"  # German, Dutch
    r"|gauche|droit"  # French
    r"|izquierd|derech"  # Spanish
    r"|(?:sini|de)str[aeio]\b"  # Italian
    r"|esquerd|direit"  # Portuguese
    r"|слева|справа|(?:в|на)?(?:лев|прав)[ыаоуе])"  # Russian
    r"|يسار|يمين|يسر|يمن"  # Arabic, which writes articles and prepositions before them
    r"|[左右]|ひだり|みぎ"  # Chinese, Japanese
    r"|왼|오른|[좌우]측",  # Korean
    re.IGNORECASE,
)


def says_side(text: str) -> bool:
    """Return whether a text says left or right, in any of twelve languages.

    The languages are English, German, Dutch, French, Spanish, Italian, Portuguese, Russian, Arabic,
    Chinese, Japanese and Korean. Other meanings count as well, as in "no seats left".

    Example:
        >>> [text for text in ("a left-hand drive", "狗在右边", "a bright day") if says_side(text)]
        ['a left-hand drive', '狗在右边']
    """
    return _SIDES.search(unicodedata.normalize("NFKC", text)) is not None
