"""Where one token ends and the next begins, by the conventions of the Penn Treebank.

The rules were found by asking the official tokenizer, and are compared with it in the tests. At
each place all rules of its kind are tried; the longest match wins, and of equals the first. A group
called `next` is only looked at: it counts for the length and is not taken.
"""

import re
from collections.abc import Iterable, Iterator

from visattn.metrics.abbreviations import CAPITALS, COUNTERS, ENDINGS, STARTERS, TITLES


def _any(words: str) -> str:
    return "|".join(sorted(words.split(), key=len, reverse=True))


_L, _W = "[A-Za-zé]", "[A-Za-z0-9é]"
_A = "['’]"  # of the curly quotes, the right one serves as an apostrophe too
_CLITIC = r"'(?i:[msd]|re|ve|ll)(?![A-Za-z])|’(?i:[msd]|re|ve|ll)"
_NUMBER = r"(?:[0-9]*(?:[.:,][0-9]+)+|[0-9]+)"
_PART = rf"(?:[dloDLO]{_A}{_W}{{2,}}|(?:[A-Za-z]\.){{2,}}|{_W}+)"
_SHOUTED = _any(f"{CAPITALS.title()} {CAPITALS.upper()}")
_STARTED = "|".join(f"{word[0].upper()}(?i:{word[1:]})" for word in STARTERS.split())
_FILE_TYPES = (
    "bat|bmp|c|class|cgi|cpp|dll|docx?|exe|gif|gz|html?|h|jar|java|jpe?g|mov|mp3|pdf|php|pl|png|ppt|ps|"
    "py|sql|tar|txt|wav|x|xml|zip"
)
_NO_URL = r' "()<>{|}'
_URL_END = rf"[^{_NO_URL}.!?,-]"
_SITE_SIGN = "#%&*+~«’“”–…§"

_HYPHENED = rf"(?:[A-Za-z0-9][A-Za-z0-9.,]*|{_PART})(?:-{_PART})+"  # t-shirt, non-U.S.
_UNDERSCORED = rf"{_W}+(?:[_-]{_W}+)+"
_JOINED = r"[A-Z]+(?:(?:&(?:amp;)?|\+)[A-Z]+)+"  # AT&T, but at & t
_SLASHED = r"[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}(?:\\?/[A-Za-z0-9]+(?:-[A-Za-z]+){0,2}){1,2}"
_FILE = rf"[A-Za-z0-9][A-Za-z0-9.]*\.(?i:{_FILE_TYPES})(?=[ ,.;:!?]|$)"
_MAIL = rf"[A-Za-z0-9][^{_NO_URL}@]{{,64}}@(?:[^{_NO_URL}.@]+\.)*[^{_NO_URL}.@]+"
_SITE = (  # as long as names can be: an endless one would take endless time
    rf"(?i:[a-zé{_SITE_SIGN}][a-z0-9é{_SITE_SIGN}]{{,63}}\.(?:[a-z0-9é{_SITE_SIGN}]{{1,63}}\.){{,9}}"
    rf"(?:com|net|org|edu)(?:/[^{_NO_URL}]+{_URL_END})?)"
)
_TWO_WORDS = rf"(?i:cannot|gonna|gotta|lemme|gimme|wanna)(?!{_W})"

_WORDS = [  # what begins with a letter
    _TWO_WORDS,
    rf"{_W}+(?P<next>{_CLITIC})",
    r"[A-Za-z]*[A-MO-Za-mo-z](?P<next>[nN]['’`«][tT])",  # do n't
    r"[nN]['’`«][tT]",
    rf"(?i:{_any(ENDINGS)})\.(?P<next>.?)",
    rf"(?:{_SHOUTED})\.(?P<next>.?)",
    rf"[A-Za-z](?P<next>\. +(?:M[rs]\.|(?:{_STARTED})(?: |$)))",  # plan b . The
    rf"{_W}+(?:¬{_W}+)*(?:[.!?]{_L}{_W}*)*",  # a plain word; dog.cat is one
    rf"(?:{_W}+(?:[.-]{_W}+)*|{_JOINED})\.(?P<next>[,;:])",  # "dog., cat" has dog.
    _HYPHENED,
    _UNDERSCORED,
    _JOINED,
    _SLASHED,
    rf"[A-HJ-MO-XZdlo]{_A}{_W}{{2,}}|[nN]{_A}{_L}{{2,}}|[oO]{_A}[oO]",  # o'clock, D'Angelo
    rf"{_L}+[aeiouyAEIOUY]{_A}[aeiouA-Z]{_L}*",  # ma'am, Hawai'i
    rf"(?i:[dlj]{_A}|y{_A}(?={_L})|(?:ol|somethin|dunkin){_A}|cap{_A}n)",
    r"(?i:c'mon|ev'ry|nat'l|n?e'er|o'er|d'ye)",
    rf"(?i:{_any(TITLES)})\.",
    rf"(?i:{_any(COUNTERS)})\.(?P<next> ?[0-9])",
    r"[A-Za-z](?:\.[A-Za-z])*\.|(?i:ph\.d\.)",  # U.S., J.
    r"[A-Z]+\$|[cC](?:\+\+|#)",
    rf"(?i:https?://[^{_NO_URL}]+{_URL_END})",
    rf"(?i:www\.(?:[^{_NO_URL}./]+\.)+[a-z]{{2,4}}/[^{_NO_URL}]+{_URL_END})",
    _SITE,
    _MAIL,
    _FILE,
]
_NUMBERS = [  # what begins with a digit
    rf"{_W}+(?:¬{_W}+)*",
    rf"{_W}+(?:-{_W}+)*\.(?P<next>[,;:])",
    _HYPHENED,
    _UNDERSCORED,
    _SLASHED,
    _NUMBER,
    r"(?:[0-9]{1,4}[- ])?[0-9]{1,4}/[0-9]{1,4}",  # 5 1/2
    r"[0-9]{1,2}[-/][0-9]{1,2}[-/][0-9]{2,4}",  # a date
    r"(?:[0-9]{2,4}[- ])?[0-9]{2,4}[- ][0-9]{3,4}[- ]?[0-9]{3,5}",  # a telephone
    _FILE,
    _MAIL,
]
_APOSTROPHES = [
    _CLITIC,
    r"'[nN](?:['’]|(?= |$))|’[nN]['’]?",  # rock 'n' roll
    r"'[tT](?=(?i:is|was))",
    rf"{_A}(?i:em|till?|cause)",
    rf"{_A}(?:[2-9]0s|[0-9]{{2}}(?= |$))",  # '90s, '68
]
_REST = [
    rf"[-+]{_NUMBER}|{_NUMBER}",
    r"\([0-9]{2,3}\) ?[0-9]{3,4}[- ]?[0-9]{3,5}",  # a telephone
    r"</?[!?]?[A-Za-z][A-Za-z0-9.:@_-]*(?: +[A-Za-z:_-]+(?: *= *(?:\"[^\"]*\"|'[^']*'))?)*"
    r" ?[/?]?>|<!--[^>]*-->",  # a tag of HTML
    r"@[A-Za-z_][A-Za-z0-9_]*|#[A-Za-zé]+|@+|#+",
    r"(?:\. ){2,4}\.|\.{3,5}",
    r"-{5,}|-{2,4}|[!?]+|\*+|_+|<<|>>|\\\*",
    r"[`«’“”]{1,2}|''",
    rf"[<>]?[:;=]['-]?[()DdPpO|@\[\]\\{{](?!{_W})|:o\)",  # a face
    r"[-^~<>=']_[-^~<>=']",
    _SITE,
    r"&(?:amp|lt|gt|quot|apos|nbsp|mdash|ndash|#[0-9]+);",
    r".",
]


def _compiled(rules: Iterable[str]) -> list[re.Pattern[str]]:
    return [re.compile(rule) for rule in rules]


_BY_KIND = {
    "letter": _compiled(_WORDS),
    "digit": _compiled(_NUMBERS),
    "apostrophe": _compiled([*_APOSTROPHES, *_REST]),
    "other": _compiled(_REST),
}


def spans(shape: str) -> Iterator[tuple[int, int]]:
    """Yield where each token of an outline begins and ends.

    Example:
        >>> text = "a dog can't."
        >>> [text[first:last] for first, last in spans(text)]
        ['a', 'dog', 'ca', "n't", '.']
    """
    place = 0
    while place < len(shape):
        if shape[place] in " ¬":
            place += 1
            continue
        for end in _ends(shape, place):
            yield place, end
            place = end


def _ends(shape: str, place: int) -> tuple[int, ...]:
    """Return where the token that begins here ends; two places where it is two words in one."""
    best, longest, winner = place + 1, 0, ""
    for rule in _BY_KIND[_kind(shape[place])]:
        found = rule.match(shape, place)
        if found is not None and found.end() > longest:
            longest, winner = found.end(), rule.pattern
            best = found.start("next") if "next" in rule.groupindex else longest
    return (place + 3, best) if winner == _TWO_WORDS else (best,)


def _kind(letter: str) -> str:
    if letter.isalpha():
        return "letter"
    return "digit" if letter.isdigit() else "apostrophe" if letter in "'’" else "other"
