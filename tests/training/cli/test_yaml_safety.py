"""Hostile YAML is refused within milliseconds, and every plain config is accepted."""

import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings, strategies as st
from yaml_bombs import BOMB, bomb

from visattn.training.cli import yaml_safety
from visattn.training.cli.yaml_safety import MAX_LENGTH, check_yaml, read_config

CONFIGS = Path(__file__).parents[3] / "configs"


MERGES = "\n".join(
    ["a0: &a0 {" + ", ".join(f"k{n}: 1" for n in range(9)) + "}"]
    + [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 9)]
)
ATTACKS: dict[str, tuple[str, str]] = {
    "alias bomb": (BOMB, r"line 6: expands to more than 100,000 keys and values"),
    "merge bomb": (MERGES, "expands to more than"),
    "repeated long text": (
        "a: &a " + "x" * 90_000 + "\nb: [" + ", ".join(["*a"] * 100) + "]", "expands to more than",
    ),
    "many values": ("a: [" + "1," * 400_000 + "]", "more than 100,000 keys and values"),
    "alias of its container": ("a: &a [*a]", "line 1: an alias refers to the value that contains"),
    "undefined alias": ("a: *unknown", "is not valid YAML: found undefined alias, line 1"),
    "deep lists": ("a: " + "[" * 5_000, "more than 100 levels of nesting"),
    "deep mappings": ("a: " + "{a: " * 5_000, "more than 100 levels of nesting"),
    "duplicate key": (
        "data: 3\nmodel: 5\ndata: 7", "line 3: duplicate key 'data', first defined on line 1; keep",
    ),
    "nested duplicate key": (
        "data:\n  init_args: {size: 3,\n    size: 5}",
        "line 3: duplicate key 'size', first defined on line 2",
    ),
    "quoted duplicate key": ("size: 3\n'size': 5", "line 2: duplicate key 'size'"),
    "Python call": (
        "a: !!python/object/apply:os.system ['true']",
        "line 1: the tag tag:yaml.org,2002:python/object/apply:os.system is refused",
    ),
    "Python name": ("a: !!python/name:os.system", "python/name:os.system is refused"),
    "Ruby tag": ("a: !ruby/object:Gem x", "the tag !ruby/object:Gem is refused"),
    "long number": ("seed: " + "9" * 5_000, "line 1: a number of 5,000 characters"),
    "tagged long number": ("seed: !!int '" + "9" * 5_000 + "'", "a number of 5,000 characters"),
    "sexagesimal number": ("seed: 1" + ":1" * 100_000, "a number of 200,001 characters"),
    "not YAML": ("a: [1, 2\nb: 3", "is not valid YAML: .*, line 2"),
    "tab": ("a:\n\tb: 1", "a tab cannot indent; use spaces, line 2"),
    "two documents": ("---\na: 1\n---\na: 1\n...\n}", "is not valid YAML"),
    "zero byte": ("a: \0", "is not valid YAML: .*not allowed|is not valid YAML"),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_attacks_are_refused_within_milliseconds(name: str, tmp_path: Path) -> None:
    text, reason = ATTACKS[name]
    file = tmp_path / "hostile.yaml"
    file.write_text(text)
    start = time.process_time()
    with pytest.raises(ValueError, match=reason) as error:
        read_config(file)
    assert time.process_time() - start < 0.5
    assert str(file) in str(error.value)
    assert len(str(error.value)) < 400


def test_values_without_aliases_count_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert yaml_safety.MAX_SIZE == 100_000
    monkeypatch.setattr(yaml_safety, "MAX_SIZE", 100)
    check_yaml("a: [" + "1," * 97 + "]", source="x")
    with pytest.raises(ValueError, match="x, line 1: expands to more than 100 keys and values"):
        check_yaml("a: [" + "1," * 98 + "]", source="x")


def test_a_small_number_of_aliases_is_accepted() -> None:
    text = bomb(levels=3)
    assert len(text) < len(BOMB)
    check_yaml(text, source="x")


def test_a_config_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "long.yaml"
    file.write_text("a: " + "x" * MAX_LENGTH)
    with pytest.raises(ValueError, match=r"long\.yaml is longer than 1,000,000 bytes"):
        read_config(file)
    with file.open("ab") as opened:
        opened.truncate(10**12)  # a sparse file
    with pytest.raises(ValueError, match=r"long\.yaml is longer than 1,000,000 bytes"):
        read_config(file)


def test_another_encoding_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "latin.yaml"
    file.write_bytes("name: Caf\xe9".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.yaml is not UTF-8 text: .*, byte 9"):
        read_config(file)


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_the_configs_of_visattn_are_accepted(file: Path) -> None:
    assert read_config(file) == file.read_text()


KEYS = st.text("abc", min_size=1, max_size=3)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=25)
@given(st.dictionaries(KEYS, PLAIN), st.booleans())
def test_plain_values_are_accepted(value: dict[str, Any], flow: bool) -> None:
    check_yaml(yaml.safe_dump(value, default_flow_style=flow), source="x")


@given(st.text(max_size=200) | st.text("&*a0[]{}:,- \n!'\"|>%@#?", max_size=60))
def test_any_text_is_accepted_or_refused_with_its_source(text: str) -> None:
    assert error_source(text) in ("", "here")


def error_source(text: str) -> str:
    """Return the source that an error names, "" if the text is accepted; other errors escape."""
    try:
        check_yaml(text, source="here")
    except ValueError as error:
        return re.split(r", line| is not", str(error))[0]
    return ""
