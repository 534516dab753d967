"""Tokens: those of the official tokenizer, whatever people write."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from visattn.metrics.captioning.ptb_tokenizer import REMOVED, ptb_tokenize

GOLDEN = json.loads(Path(__file__).with_name("golden_captions.json").read_text())

texts = st.text(st.characters(codec="utf-8"), max_size=61)
words = st.lists(st.text("bdfhkpqtvxz", min_size=5, max_size=11), max_size=13)
marks = st.sampled_from([",", ".", "!", "?", ":", ";", '"', "'", " - ", "--", "...", "“", "”"])


@pytest.mark.parametrize("caption", GOLDEN["tokens"])
def test_tokens_are_the_official_ones(caption: str) -> None:
    assert " ".join(ptb_tokenize(caption)) == GOLDEN["tokens"][caption]


@pytest.mark.parametrize(
    ("caption", "tokens"),
    [
        ("can't", "ca n't"),
        ("cannot", "can not"),
        ("gonna", "gon na"),
        ("The U.S. flag (red, ..)", "the u.s. flag -lrb- red -rrb-"),
        ("$5.00", "$ 5.00"),
        ("3/4", "3/4"),
        ("100%", "100 %"),
        ("“red” ‘blue’", "red blue"),  # noqa: RUF001 (the curly quotes are what is tested)
        ("man's t-shirt", "man 's t-shirt"),
        ("wait... now", "wait now"),
        ("black & white, AT&T", "black & white at&t"),
        ("no!! what?!", "no !! what ?!"),
        ("a&nbsp;b &lt;c&gt;", "a b < c >"),
        ("a dog., a cat.", "a dog. a cat"),
    ],
)
def test_tokens_by_hand(caption: str, tokens: str) -> None:
    assert ptb_tokenize(caption) == tokens.split(" ")


@given(words=words)
def test_plain_words_stay_and_are_lowered(words: list[str]) -> None:
    assert ptb_tokenize(" ".join(words)) == words
    assert ptb_tokenize(" ".join(words).upper() + " .") == words


@given(words=words, mark=marks)
def test_punctuation_between_words_is_not_there(words: list[str], mark: str) -> None:
    assert ptb_tokenize(f" {mark} ".join(words)) == words


@given(text=texts)
def test_no_token_is_empty_parted_or_among_the_removed(text: str) -> None:
    for token in ptb_tokenize(text):
        assert token
        assert token not in REMOVED
        assert " " not in token
        assert "\n" not in token


@given(text=texts)
def test_line_breaks_are_blanks(text: str) -> None:
    assert ptb_tokenize(text.replace(" ", "\n")) == ptb_tokenize(text.replace("\n", " "))


@given(text=st.text("ab '’.-,&5", max_size=23))
def test_pieces_remembered_are_those_read_as_a_whole(text: str) -> None:
    # A letter beyond ASCII at the end takes the way around the memory of pieces.
    assert ptb_tokenize(f"{text} è") == [*ptb_tokenize(f"{text} e")[:-1], "è"]


@pytest.mark.parametrize("caption", ["", " ", "\n", "...", "🙂🙂", "\u200b", "\x00\x1f", " . ! ?"])
def test_what_says_nothing_has_no_tokens(caption: str) -> None:
    assert ptb_tokenize(caption) == []


def test_a_thousand_words_are_a_thousand_tokens() -> None:
    assert len(ptb_tokenize("pebble " * 1009)) == 1009


@pytest.mark.parametrize("piece", ["%", "%x.", "a@", "<a "])
def test_no_text_takes_for_ever(piece: str) -> None:
    before = time.process_time()
    ptb_tokenize(piece * (25_013 // len(piece)))
    assert time.process_time() - before < 2
