"""Tokens of captions equal those of the official PTB tokenizer."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from visattn.data.captions.batch import Vocabulary
from visattn.metrics.ngrams import bleu_scores, ngram_counts
from visattn.metrics.ptb_tokenizer import REMOVED, ptb_tokenize, simplify_characters, token_spans

GOLDEN = json.loads(Path(__file__).with_name("golden_captions.json").read_text())

texts = st.text(st.characters(codec="utf-8"), max_size=61)
words = st.lists(st.text("bdfhkpqtvxz", min_size=5, max_size=11), max_size=13)


@pytest.mark.parametrize("caption", GOLDEN["tokens"])
def test_tokens_match_the_official_tokenizer(caption: str) -> None:
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


@given(text=texts)
def test_tokens_are_nonempty_without_spaces_and_not_punctuation(text: str) -> None:
    for token in ptb_tokenize(text):
        assert token
        assert token not in REMOVED
        assert " " not in token
        assert "\n" not in token


@given(text=st.text("ab '’.-,&5", max_size=23))
def test_cached_words_match_whole_texts(text: str) -> None:
    # A non-ASCII letter at the end bypasses the cache of words.
    assert ptb_tokenize(f"{text} è") == [*ptb_tokenize(f"{text} e")[:-1], "è"]


@pytest.mark.parametrize("caption", ["", " ", "\n", "...", "🙂🙂", "\u200b", "\x00\x1f", " . ! ?"])
def test_texts_without_words_have_no_tokens(caption: str) -> None:
    assert ptb_tokenize(caption) == []


def test_thousand_words_are_a_thousand_tokens() -> None:
    assert len(ptb_tokenize("pebble " * 1009)) == 1009


@pytest.mark.parametrize("piece", ["%", "%x.", "a@", "<a "])
def test_tokenization_time_is_bounded(piece: str) -> None:
    before = time.process_time()
    ptb_tokenize(piece * (25_013 // len(piece)))
    assert time.process_time() - before < 2


shapes = st.text([chr(code) for code in range(32, 127)] + list("é§«’“”–…¬"), max_size=41)


@given(shape=shapes)
def test_spans_are_consecutive_and_skip_separators_only(shape: str) -> None:
    place, left = 0, ""
    for first, last in token_spans(shape):
        assert place <= first < last <= len(shape)
        left += shape[place:first]
        place = last
    assert not (left + shape[place:]).strip(" ¬")


def test_longest_match_wins() -> None:
    text = "don't stop"  # neither d', nor don, nor n't alone
    assert [text[first:last] for first, last in token_spans(text)] == ["do", "n't", "stop"]


def test_contractions_are_split_only_at_word_ends() -> None:
    text = "cannot cannot's cannotx"
    parts = [text[first:last] for first, last in token_spans(text)]
    assert parts == ["can", "not", "cannot", "'s", "cannotx"]


ALPHABET = {chr(code) for code in range(32, 127)} | set("é§«’“”–…¬")


@given(text=st.text(max_size=61))
def test_outline_has_the_length_of_its_text_and_a_small_alphabet(text: str) -> None:
    shape = simplify_characters(text)
    assert len(shape) == len(text)
    assert set(shape) <= ALPHABET


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


def test_beginnings_of_comments_take_linear_time() -> None:
    start = time.monotonic()
    ptb_tokenize("<!--" * 20_000)
    assert time.monotonic() - start < 10  # it was a minute for 50,000


def test_scripts_without_spaces_are_scored_by_character() -> None:
    captions = ["一只狗在草地上跑", "一隻貓 ปลา", "いぬがはしる。"]
    assert ptb_tokenize(captions[0]) == list(captions[0])
    assert ptb_tokenize(captions[2]) == [*captions[2][:-1]]
    vocabulary = Vocabulary.from_captions(captions)
    for caption in captions:
        decoded = vocabulary.decode(vocabulary.encode(caption))
        assert ptb_tokenize(decoded) == ptb_tokenize(caption)
    counts = [ngram_counts(ptb_tokenize(text)) for text in (captions[0], "一 只 狗 在 草 地 上 睡")]
    assert bleu_scores([counts[1]], [[counts[0]]])[0][0] == pytest.approx(7 / 8)
