"""Words that keep their full stop.

The lists were found by asking the official tokenizer about every word of up to five letters, and
about 157,000 English words for the longer ones.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import lru_cache

# A letter glued on makes a name of these, as it does of any word: mr.x is one token.
TITLES = """
adj adm adv alex assoc asst attys atty ave brig capt cf cie cmdr col comdr cpl dept det dr drs
elec ens ft gen gov govs hon insp invt jos lieut lt maj messrs mfg mlle mme mr mrs ms msgr mt mtg
natl pfc ph pres prof profs pvt rep reps rev sen sens sfc sgt spc st ste supt supts treas vs wm
"""

# A single letter glued on does not: jan.x is two tokens.
ENDINGS = """
al ala apr ariz assn aug bancorp bhd bldg blvd bros calif co colo conn corp cos ct dak dec esq est
etc ext feb fla fri ga inc ind intl jan jr jul jun kan kans ky ltd mar md mich minn mo mon mont
neb nev nov oct okla penn plc ppte pptes ppty pptys pte ptes pty ptys rd rt sep sept seq sq sr sys
tel tenn thu thurs tue tues univ va vt wed wis wisc wyo
"""

# Words of their own, unless a capital says otherwise: "they wash." but "Seattle, Wash."
CAPITALS = "ark az del ill la mass miss ore pa tex wash"

# Only before a number: "no. 5" but "she says no."
COUNTERS = "art ca fig figs no nos op pp prop"

# A capital one of these begins a sentence, so that the letter before it ends one: "on plan B. The".
STARTERS = """
a about according additionally after an as at but earlier he her here however if in it last many
more now once one other our she since so some such that the their then there these they this we
what when while yet you
"""


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


def simplify_characters(text: str) -> str:
    """Return a text of the same length, in the small alphabet.

    Example:
        >>> simplify_characters("Ça, 5 € “là” 🙂 ™")
        'éa, 5 $ “lé”   §'
    """
    return text.translate(_TABLE)


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


def token_spans(shape: str) -> Iterator[tuple[int, int]]:
    """Yield where each token of an outline begins and ends.

    Example:
        >>> text = "a dog can't."
        >>> [text[first:last] for first, last in token_spans(text)]
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


# The official list, less four that never occur: brackets come out in lower case and stay.
REMOVED = frozenset(["''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"])

_NAMES = {
    "(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-",
    "–": "--", "…": "...", '"': "''", "«": "`", "’": "'", "“": "``", "”": "''",
    "£": "#", "¢": "cents",
    "¼": "1/4", "½": "1/2", "¾": "3/4", "⅓": "1/3", "⅔": "2/3",
    "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": "''", "&apos;": "'", "&nbsp;": "",
    "&mdash;": "--", "&ndash;": "--",
}  # fmt: skip
_ROUND = str.maketrans({"(": "-lrb-", ")": "-rrb-"})
_CLITIC_TOKENS = re.compile("['’](?:[msd]|re|ve|ll)|n['’`\u2018\u201b]t")
# What lies across blanks: numbers (5 1/2, telephones, no. 5), tags, stops in a row.
_LOOKS_ACROSS = re.compile(r"[0-9<]|\. \.|\b[A-Za-z]\. +[A-Z]")


def ptb_tokenize(caption: str) -> list[str]:
    """Return the tokens of a caption that count in scores: lower case, without punctuation.

    They are those of the official tokenizer (Stanford's PTBTokenizer 3.4.1) with the official list
    of punctuation taken out, on all of 35,400 captions of Flickr8k and COCO. Oddities are kept:
    brackets are words, two exclamation marks are one. Numbers that belong together, as in 5 1/2,
    are one token with a no-break space in it. What lies far from captions may differ: entities of
    HTML, letters of rare scripts.

    Args:
        caption: As it was written. Line breaks count as blanks; emoji count as nothing.

    Example:
        >>> ptb_tokenize("The man's dog can't jump over 3/4 of the logs (wet).")
        ['the', 'man', "'s", 'dog', 'ca', "n't", 'jump', 'over', '3/4', 'of', 'the', 'logs',
         '-lrb-', 'wet', '-rrb-']

    Source:
        Chen et al. 2015, arXiv:1504.00325, section 3.1.
    """
    text = caption.replace("\xad", "")  # a soft hyphen is none
    shape = text if text.isascii() and text.isprintable() else simplify_characters(text)
    if shape is text and not _LOOKS_ACROSS.search(text):
        return [token for chunk in text.split() for token in _of_chunk(chunk)]
    return _kept(text, shape)


@lru_cache(maxsize=2**16)
def _of_chunk(chunk: str) -> tuple[str, ...]:
    """Return what stays of a piece without blanks; pieces come again and again."""
    return tuple(_kept(chunk, chunk))


def _kept(text: str, shape: str) -> list[str]:
    tokens = (_named(text[first:last], shape[first:last]) for first, last in token_spans(shape))
    return [token for token in tokens if token and token not in REMOVED]


def _named(text: str, shape: str) -> str:
    """Return a token as the official tokenizer writes it."""
    text = text.lower()
    if text in _NAMES:
        return _NAMES[text]
    if len(shape) == 1:
        return text if shape in "é§" else _NAMES.get(shape, shape.lower())
    if _CLITIC_TOKENS.fullmatch(text) or not shape.strip("«’“”`"):
        return "".join(_NAMES.get(letter, letter) for letter in shape.lower())
    if not text.strip(". "):
        return "..."
    if text in ("--", "---", "----"):
        return "--"
    named = text if text.startswith("<") else text.translate(_ROUND)
    return named.replace(" ", "\xa0")
