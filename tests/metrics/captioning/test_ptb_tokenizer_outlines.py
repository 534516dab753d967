"""Captions in the small alphabet of the rules."""

import pytest
from hypothesis import given, strategies as st

from visattn.metrics.captioning.ptb_tokenizer import simplify_characters

ALPHABET = {chr(code) for code in range(32, 127)} | set("é§«’“”–…¬")


@given(text=st.text(max_size=61))
def test_an_outline_is_as_long_as_its_text_and_in_the_small_alphabet(text: str) -> None:
    shape = simplify_characters(text)
    assert len(shape) == len(text)
    assert set(shape) <= ALPHABET


@given(text=st.text([chr(code) for code in range(32, 127)]))
def test_plain_text_is_its_own_outline(text: str) -> None:
    assert simplify_characters(text) == text


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("ñß日مé", "ééééé"),
        ("™©°→²", "§§§§§"),
        ("🙂𐍈\t\n\x00", "     "),
        ("\u2018\u2019\u201c\u201d", "«’“”"),
        ("\u2013\u2014\u2015\u2026", "–––…"),
        ("€¤\u2010\u2011", "$$¬¬"),
    ],
)
def test_outlines_by_hand(text: str, shape: str) -> None:
    assert simplify_characters(text) == shape
