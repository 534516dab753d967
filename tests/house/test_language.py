"""Language of the project: names and prose in the field's terms (CONTRIBUTING.md)."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PYTHON = sorted(path for folder in ("visattn", "tools", "tests") for path in (ROOT / folder).rglob("*.py"))
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/**/*.md", "configs/*", "notebooks/*.ipynb", "visattn/**/*.html", "visattn/**/*.js")
    for path in ROOT.glob(pattern)
)

NAMES = {"told", "found", "seen", "one", "some", "asked", "given", "laid", "held", "sought"}
"""Words that do not say what a value is: name it `logits`, `attention`, `matches`, `image` instead."""

PARTS = {"told", "asked", "laid", "sought", "quieten", "foresee", "rehearse", "picture", "pictures", "colour", "grey"}
"""Words that are also refused inside a name, such as `_told` or `asked_for`."""

PROSE = [
    r"\btold\b", r"\basked\b", r"\bsought\b", r"\bof ours\b", r"\bnobody\b", r"\bsomebody\b", r"\bin passing\b",
    r"\bpassed over\b", r"\bhas the last word\b", r"\bstands there\b", r"\bstands in for\b", r"\bcolou?rful\b",
    r"\bpictures?\b", r"\bcolours?\b", r"\bgrey\b", r"\bneighbours?\b", r"\bnormalis", r"\bcentre", r"\bbehaviour",
]  # fmt: skip
"""Old words and British spellings that no page, message, comment or docstring uses."""

FIRST_WORDS = {"How", "What", "Where", "Which", "Why", "Who"}


def tokens(path: Path) -> Iterator[tokenize.TokenInfo]:
    return tokenize.generate_tokens(io.StringIO(path.read_text()).readline)


def refused_names(path: Path) -> Iterator[str]:
    for token in tokens(path):
        if token.type == tokenize.NAME:
            parts = {part.lower() for part in token.string.split("_")}
            if token.string in NAMES or (parts & PARTS and not token.string.startswith("test_")):
                yield f"{path.relative_to(ROOT)}:{token.start[0]}: {token.string}"


def refused_prose(path: Path) -> Iterator[str]:
    pattern = re.compile("|".join(PROSE), re.IGNORECASE)
    for number, line in enumerate(path.read_text().splitlines(), 1):
        for match in pattern.finditer(line):
            yield f"{path.relative_to(ROOT)}:{number}: {match[0]}"


def test_names_say_what_a_value_is() -> None:
    assert [name for path in PYTHON if path != Path(__file__) for name in refused_names(path)] == []


def test_prose_uses_no_old_word() -> None:
    paths = [path for path in [*PYTHON, *PAGES] if path != Path(__file__)]
    assert [line for path in paths for line in refused_prose(path)] == []


def test_module_docstrings_say_what_the_module_is() -> None:
    firsts = {path: (ast.get_docstring(ast.parse(path.read_text())) or "").split(" ")[0] for path in PYTHON}
    assert [str(path.relative_to(ROOT)) for path, word in firsts.items() if word in FIRST_WORDS] == []
