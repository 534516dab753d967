"""Left and right in texts about a mirrored image."""

import re

_PAIRS = (
    ("left", "right"),
    ("leftmost", "rightmost"),
    ("leftward", "rightward"),
    ("leftwards", "rightwards"),
    ("lefthand", "righthand"),
)
_OPPOSITES = {word: other for pair in _PAIRS for word, other in (pair, pair[::-1])}
_SIDE = re.compile(
    rf"(?<!\w)(?:{'|'.join(sorted(_OPPOSITES, key=len)[::-1])})(?!\w)", re.IGNORECASE
)

# What stands beside a word that names a side, whatever else does.
_BEFORE_SIDE = re.compile(
    r"(?:\b(?:the|on|to|at|from|towards?|his|her|its|their|your|my|our|whose|far|near|upper|lower|top|"
    r"bottom|front|back|rear|center|middle|mid|hard|(?:left|right)(?:\s*/\s*|\s+(?:and|or|to)\s+))|'s)"
    r"\W*$",
    re.IGNORECASE,
)
_BEFORE_LEFT = re.compile(  # "walks left", whereas "walks right behind" may mean "closely"
    r"\b(?:fac|turn|look|lean|point|head|mov|veer|walk|go|bank|gaz|glanc|swerv|tilt|jump|run|step|slid|"
    r"div|fly|flies|kick|swing)\w*\W+$",
    re.IGNORECASE,
)
_AFTER_SIDE = re.compile(r"(?:\W*-|\W+(?:of|side|hand|handed|most|corner|edge)\b)", re.IGNORECASE)
_AFTER_CORRECT = re.compile(  # a right angle, the right time
    r"\W+(?:angles?|angled|triangles?|time|place|moment|amount|size|answer|choice|now|away)\b",
    re.IGNORECASE,
)
# What stands beside left for "remaining" or "went away", and beside right for "exactly".
_BEFORE_OTHER = {
    "left": re.compile(
        r"\b(?:is|are|was|were|be|been|being|has|have|had|having|gets?|getting|got|just|already|"
        r"nothing|anything|none|he|she|it|they|we|you|who|which|"
        r"(?:no|any|few|little|only|enough|much|slices?|pieces?|bites?)(?:\s+[\w']+){0,3})\s+$",
        re.IGNORECASE,
    ),
    "right": re.compile(r"\b(?:all|just|quite|is|are|was|were|be|not)\s+$", re.IGNORECASE),
}
_AFTER_OTHER = {
    "left": re.compile(
        r"\s+(?:behind|over|overs|alone|open|out|outside|inside|unattended|untouched|uneaten|empty|"
        r"abandoned|overnight|for|standing|hanging|lying|parked|after|in|on|by|with)\b",
        re.IGNORECASE,
    ),
    "right": re.compile(
        r"\s+(?:next|by|beside|behind|before|after|above|below|under|underneath|beneath|over|in|into|"
        r"on|onto|at|up|down|out|off|through|there|here|where|when|as|near|against|along|alongside|"
        r"across|around|between|inside|outside|past|beyond|atop|back|towards?)\b",
        re.IGNORECASE,
    ),
}


def swap_sides(text: str) -> str:
    """Return a text about the mirrored image: left and right change places, all else stays.

    Case and punctuation stay. So do words that name no side, as far as the words beside them show:
    "left" for remaining or gone, as in "no seats left", and "right" for exactly or correct, as in
    "right next to" and "a right angle".

    Example:
        >>> swap_sides("A left-hand drive, Left. No seats left, right behind it.")
        'A right-hand drive, Right. No seats left, right behind it.'
    """
    return _SIDE.sub(lambda match: _opposite(match) if _is_side(match) else match[0], text)


def _is_side(match: re.Match[str]) -> bool:
    """Return whether a word names a side."""
    word, text = match[0].lower(), match.string
    if word not in _BEFORE_OTHER:
        return True
    before, end = text[max(0, match.start() - 60) : match.start()], match.end()
    if word == "right" and _AFTER_CORRECT.match(text, end):
        return False
    if _BEFORE_SIDE.search(before) or _AFTER_SIDE.match(text, end):
        return True
    if word == "left" and _BEFORE_LEFT.search(before):
        return True
    return not (_BEFORE_OTHER[word].search(before) or _AFTER_OTHER[word].match(text, end))


def _opposite(match: re.Match[str]) -> str:
    word = match[0]
    opposite = _OPPOSITES[word.lower()]
    return (
        opposite.upper() if word.isupper() else opposite.title() if word[0].isupper() else opposite
    )
