"""PTB tokenizer of the COCO evaluation code, with the character classes that it needs.

The lists of abbreviations were obtained by running the official tokenizer on every word of up to
five letters, and on 157,000 English words.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise

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


def word_spaces(words: Sequence[str]) -> tuple[bool, ...]:
    """Return whether each word of a text has a space before it; () if all have.

    There is none between letters of scripts without spaces, unless they would become a single word:
    Thai and Lao am, which is drawn above the previous letter, and letters stacked below the
    previous one.

    Example:
        >>> word_spaces(["两", "只", "狗", "t-shirt", "红"])
        (True, False, False, True, True)
        >>> word_spaces(["a", "red", "ring"])
        ()
    """
    if all(map(str.isascii, words)):
        return ()
    spaces = [_UNSPACED.findall(first + word) != [first, word] for first, word in pairwise(words)]
    return () if all(spaces) else (True, *spaces)


def join_words(words: Sequence[str]) -> str:
    """Return words as a text: with spaces, except between letters of scripts that have none.

    Law:
        Splitting the text gives the same words as splitting the words joined by spaces.

    Example:
        >>> join_words(["两", "只", "狗", "run"])
        '两只狗 run'
    """
    spaces = word_spaces(words) or (True,) * len(words)
    return "".join(" " * space + word for space, word in zip(spaces, words, strict=True))[1:]


# Abbreviations that keep their period unless a letter follows directly: mr.x is a single token.
TITLES = """
adj adm adv alex assoc asst attys atty ave brig capt cf cie cmdr col comdr cpl dept det dr drs
elec ens ft gen gov govs hon insp invt jos lieut lt maj messrs mfg mlle mme mr mrs ms msgr mt mtg
natl pfc ph pres prof profs pvt rep reps rev sen sens sfc sgt spc st ste supt supts treas vs wm
"""

# Abbreviations that keep their period even before a single letter: jan.x is two tokens.
ENDINGS = """
al ala apr ariz assn aug bancorp bhd bldg blvd bros calif co colo conn corp cos ct dak dec esq est
etc ext feb fla fri ga inc ind intl jan jr jul jun kan kans ky ltd mar md mich minn mo mon mont
neb nev nov oct okla penn plc ppte pptes ppty pptys pte ptes pty ptys rd rt sep sept seq sq sr sys
tel tenn thu thurs tue tues univ va vt wed wis wisc wyo
"""

# Abbreviations only if capitalized: "they wash." but "Seattle, Wash."
CAPITALS = "ark az del ill la mass miss ore pa tex wash"

# Abbreviations only before a number: "no. 5" but "she says no."
COUNTERS = "art ca fig figs no nos op pp prop"

# If capitalized, these words start a sentence, so a letter before them ends one: "on plan B. The".
STARTERS = """
a about according additionally after an as at but earlier he her here however if in it last many
more now once one other our she since so some such that the their then there these they this we
what when while yet you
"""


_SYMBOLS = (  # ranges of symbols that the official tokenizer recognizes, a subset of Unicode 6
    (0xA1, 0xBF), (0xD7, 0xD7), (0xF7, 0xF7), (0x2016, 0x2017), (0x201A, 0x201A),
    (0x201E, 0x2023), (0x2030, 0x2038), (0x203B, 0x203B), (0x203E, 0x2042), (0x2044, 0x2044),
    (0x2070, 0x2070), (0x2074, 0x207E), (0x2080, 0x208E), (0x20A4, 0x20A4), (0x2100, 0x214F),
    (0x2153, 0x215E), (0x2190, 0x2BFF), (0x3001, 0x3002), (0x3012, 0x3012), (0x30FB, 0x30FB),
    (0xFF01, 0xFF65), (0xFFE0, 0xFFE1), (0xFFE5, 0xFFE6),
)  # fmt: skip
_LETTER_CATEGORIES = {"Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Nd"}
_REPLACEMENTS = {
    "\x80": "$", "\x91": "«", "\x92": "’", "\x93": "“", "\x94": "”", "\x96": "–", "\x97": "–",
    "¤": "$", "«": "“", "»": "”", "\u2010": "¬", "\u2011": "¬", "–": "–", "—": "–", "―": "–",
    "\u2018": "«", "’": "’", "\u201b": "«", "“": "“", "”": "”", "…": "…", "\u2039": "«",
    "\u203a": "’", "₠": "$", "€": "$",
}  # fmt: skip


class _SimplifiedCharacters(dict[int, str]):
    """Simplified character of each code point, computed at the first access."""

    def __missing__(self, code: int) -> str:
        self[code] = simplified = _simplify_character(chr(code))
        return simplified


def _simplify_character(character: str) -> str:
    if " " <= character <= "~":
        return character
    if character in _REPLACEMENTS:
        return _REPLACEMENTS[character]
    category = unicodedata.category(character)
    code = ord(character)
    if code > 0xFFFF:  # such as emoji
        return " "
    if category in _LETTER_CATEGORIES:
        return "é"
    return "§" if any(first <= code <= last for first, last in _SYMBOLS) else " "


_SIMPLIFIED = _SimplifiedCharacters()


def simplify_characters(text: str) -> str:
    """Return a text of the same length with characters reduced to those that token rules use.

    Letters beyond ASCII become é, symbols §, characters that separate tokens a space. Quotes,
    dashes and currency signs are unified.

    Example:
        >>> simplify_characters("Ça, 5 € “là” 🙂 ™")
        'éa, 5 $ “lé”   §'
    """
    return text.translate(_SIMPLIFIED)


def _alternatives(words: str) -> str:
    """Return a pattern of any of the words, longest first."""
    return "|".join(sorted(words.split(), key=len, reverse=True))


_L = "[A-Za-zé]"
_W = "[A-Za-z0-9é]"
_A = "['’]"  # the right curly quote is an apostrophe too
_CLITIC = r"'(?i:[msd]|re|ve|ll)(?![A-Za-z])|’(?i:[msd]|re|ve|ll)"
_NUMBER = r"(?:[0-9]*(?:[.:,][0-9]+)+|[0-9]+)"
_PART = rf"(?:[dloDLO]{_A}{_W}{{2,}}|(?:[A-Za-z]\.){{2,}}|{_W}+)"
_CAPITALIZED = _alternatives(f"{CAPITALS.title()} {CAPITALS.upper()}")
_SENTENCE_START = "|".join(f"{word[0].upper()}(?i:{word[1:]})" for word in STARTERS.split())
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
_SITE = (  # lengths are bounded, so that matching time is bounded
    rf"(?i:[a-zé{_SITE_SIGN}][a-z0-9é{_SITE_SIGN}]{{,63}}\.(?:[a-z0-9é{_SITE_SIGN}]{{1,63}}\.){{,9}}"
    rf"(?:com|net|org|edu)(?:/[^{_NO_URL}]+{_URL_END})?)"
)
_TWO_WORDS = rf"(?i:cannot|gonna|gotta|lemme|gimme|wanna)(?!{_W})"

_WORDS = [  # tokens that start with a letter
    _TWO_WORDS,
    rf"{_W}+(?P<next>{_CLITIC})",
    r"[A-Za-z]*[A-MO-Za-mo-z](?P<next>[nN]['’`«][tT])",  # do n't
    r"[nN]['’`«][tT]",
    rf"(?i:{_alternatives(ENDINGS)})\.(?P<next>.?)",
    rf"(?:{_CAPITALIZED})\.(?P<next>.?)",
    rf"[A-Za-z](?P<next>\. +(?:M[rs]\.|(?:{_SENTENCE_START})(?: |$)))",  # plan b . The
    rf"{_W}+(?:¬{_W}+)*(?:[.!?]{_L}{_W}*)*",  # a plain word; dog.cat is a single token
    rf"(?:{_W}+(?:[.-]{_W}+)*|{_JOINED})\.(?P<next>[,;:])",  # "dog., cat" has dog.
    _HYPHENED,
    _UNDERSCORED,
    _JOINED,
    _SLASHED,
    rf"[A-HJ-MO-XZdlo]{_A}{_W}{{2,}}|[nN]{_A}{_L}{{2,}}|[oO]{_A}[oO]",  # o'clock, D'Angelo
    rf"{_L}+[aeiouyAEIOUY]{_A}[aeiouA-Z]{_L}*",  # ma'am, Hawai'i
    rf"(?i:[dlj]{_A}|y{_A}(?={_L})|(?:ol|somethin|dunkin){_A}|cap{_A}n)",
    r"(?i:c'mon|ev'ry|nat'l|n?e'er|o'er|d'ye)",
    rf"(?i:{_alternatives(TITLES)})\.",
    rf"(?i:{_alternatives(COUNTERS)})\.(?P<next> ?[0-9])",
    r"[A-Za-z](?:\.[A-Za-z])*\.|(?i:ph\.d\.)",  # U.S., J.
    r"[A-Z]+\$|[cC](?:\+\+|#)",
    rf"(?i:https?://[^{_NO_URL}]+{_URL_END})",
    rf"(?i:www\.(?:[^{_NO_URL}./]+\.)+[a-z]{{2,4}}/[^{_NO_URL}]+{_URL_END})",
    _SITE,
    _MAIL,
    _FILE,
]
_NUMBERS = [  # tokens that start with a digit
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
    r" ?[/?]?>|<!--[^>]{0,1000}-->",  # an HTML tag; bounded, as each <!-- may begin one
    r"@[A-Za-z_][A-Za-z0-9_]*|#[A-Za-zé]+|@+|#+",
    r"(?:\. ){2,4}\.|\.{3,5}",
    r"-{5,}|-{2,4}|[!?]+|\*+|_+|<<|>>|\\\*",
    r"[`«’“”]{1,2}|''",
    rf"[<>]?[:;=]['-]?[()DdPpO|@\[\]\\{{](?!{_W})|:o\)",  # an emoticon
    r"[-^~<>=']_[-^~<>=']",
    _SITE,
    r"&(?:amp|lt|gt|quot|apos|nbsp|mdash|ndash|#[0-9]+);",
    r".",
]


def _compile(rules: Iterable[str]) -> list[re.Pattern[str]]:
    return [re.compile(rule) for rule in rules]


_RULES = {
    "letter": _compile(_WORDS),
    "digit": _compile(_NUMBERS),
    "apostrophe": _compile([*_APOSTROPHES, *_REST]),
    "other": _compile(_REST),
}


def token_spans(shape: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each token of a text from `simplify_characters`.

    Example:
        >>> text = "a dog can't."
        >>> [text[start:end] for start, end in token_spans(text)]
        ['a', 'dog', 'ca', "n't", '.']
    """
    start = 0
    while start < len(shape):
        if shape[start] in " ¬":
            start += 1
            continue
        for end in _token_ends(shape, start):
            yield start, end
            start = end


def _token_ends(shape: str, start: int) -> tuple[int, ...]:
    """Return the end of the token at a position, or two ends for a contraction such as cannot.

    The rule with the longest match applies; a token ends before its group `next`, if it has one.
    """
    end = start + 1
    longest = 0
    pattern = ""
    for rule in _RULES[_character_kind(shape[start])]:
        match = rule.match(shape, start)
        # Of equally long matches the first rule wins, so the order of the rules matters.
        if match is not None and match.end() > longest:
            longest = match.end()
            pattern = rule.pattern
            end = match.start("next") if "next" in rule.groupindex else longest
    # Each of these is split after three letters: can not, gon na, lem me.
    return (start + 3, end) if pattern == _TWO_WORDS else (end,)


def _character_kind(character: str) -> str:
    if character.isalpha():
        return "letter"
    if character.isdigit():
        return "digit"
    return "apostrophe" if character in "'’" else "other"


# The official list without four tokens that never occur: brackets become lower case and are kept.
REMOVED = frozenset(["''", "'", "``", "`", ".", "?", "!", ",", ":", "-", "--", "...", ";"])

_TOKEN_NAMES = {
    "(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-",
    "–": "--", "…": "...", '"': "''", "«": "`", "’": "'", "“": "``", "”": "''",
    "£": "#", "¢": "cents",
    "¼": "1/4", "½": "1/2", "¾": "3/4", "⅓": "1/3", "⅔": "2/3",
    "&amp;": "&", "&lt;": "<", "&gt;": ">", "&quot;": "''", "&apos;": "'", "&nbsp;": "",
    "&mdash;": "--", "&ndash;": "--",
}  # fmt: skip
_PARENTHESES = str.maketrans({"(": "-lrb-", ")": "-rrb-"})
_CLITIC_TOKENS = re.compile("['’](?:[msd]|re|ve|ll)|n['’`\u2018\u201b]t")
# Texts whose tokens may contain spaces, or depend on the next word: numbers (5 1/2, telephone
# numbers, no. 5), tags, spaced periods.
_SPANS_SPACES = re.compile(r"[0-9<]|\. \.|\b[A-Za-z]\. +[A-Z]")


def ptb_tokenize(caption: str) -> list[str]:
    """Return the tokens of a caption for caption metrics: lower case, without punctuation.

    The tokens equal those of PTBTokenizer 3.4.1 of Stanford CoreNLP without the punctuation of the
    COCO evaluation code, on all of 35,400 captions of Flickr8k and COCO. Its peculiarities are
    kept: brackets are words, and so are two exclamation marks. A mixed number such as 5 1/2 is a
    single token that contains a no-break space. Text that is rare in captions, such as HTML
    entities and rare scripts, may be tokenized differently. In scripts without spaces between
    words (Chinese, Japanese, Thai, Lao, Burmese, Khmer) each letter is a token, so that scores
    compare characters; the official tokenizer treats a whole sentence as one token.

    Args:
        caption: Raw text. Line breaks and emoji count as spaces.

    Example:
        >>> ptb_tokenize("The man's dog can't jump over 3/4 of the logs (wet).")
        ['the', 'man', "'s", 'dog', 'ca', "n't", 'jump', 'over', '3/4', 'of', 'the', 'logs',
         '-lrb-', 'wet', '-rrb-']

    Source:
        Chen et al. 2015, arXiv:1504.00325, section 3.1.
    """
    text = separate_unspaced(caption.replace("\xad", ""))  # soft hyphens are invisible
    shape = text if text.isascii() and text.isprintable() else simplify_characters(text)
    if shape is text and not _SPANS_SPACES.search(text):
        return [token for chunk in text.split() for token in _chunk_tokens(chunk)]
    return _tokens(text, shape)


@lru_cache(maxsize=2**16)
def _chunk_tokens(chunk: str) -> tuple[str, ...]:
    """Return the tokens of a text without spaces, cached because most of them are repeated."""
    return tuple(_tokens(chunk, chunk))


def _tokens(text: str, shape: str) -> list[str]:
    """Return the tokens without punctuation of a text and its simplified characters."""
    tokens = (
        _normalize_token(text[start:end], shape[start:end]) for start, end in token_spans(shape)
    )
    return [token for token in tokens if token and token not in REMOVED]


def _normalize_token(text: str, shape: str) -> str:
    """Return a token in the notation of the official tokenizer."""
    text = text.lower()
    if text in _TOKEN_NAMES:
        return _TOKEN_NAMES[text]
    if len(shape) == 1:
        return text if shape in "é§" else _TOKEN_NAMES.get(shape, shape.lower())
    if _CLITIC_TOKENS.fullmatch(text) or not shape.strip("«’“”`"):
        return "".join(_TOKEN_NAMES.get(character, character) for character in shape.lower())
    if not text.strip(". "):
        return "..."
    if text in ("--", "---", "----"):
        return "--"
    token = text if text.startswith("<") else text.translate(_PARENTHESES)
    return token.replace(" ", "\xa0")
