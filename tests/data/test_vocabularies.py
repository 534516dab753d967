"""Captions as numbers and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from visattn.data.vocabularies import Vocabulary, split_words
from visattn.models.captioners import END, SPECIALS, START, UNKNOWN

WORDS = st.text("abcdefghij", min_size=1, max_size=5)
CAPTIONS = st.lists(WORDS, max_size=11).map(" ".join)


@given(captions=st.lists(CAPTIONS, min_size=1, max_size=7))
def test_known_captions_come_back(captions: list[str]) -> None:
    vocabulary = Vocabulary.of(captions)
    assert vocabulary.words[:4] == SPECIALS
    for caption in captions:
        tokens = vocabulary.encode(caption)
        assert (tokens[0], tokens[-1]) == (START, END)
        assert UNKNOWN not in tokens
        assert vocabulary.decode(tokens) == caption


@given(captions=st.lists(CAPTIONS, min_size=1, max_size=7), other=CAPTIONS)
def test_other_words_are_unknown_and_nothing_falls(captions: list[str], other: str) -> None:
    vocabulary = Vocabulary.of(captions)
    known = set(" ".join(captions).split())
    inner = vocabulary.encode(other)[1:-1]
    assert [token == UNKNOWN for token in inner] == [word not in known for word in other.split()]


@given(captions=st.lists(CAPTIONS, min_size=1, max_size=7))
def test_the_order_of_captions_does_not_matter(captions: list[str]) -> None:
    turned = captions[::-1]
    assert Vocabulary.of(captions).words == Vocabulary.of(turned).words


def test_common_words_come_first_and_rare_ones_not_at_all() -> None:
    captions = ["b b b a", "c a", "d"]
    assert Vocabulary.of(captions).words[4:] == ("b", "a", "c", "d")
    assert Vocabulary.of(captions, min_count=2).words[4:] == ("b", "a")
    assert len(Vocabulary.of(captions)) == 8


@pytest.mark.parametrize(
    ("caption", "words"),
    [
        ("A man, a plan.", ["a", "man", "a", "plan"]),
        ("the dog's   toy\n", ["the", "dog's", "toy"]),
        ("the dog’s toy", ["the", "dog’s", "toy"]),
        ("well-worn - shoes", ["well-worn", "shoes"]),
        ("Ünïcödé 日本 42", ["ünïcödé", "日本", "42"]),
        ("!?🙂", []),
        ("", []),
    ],
)
def test_words_by_hand(caption: str, words: list[str]) -> None:
    assert split_words(caption) == words


def test_an_empty_caption_begins_and_ends() -> None:
    vocabulary = Vocabulary.of(["a"])
    assert vocabulary.encode("") == [START, END]
    assert vocabulary.decode([0, START, 4, END, 0]) == "a"


def test_the_hash_changes_with_any_word_and_the_order() -> None:
    hashes = {
        Vocabulary((*SPECIALS, *words)).hash
        for words in (("a", "b"), ("b", "a"), ("a",), ("a", "c"), ())
    }
    assert len(hashes) == 5
    assert Vocabulary((*SPECIALS, "a", "b")).hash == Vocabulary((*SPECIALS, "a", "b")).hash


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "begins with <pad>, <start>, <end>, <unknown>"),
        (("a", *SPECIALS), "Vocabulary.of counts one"),
        ((*SPECIALS, "a", "b", "a"), r"stand twice: \['a'\]"),
        ((*SPECIALS, "<end>"), "stand twice"),
    ],
)
def test_lists_that_are_none_are_refused(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Vocabulary(words)
