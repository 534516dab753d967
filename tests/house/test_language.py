"""Language of the project: names and prose in the field's terms (CONTRIBUTING.md)."""

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sorted(
    path
    for folder in ("visattn", "tools", "tests")
    for path in (ROOT / folder).rglob("*.py")
    if path != Path(__file__).resolve()  # it lists the words
)
PATTERNS = (
    "*.md",
    "docs/**/*.md",
    "configs/*",
    "notebooks/*.ipynb",
    "visattn/**/*.html",
    "**/*.js",
)
PAGES = sorted(
    path for pattern in PATTERNS for path in ROOT.glob(pattern) if ".venv" not in str(path)
)

NAMES = {"told", "found", "seen", "one", "some", "asked", "given", "laid", "held", "sought"}
"""Words that do not say what a value is: name it `logits`, `attention`, `matches`, `image`."""

PARTS = {"told", "asked", "laid", "sought", "quieten", "foresee", "rehearse", "picture", "colour"}
"""Words that are refused inside a name too, such as `_told` or `asked_for`."""

PROSE = (
    "told|asked|sought|of ours|nobody|somebody|in passing|passed over|has the last word|"
    "stands there|stands in for|pictures?|colours?|grey|neighbours?|normalis|centre|behaviour"
)
"""Old words and British spellings that no page, message, comment or docstring uses."""

OF_HYPOTHESIS = ("from hypothesis import ", "@given(")
"""Starts of lines that name `given`, the decorator of hypothesis."""

FIRST_WORDS = {"How", "What", "Where", "Which", "Why", "Who"}


def refused_names(path: Path) -> Iterator[str]:
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.string == "given" and token.line.startswith(OF_HYPOTHESIS):
            continue
        parts = {part.lower() for part in token.string.split("_")}
        if token.type == tokenize.NAME and (token.string in NAMES or parts & PARTS):
            yield f"{path.relative_to(ROOT)}:{token.start[0]}: {token.string}"


def refused_prose(path: Path) -> Iterator[str]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for match in re.finditer(rf"\b(?:{PROSE})", line, re.IGNORECASE):
            yield f"{path.relative_to(ROOT)}:{number}: {match[0]}"


def test_names_say_what_a_value_is() -> None:
    assert [name for path in PYTHON for name in refused_names(path)] == []


def test_prose_uses_no_banned_word() -> None:
    assert [line for path in (*PYTHON, *PAGES) for line in refused_prose(path)] == []


def test_module_docstrings_say_what_the_module_is() -> None:
    question = re.compile(rf'\s*r?"""\s*(?:{"|".join(FIRST_WORDS)})\b')
    assert [str(path) for path in PYTHON if question.match(path.read_text())] == []
