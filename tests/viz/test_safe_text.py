"""Sanitized text for display."""

import unicodedata

import pytest
from hypothesis import given, strategies as st

from visattn.viz.text import ELLIPSIS, has_rtl_letters, sanitize_text

REPLACED = "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a dog", "a dog"),
        ("$5 <b> \\frac{1}{2} ${name}", "$5 <b> \\frac{1}{2} ${name}"),
        ("a\0b\x1b[31m\x7f\x9b", f"a{REPLACED}b{REPLACED}[31m{REPLACED}{REPLACED}"),
        ("photo\u202egpj.exe", f"photo{REPLACED}gpj.exe"),
        ("\u2066a\u2069\u200f", f"{REPLACED}a{REPLACED}{REPLACED}"),
        ("\udcff\ud83d", REPLACED * 2),
        ("👨\u200d👩\u200d👧 ❤\ufe0f 犬 כלב", "👨\u200d👩\u200d👧 ❤\ufe0f 犬 כלב"),
        ("a" + "\u0301" * 2000 + "b", "a" + "\u0301" * 4 + "b"),
        ("Ti\u1ebfng Vi\u1ec7t", "Ti\u1ebfng Vi\u1ec7t"),
    ],
)
def test_control_characters_are_replaced_and_text_is_kept(text: str, shown: str) -> None:
    assert sanitize_text(text) == shown


@given(st.text(max_size=80), st.integers(1, 30))
def test_truncated_text_ends_with_an_ellipsis_and_is_valid_utf8(text: str, most: int) -> None:
    whole, short = sanitize_text(text), sanitize_text(text, most)
    assert len(short) <= most
    assert short == whole or short.endswith(ELLIPSIS)
    assert whole.startswith(short.removesuffix(ELLIPSIS).rstrip())
    assert whole.encode().decode() == whole
    assert sanitize_text(whole) == whole
    assert not any(unicodedata.category(sign) == "Cs" for sign in whole)


def test_ten_million_characters_are_truncated_fast() -> None:
    assert sanitize_text("x" * 10**7, 5) == f"xxxx{ELLIPSIS}"
    assert sanitize_text("\u0301" * 10**7, 5) == "\u0301" * 4 + ELLIPSIS


def test_right_to_left_text_is_detected() -> None:
    assert all(map(has_rtl_letters, ("כלב", "a الكلب", "\ufb1d")))
    assert not any(map(has_rtl_letters, ("", "dog", "犬 $5 🐶 \u0301")))
