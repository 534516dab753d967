"""Configs that would hang, hide or harm, refused before anything in them is believed."""

import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from yaml_bombs import BOMB, bomb

from visattn.training.cli import yaml_safety as yaml_checks
from visattn.training.cli.yaml_safety import LONGEST, check_configs, checked_texts

CONFIGS = Path(__file__).parents[3] / "configs"


MERGES = "\n".join(
    ["a0: &a0 {" + ", ".join(f"k{n}: 1" for n in range(9)) + "}"]
    + [f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}" for n in range(1, 9)]
)
ATTACKS: dict[str, tuple[str, str]] = {
    "alias bomb": (BOMB, r"line 6: unfolds to more than 100,000 keys and values"),
    "merge bomb": (MERGES, "unfolds to more than"),
    "bomb within a text": (
        "batch: |\n" + "".join(f"  {line}\n" for line in BOMB.splitlines()),
        "a text in .* unfolds to more than",
    ),
    "long texts, often": (
        "a: &a " + "x" * 90_000 + "\nb: [" + ", ".join(["*a"] * 100) + "]", "unfolds to more than",
    ),
    "an alias of itself": ("a: &a [*a]", r"line 1: \*a holds itself"),
    "an alias of nothing": ("a: *nobody", r"\*nobody holds itself, or is not there"),
    "deep lists": ("a: " + "[" * 5_000, "more than 100 levels inside one another"),
    "deep mappings": ("a: " + "{a: " * 5_000, "more than 100 levels inside one another"),
    "a key twice": ("data: 3\nmodel: 5\ndata: 7", r"line 3: the key data .* after line 1; keep"),
    "a key twice, deep": (
        "data:\n  init_args: {size: 3,\n    size: 5}", r"line 3: the key size .* after line 2",
    ),
    "a key twice, quoted": ("size: 3\n'size': 5", "line 2: the key size stands there again"),
    "a tag of Python's": (
        "a: !!python/object/apply:os.system ['true']",
        "line 1: the tag tag:yaml.org,2002:python/object/apply:os.system is refused",
    ),
    "a name of Python's": ("a: !!python/name:os.system", "python/name:os.system is refused"),
    "a tag of others": ("a: !ruby/object:Gem x", "the tag !ruby/object:Gem is refused"),
    "a long number": ("seed: " + "9" * 5_000, "line 1: a number of 5,000 characters"),
    "a number of sixties": ("seed: 1" + ":1" * 100_000, "a number of 200,001 characters"),
    "no YAML": ("a: [1, 2\nb: 3", "is no YAML: .*, line 2"),
    "two documents": ("---\na: 1\n---\na: 1\n...\n}", "is no YAML"),
    "a zero byte": ("a: \0", "is no YAML: .*not allowed|is no YAML"),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_named_and_refused_within_milliseconds(name: str, tmp_path: Path) -> None:
    text, reason = ATTACKS[name]
    file = tmp_path / "hostile.yaml"
    file.write_text(text)
    start = time.process_time()
    with pytest.raises(ValueError, match=reason) as caught:
        check_configs(["fit", "--config", str(file)])
    assert time.process_time() - start < 0.5
    assert str(file) in str(caught.value)
    assert len(str(caught.value)) < 400


def test_what_is_written_out_counts_too(monkeypatch: pytest.MonkeyPatch) -> None:
    assert yaml_checks.LARGEST == 100_000
    monkeypatch.setattr(yaml_checks, "LARGEST", 100)
    assert len(checked_texts("a: [" + "1," * 97 + "]", source="x")) == 98
    with pytest.raises(ValueError, match="x, line 1: unfolds to more than 100 keys and values"):
        checked_texts("a: [" + "1," * 98 + "]", source="x")


def test_a_small_bomb_is_a_config() -> None:
    text = bomb(levels=3)
    assert len(text) < len(BOMB)
    assert checked_texts(text, source="x").count("lol") == 9


def test_a_config_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    file = tmp_path / "long.yaml"
    file.write_text("a: " + "x" * LONGEST)
    with pytest.raises(ValueError, match=r"long\.yaml is longer than 1,000,000 bytes"):
        check_configs(["fit", f"--config={file}"])
    with file.open("ab") as opened:
        opened.truncate(10**12)  # takes no room on the disk
    with pytest.raises(ValueError, match=r"long\.yaml is longer than 1,000,000 bytes"):
        check_configs(["fit", "-c", str(file)])


def test_another_encoding_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "latin.yaml"
    file.write_bytes("name: Caf\xe9".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.yaml is no text in UTF-8: .*, byte 9"):
        check_configs(["fit", "--config", str(file)])


def test_files_named_inside_are_looked_through(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "outer.yaml").write_text("model: inner/model.yaml\ndata: {photos: list.txt}")
    (inner / "model.yaml").write_text("class_path: X\ninit_args: ../deeper.yml")
    (tmp_path / "deeper.yml").write_text("again: outer.yaml\n" + BOMB)
    (tmp_path / "list.txt").write_text(BOMB)  # data, which is never read as a config
    with pytest.raises(ValueError, match=r"deeper\.yml, line \d: unfolds"):
        check_configs(["--config", str(tmp_path / "outer.yaml")])
    (tmp_path / "deeper.yml").write_text("again: outer.yaml")  # goes round in circles
    assert check_configs(["--config", str(tmp_path / "outer.yaml")]) == [tmp_path / "list.txt"]
    with pytest.raises(ValueError, match=r"line 6: unfolds"):
        check_configs(["--config", str(tmp_path / "list.txt")])


def test_a_config_names_no_pipe_and_no_device(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for named in ("pipe", "/dev/zero", f"file://{tmp_path}/pipe"):
        (tmp_path / "x.yaml").write_text(f"model: {named}")
        with pytest.raises(ValueError, match=r"x\.yaml names .*, a pipe or a device"):
            check_configs(["--config", str(tmp_path / "x.yaml")])


@pytest.mark.parametrize("address", ["http://a.b/c.yaml", "https://a.b/c", "s3://a/b.yaml"])
def test_a_config_lies_on_this_machine(address: str) -> None:
    for words in (["-c", address], [f"--config={address}"]):
        with pytest.raises(ValueError, match="lies on another machine; download it, look at it"):
            check_configs(["fit", *words])


def test_words_that_are_no_files_pass() -> None:
    words = ["fit", "--data.size=24", "--model", "CaptioningTask", "--config", "nowhere.yaml", "-c"]
    assert check_configs([*words, "", "--x=", "a" * 10_000, "a\0b", "~nobody/x", "."]) == []


@pytest.mark.parametrize("file", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_our_own_configs_pass(file: Path) -> None:
    assert check_configs(["--config", str(file)]) == []


KEYS = st.text("abc", min_size=1, max_size=3)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=25)
@given(st.dictionaries(KEYS, PLAIN), st.booleans())
def test_whatever_yaml_writes_passes(value: dict[str, Any], flow: bool) -> None:
    checked_texts(yaml.safe_dump(value, default_flow_style=flow), source="x")


@given(st.text(max_size=200) | st.text("&*a0[]{}:,- \n!'\"|>%@#?", max_size=60))
def test_any_text_passes_or_is_refused_in_words(text: str) -> None:
    assert outcome(text) in ("", "here", "a text in here")


def outcome(text: str) -> str:
    """Return what an error says of a text's place, "" if it passes; others escape."""
    try:
        checked_texts(text, source="here")
    except ValueError as error:
        return re.split(r", line| is no", str(error))[0]
    return ""
