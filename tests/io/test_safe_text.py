"""Text of others: bounded, UTF-8, JSON without traps, and shown on one line."""

import gzip
import json
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from visattn.io.safe_text import (
    CONTROLS,
    bounded_bytes,
    named,
    parsed_json,
    plain_text,
    shown,
    unpacked_gzip,
)

PLAIN = st.text(st.characters(codec="utf-8", exclude_characters="\0\ufeff"))
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
JSON = st.recursive(
    LEAVES, lambda some: st.lists(some) | st.dictionaries(st.text(), some), max_leaves=11
)


@given(text=PLAIN)
def test_text_comes_back_with_and_without_its_mark(text: str) -> None:
    assert plain_text(text.encode()) == text
    assert plain_text(b"\xef\xbb\xbf" + text.encode()) == text


@given(content=st.binary())
def test_any_bytes_are_text_or_have_a_line(content: bytes) -> None:
    try:
        text = plain_text(content)
    except ValueError as error:
        assert str(error).startswith("line ")  # noqa: PT017
    else:
        assert text.encode() == content.removeprefix(b"\xef\xbb\xbf")


def test_the_line_is_that_of_the_fault() -> None:
    with pytest.raises(ValueError, match=r"line 3: not UTF-8, byte 0xe9 at offset 8; write"):
        plain_text(b"one\ntwo\n\xe9")
    with pytest.raises(ValueError, match=r"line 2: a NUL, which no text holds, at offset 5; write"):
        plain_text(b"one\nt\0o")
    for code, name in (("utf-16", "UTF-16"), ("utf-32", "UTF-32")):
        with pytest.raises(ValueError, match=rf"line 1: .* \(it begins as {name} does\)"):
            plain_text("A dog".encode(code))


@given(told=JSON)
def test_json_comes_back(told: object) -> None:
    assert parsed_json(json.dumps(told)) == told


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", r"line 4, column 1: no JSON \(Expecting value\)"),
        ('{"a": 1,\n "b"', r"line 5, column 5: no JSON \(Expecting ':' delimiter\)"),
        ('["a', r"line 4, column 2: no JSON \(Unterminated string\)"),
        ('[{"b": {"a": 1, "c": 2, "a": 3}}]', r"line 4: no JSON \(the key 'a' stands twice"),
        ("9" * 5000, r"line 4: no JSON \(Exceeds the limit"),
        ("[" * 100_000, r"line 4: no JSON \(lists within lists without end\)"),
        ('{"a":' * 100_000, r"line 4: no JSON \(lists within lists without end\)"),
    ],
)
def test_what_is_no_json_says_where(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parsed_json(text, 4)


def test_a_key_twice_among_very_many_is_found_at_once() -> None:
    keys = ", ".join(f'"{number}": 0' for number in range(100_003))
    with pytest.raises(ValueError, match="the key '5' stands twice"):
        parsed_json(f'{{{keys}, "5": 1}}')


@given(content=st.binary(max_size=300), parts=st.integers(1, 3), most=st.integers(0, 400))
def test_gzip_comes_back_unless_it_is_too_long(content: bytes, parts: int, most: int) -> None:
    packed = gzip.compress(content) * parts
    assert unpacked_gzip(packed) == content * parts
    assert unpacked_gzip(packed + b"\0" * 7) == content * parts  # as tapes leave it
    if len(content) * parts <= most:
        assert unpacked_gzip(packed, most) == content * parts
    else:
        with pytest.raises(ValueError, match=r"more than .* bytes when it is unpacked"):
            unpacked_gzip(packed, most)


def test_a_bomb_takes_no_more_room_than_is_allowed() -> None:
    bomb = gzip.compress(bytes(50 * 10**6))
    tracemalloc.start()
    with pytest.raises(ValueError, match="more than 1,000,000 bytes when it is unpacked"):
        unpacked_gzip(bomb, 10**6)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 5 * 10**6


def test_damaged_gzip_is_said_to_be() -> None:
    packed = gzip.compress(b"a dog runs")
    for content, reason in (
        (packed[:-3], "cut off"),
        (packed[:7], "cut off"),
        (packed[:12] + b"\xff\xff" + packed[14:], "Error -3|incorrect"),
        (packed[:-8] + b"\0\0\0\0" + packed[-4:], "incorrect data check"),
        (packed + b"more", "incorrect header check"),
    ):
        with pytest.raises(ValueError, match=rf"damaged gzip \(.*({reason})"):
            unpacked_gzip(content)


def test_files_are_bounded(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345")
    assert bounded_bytes(path, 5) == b"12345"
    with pytest.raises(ValueError, match=r"a is longer than 4 bytes, it has 5"):
        bounded_bytes(path, 4)


@given(value=JSON, name=st.text())
def test_what_is_shown_fits_on_a_line(value: object, name: str) -> None:
    assert shown(value).isprintable()
    assert len(shown(value)) <= 100
    assert named(name).isprintable()


def test_what_is_deep_or_long_is_shown_in_short() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert shown(deep) == "[[[[...]]]]"
    assert len(shown({str(number): "x" * 10**6 for number in range(100)})) <= 100
    assert named("a dog's.jpg") == "a dog's.jpg"
    assert CONTROLS.search("a\x9bb")
    while deep:  # taken apart by hand: so deep a list overflows the stack when it is dropped
        deep = deep[0]  # pyright: ignore[reportAssignmentType]
