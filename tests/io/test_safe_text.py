"""Untrusted text: bounded size, UTF-8, strict JSON, one-line messages, nothing for a terminal."""

import gzip
import json
import tracemalloc
import warnings
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from visattn.cli import main
from visattn.io.safe_text import (
    CONTROL_CHARACTERS,
    decode_utf8,
    decompress_gzip,
    escaped_warnings,
    parse_json,
    printable_name,
    read_bytes_bounded,
    short_repr,
)

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
JSON = st.recursive(
    LEAVES,
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=11,
)


@given(text=st.text(st.characters(codec="utf-8", exclude_characters="\0\ufeff")))
def test_utf8_round_trip_with_and_without_byte_order_mark(text: str) -> None:
    assert decode_utf8(text.encode()) == text
    assert decode_utf8(b"\xef\xbb\xbf" + text.encode()) == text


@given(content=st.binary())
def test_invalid_bytes_raise_an_error_with_the_line(content: bytes) -> None:
    try:
        text = decode_utf8(content)
    except ValueError as error:
        assert str(error).startswith("line ")  # noqa: PT017
    else:
        assert text.encode() == content.removeprefix(b"\xef\xbb\xbf")
    for wrong, message in (
        (b"one\ntwo\n\xe9", "line 3: not UTF-8, byte 0xe9 at offset 8; save"),
        (b"one\nt\0o", "line 2: not UTF-8, byte 0x00 at offset 5; save"),
        *(("dog".encode(code), "line 1: not UTF-8") for code in ("utf-16", "utf-16-le", "utf-32")),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            decode_utf8(wrong)


@given(value=JSON)
def test_json_round_trip(value: object) -> None:
    assert parse_json(json.dumps(value)) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"line 4, column 1: invalid JSON \(Expecting value\)"),
        ('{"a": 1,\n "b"', r"line 5, column 5: invalid JSON \(Expecting ':' delimiter\)"),
        ('["a', r"line 4, column 2: invalid JSON \(Unterminated string\)"),
        ('[{"b": {"a": 1, "c": 2, "a": 3}}]', r"line 4: invalid JSON \(duplicate key 'a'"),
        ("{" + "".join(f'"{n}": 0, ' for n in range(10**5)) + '"5": 1}', "duplicate key '5'"),
        ("9" * 5000, r"line 4: invalid JSON \(Exceeds the limit"),
        ("[" * 100_000, r"line 4: invalid JSON \(nested too deeply\)"),
        ('{"a":' * 100_000, r"line 4: invalid JSON \(nested too deeply\)"),
    ],
)
def test_invalid_json_error_names_the_place(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_json(text, 4)


@given(content=st.binary(max_size=300), parts=st.integers(1, 3), max_bytes=st.integers(0, 400))
def test_gzip_round_trip_unless_too_long(content: bytes, parts: int, max_bytes: int) -> None:
    packed = gzip.compress(content) * parts
    assert decompress_gzip(packed) == content * parts
    assert decompress_gzip(packed + b"\0" * 7) == content * parts  # zero padding
    if len(content) * parts <= max_bytes:
        assert decompress_gzip(packed, max_bytes) == content * parts
    else:
        with pytest.raises(ValueError, match=r"more than .* bytes after decompression"):
            decompress_gzip(packed, max_bytes)


def test_gzip_bomb_stays_within_the_memory_limit() -> None:
    bomb = gzip.compress(bytes(50 * 10**6))
    tracemalloc.start()
    with pytest.raises(ValueError, match="more than 1,000,000 bytes after decompression"):
        decompress_gzip(bomb, 10**6)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 * 10**6


def test_damaged_gzip_is_refused() -> None:
    packed = gzip.compress(b"a dog runs")
    for content, reason in (
        (packed[:-3], "ended before"),
        (packed[:7], "ended before"),
        (packed[:12] + b"\xff\xff" + packed[14:], "Error -3|CRC"),
        (packed[:-8] + b"\0\0\0\0" + packed[-4:], "CRC check failed"),
        (packed + b"more", "Not a gzipped file"),
    ):
        with pytest.raises(ValueError, match=rf"damaged gzip \(.*({reason})"):
            decompress_gzip(content)


def test_long_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert read_bytes_bounded(path, 5) == b"12345"
    with pytest.raises(ValueError, match=r"a is longer than 4 bytes, it has 5"):
        read_bytes_bounded(path, 4)


@given(value=JSON, name=st.text())
def test_short_repr_fits_on_a_line(value: object, name: str) -> None:
    assert short_repr(value).isprintable()
    assert len(short_repr(value)) <= 100
    assert printable_name(name).isprintable()


def test_deep_or_long_values_are_shortened() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert short_repr(deep) == "[[[[...]]]]"
    assert len(short_repr({str(number): "x" * 10**6 for number in range(100)})) <= 100
    assert printable_name("a dog's.jpg") == "a dog's.jpg"
    assert CONTROL_CHARACTERS.search("a\x9bb")
    while deep:  # dismantled by hand: dropping so deep a list overflows the stack
        deep = deep[0]  # pyright: ignore[reportAssignmentType]


ESCAPE = "\x1b[2J\x07\u202e"
LINES = [
    [ESCAPE],
    [f"--{ESCAPE}"],
    ["caption", "a.png", "--model", "b", f"--{ESCAPE}"],
    ["caption", ESCAPE, "--model", "b.safetensors"],
    ["demo", "--count", ESCAPE],
    ["demo", ESCAPE],
    ["models", ESCAPE],
    ["configs", ESCAPE],
    ["blocks", ESCAPE],
    ["fit", "--config", ESCAPE],
    ["fit", f"--{ESCAPE}", "3"],
    ["test", "--run", ESCAPE],
    ["help", ESCAPE],
]


CONFIGS = [
    '"{}": 1\n',
    'model: {{class_path: "{}"}}\n',
    'model: {{class_path: CaptioningTask, init_args: {{"{}": 1}}}}\n',
]


@pytest.mark.parametrize("number", range(len(LINES) + len(CONFIGS)))
def test_arguments_and_names_in_configs_are_escaped(
    number: int,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.argv", ["visattn"])
    line = [*LINES, *[["fit", "--config", str(tmp_path / "a.yaml")]] * len(CONFIGS)][number]
    if number >= len(LINES):
        config = CONFIGS[number - len(LINES)].format(ESCAPE.encode("unicode_escape").decode())
        (tmp_path / "a.yaml").write_text(config)
    assert main(line) in (1, 2)
    printed = "".join(capsys.readouterr())
    assert [each for each in printed if not each.isprintable() and each != "\n"] == []


def test_warnings_are_escaped_meanwhile() -> None:
    plain = warnings.formatwarning
    with escaped_warnings():
        text = warnings.formatwarning(UserWarning(ESCAPE), UserWarning, "a.py", 3)
    assert "\\x1b[2J\\x07\\u202e" in text
    assert warnings.formatwarning is plain
