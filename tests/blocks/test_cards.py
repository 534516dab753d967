"""The catalogue is the one that was agreed, and each card says what is to be known, and is right."""

import inspect
import math
import re
from typing import Any, get_args

import pytest

from visattn.blocks.cards import Kind
from visattn.blocks.catalogues import BLOCKS, create, info, names

AGREED = [
    "se",
    "ese",
    "eca",
    "srm",
    "gct",
    "gc",
    "spatial",
    "sse",
    "gate",
    "stn",
    "cbam",
    "bam",
    "scse",
    "coordinate",
    "triplet",
    "simam",
    "sk",
    "split",
    "nonlocal",
    "danet",
    "crisscross",
    "a2",
    "botnet",
]

# What a formula calls by a letter and does not define: the block's option, or its value if none.
LETTERS: dict[str, dict[str, str]] = {
    "botnet": {"H": "heads", "d": "C // H"},
    "gate": {"G": "C"},
    "sk": {"M": "len(dilations)", "G": "gcd(groups, C)"},
    "split": {"R": "radix", "G": "groups"},
}


def evaluated(formula: str, letters: dict[str, Any], block: str) -> int:
    """Return what a formula comes to: `2 C h + h, with h = max(1, C // reduction); more words`."""
    total, *rest = re.split(r",? with |, (?=\w+ = )| and (?=\w+ (?:=|the|heads))", first(formula))
    values = dict(letters)
    said = {**LETTERS.get(block, {})}
    for definition in rest:
        letter, _, value = definition.partition(" = ")
        if value:
            said[letter.strip()] = value
    for _ in said:  # a definition may use a later one
        for letter, value in said.items():
            try:
                values[letter] = calculated(value, values)
            except NameError:
                continue
    return calculated(total, values)


def first(formula: str) -> str:
    return formula.partition(";")[0]


def calculated(expression: str, values: dict[str, Any]) -> Any:
    """Return the value of an expression in which products are written side by side."""
    text = expression.partition(" if ")[0].replace("^", "**").replace("²", "**2")
    text = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", text)
    known = {"max": max, "min": min, "gcd": math.gcd, "len": len, "int": int, "abs": abs,
             "log2": math.log2, "round": round}  # fmt: skip
    return eval(text, {"__builtins__": {}}, {**known, **values})


def defaults(name: str, channels: int) -> dict[str, Any]:
    parameters = inspect.signature(BLOCKS[name]).parameters.values()
    options = {parameter.name: parameter.default for parameter in parameters}
    return {**options, "C": channels, "k": options.get("kernel")}


def test_the_catalogue_is_the_one_that_was_agreed() -> None:
    assert list(BLOCKS) == names() == AGREED


@pytest.mark.parametrize("name", names())
def test_a_card_is_complete(name: str) -> None:
    card = info(name)
    assert card.name == name
    assert card.kind in get_args(Kind)
    assert re.fullmatch(r"\S.*\S", card.title)
    assert re.match(r"[A-Z]\w+ .*20\d\d, (arXiv:\d{4}\.\d{5}$|[A-Z]{3,}, \S)", card.paper)
    assert re.search(r"\by(_\w+|\[\w\])? = ", card.equation)
    assert card.parameters
    lines = [*card.deviations, *card.weights]
    assert [line for line in lines if line != line.strip() or line.endswith(".")] == []


@pytest.mark.parametrize("channels", [16, 48, 256, 1024])
@pytest.mark.parametrize("name", names())
def test_the_formula_of_a_card_counts_what_there_is(name: str, channels: int) -> None:
    count = sum(parameter.numel() for parameter in create(name, channels).parameters())
    assert evaluated(info(name).parameters, defaults(name, channels), name) == count


@pytest.mark.parametrize("name", names())
def test_a_block_and_its_card_name_the_same_paper(name: str) -> None:
    """The docstring's Source and the card agree."""
    number = re.search(r"arXiv:\d{4}\.\d{5}|proceedings\S+", info(name).paper)
    assert number is not None
    assert number.group() in (inspect.getdoc(BLOCKS[name]) or "")
