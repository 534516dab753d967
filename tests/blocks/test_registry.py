"""Registered blocks: the list of names, and the correctness of their metadata."""

import inspect
import math
import re
from collections.abc import Callable
from typing import Any, get_args

import pytest

from visattn.blocks.base import BlockKind
from visattn.blocks.registry import BLOCKS, block_info, block_name, create_block, list_blocks

SAVED_BLOCKS = (  # names in files of users
    *("se", "ese", "eca", "srm", "gct", "gc"),
    *("spatial", "sse", "gate", "stn"),
    *("cbam", "bam", "scse", "coordinate", "triplet", "simam"),
    *("sk", "split"),
    *("nonlocal", "danet", "crisscross", "a2", "botnet"),
)

# Values of names in formulas, and of arguments that are None.
LETTERS: dict[str, dict[str, Callable[[int], int]]] = {
    "botnet": {"H": lambda channels: math.gcd(channels, 4), "R": lambda _: 13},
    "eca": {"k": lambda channels: int((math.log2(channels) + 1) / 2) | 1},
    "gate": {"G": lambda channels: channels},
    "sk": {"M": lambda _: 2, "G": lambda channels: math.gcd(channels, 32)},
    "split": {"R": lambda _: 2},
}
FUNCTIONS = {"max": max, "min": min, "gcd": math.gcd}
DEFINITION = re.compile(r"\b(\w) = ((?:[^(),;]|\([^()]*\))+?)(?= and |,|;|$| if )")


def evaluated(formula: str, values: dict[str, Any]) -> int:
    """Evaluate a formula such as `2 C h + h, with h = max(1, C // reduction); comment`."""
    count = re.match(r"(?:[^(),;]|\([^()]*\))+", formula)
    assert count is not None
    values = dict(values)
    for letter, expression in DEFINITION.findall(formula):  # a later value may use earlier ones
        values.setdefault(letter, calculated(expression, values))
    return calculated(count.group(), values)


def calculated(expression: str, values: dict[str, Any]) -> Any:
    """Evaluate an expression with implicit multiplication."""
    text = re.sub(r"(?<=[\w)]) (?=[\w(])", " * ", expression.strip().replace("^", "**"))
    return eval(text, {"__builtins__": {}}, {**FUNCTIONS, **values})


def known(name: str, channels: int) -> dict[str, Any]:
    options = {
        option.name: option.default
        for option in inspect.signature(BLOCKS[name]).parameters.values()
        if option.name != "channels"
    }
    kernel = {"k": options["kernel_size"]} if options.get("kernel_size") else {}
    letters = {letter: value(channels) for letter, value in LETTERS.get(name, {}).items()}
    return {**options, "C": channels, **kernel, **letters}


def test_list_of_registered_blocks() -> None:
    assert list(BLOCKS) == list_blocks()
    assert [name for name in list_blocks() if name in SAVED_BLOCKS] == list(SAVED_BLOCKS)


@pytest.mark.parametrize("name", list_blocks())
def test_block_info_is_complete(name: str) -> None:
    card = block_info(name)
    assert card.name == name
    assert card.kind in get_args(BlockKind)
    assert re.fullmatch(r"\S.*\S", card.title)
    assert re.match(r"[A-Z]\w+ .*20\d\d, (arXiv:\d{4}\.\d{5}$|[A-Z]{3,}, \S)", card.paper)
    assert re.search(r"\by(_\w+|\[\w\])? = ", card.equation)
    assert card.parameters
    assert [line for line in card.deviations if line != line.strip() or line.endswith(".")] == []


@pytest.mark.parametrize("channels", [16, 48, 256, 1024])
@pytest.mark.parametrize("name", list_blocks())
def test_parameter_formula_matches_parameter_count(name: str, channels: int) -> None:
    count = sum(parameter.numel() for parameter in create_block(name, channels).parameters())
    assert evaluated(block_info(name).parameters, known(name, channels)) == count


@pytest.mark.parametrize("name", list_blocks())
def test_docstring_and_block_info_cite_the_same_paper(name: str) -> None:
    authors = re.match(r"[A-Z]\w+( et al\.| and \w+)? 20\d\d", block_info(name).paper)
    number = re.search(r"arXiv:\d{4}\.\d{5}", block_info(name).paper)
    doc = inspect.getdoc(BLOCKS[name]) or ""
    assert authors is not None
    assert authors.group() in doc
    assert number is None or number.group() in doc


def test_formulas_are_evaluated() -> None:
    formula = "2 C^2 / r + 3 (h + 1) h, with h = max(1, C // reduction) and r = 2; 5 more with bias"
    assert evaluated(formula, {"C": 12, "reduction": 4}) == 2 * 144 / 2 + 3 * 4 * 3


def test_case_hyphens_and_underscores_of_a_name_do_not_matter() -> None:
    for other, name in {
        "SE": "se",
        "scSE": "scse",
        "Non-local": "nonlocal",
        "CBAM": "cbam",
    }.items():
        assert block_info(other).name == name
        assert block_name(create_block(other, 16)) == name


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("CBMA", "there is no block named 'CBMA'; did you mean cbam"),
        (
            "qqqq",
            r"choose from se, ese, .*botnet \(a block of your own: "
            r"call va.register_block\(MyBlock\)",
        ),
    ],
)
def test_unknown_name_gets_suggestions(name: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        create_block(name, 16)
