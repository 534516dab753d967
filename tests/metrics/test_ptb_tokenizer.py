"""Tokens of captions equal those of the official PTB tokenizer."""

import json
import time
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from visattn.data.captions.batch import Vocabulary
from visattn.metrics.ngrams import bleu_scores, ngram_counts
from visattn.metrics.ptb_tokenizer import ptb_tokenize, simplify_characters, token_spans

GOLDEN = json.loads(Path(__file__).with_name("golden_captions.json").read_text())


@pytest.mark.parametrize("caption", GOLDEN["tokens"])
def test_tokens_match_the_official_tokenizer(caption: str) -> None:
    assert " ".join(ptb_tokenize(caption)) == GOLDEN["tokens"][caption]


@given(text=st.text("ab '’.-,&5", max_size=23))
def test_cached_words_match_whole_texts(text: str) -> None:
    # A non-ASCII letter at the end bypasses the cache of words.
    assert ptb_tokenize(f"{text} è") == [*ptb_tokenize(f"{text} e")[:-1], "è"]


@pytest.mark.parametrize("caption", ["", " ", "\n", "...", "🙂🙂", "\u200b", "\x00\x1f", " . ! ?"])
def test_texts_without_words_have_no_tokens(caption: str) -> None:
    assert ptb_tokenize(caption) == []


@pytest.mark.parametrize("piece", ["%", "%x.", "a@", "<a ", "<!--"])
def test_tokenization_time_is_linear(piece: str) -> None:
    ends = [time.process_time()]
    for size in (4_000, 32_000):
        ptb_tokenize(piece * (size // len(piece)))
        ends.append(time.process_time())
    assert ends[2] - ends[1] < 24 * (ends[1] - ends[0])  # 8 times if linear, 64 if quadratic
    assert len(ptb_tokenize("pebble " * 1009)) == 1009


shapes = st.text([chr(code) for code in range(32, 127)] + list("é§«’“”–…¬"), max_size=41)


@given(shape=shapes)
def test_spans_are_consecutive_and_skip_separators_only(shape: str) -> None:
    place, left = 0, ""
    for first, last in token_spans(shape):
        assert place <= first < last <= len(shape)
        left += shape[place:first]
        place = last
    assert not (left + shape[place:]).strip(" ¬")


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
