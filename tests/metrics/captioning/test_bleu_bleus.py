"""BLEU: by hand, and what holds for all captions."""

import math

import pytest
from hypothesis import given, strategies as st

from visattn.metrics.captioning.bleu import NgramCounts, bleu_scores, ngram_counts

lines = st.lists(st.sampled_from(["a", "b", "c", "d", "e"]), max_size=11).map(" ".join)
images = st.lists(st.tuples(lines, st.lists(lines, min_size=1, max_size=5)), min_size=1, max_size=5)


def grams(line: str) -> NgramCounts:
    return ngram_counts(line.split())


def scores(*told: tuple[str, list[str]]) -> tuple[list[float], list[list[float]]]:
    return bleu_scores([grams(said) for said, _ in told], [[*map(grams, refs)] for _, refs in told])


def test_bleu_by_hand() -> None:
    # 5 of 6 words, 3 of 5 pairs, 1 of 4 triples, 0 of 3 fours; as long as the reference
    together, _ = scores(("the cat sat on the mat", ["the cat is on the mat"]))
    assert together[0] == pytest.approx(5 / 6)
    assert together[1] == pytest.approx(math.sqrt(5 / 6 * 3 / 5))
    assert together[2] == pytest.approx((5 / 6 * 3 / 5 * 1 / 4) ** (1 / 3))
    assert together[3] == pytest.approx((5 / 6 * 3 / 5 * 1 / 4 * 1e-15 / 3) ** (1 / 4))


def test_a_word_counts_as_often_as_one_reference_has_it() -> None:
    together, _ = scores(("on on on on", ["on and on", "on"]))
    assert together[0] == pytest.approx(2 / 4)


@pytest.mark.parametrize(
    ("references", "closest"),
    [
        (["a b", "a b c d e f"], 2),  # as close: the shorter
        (["a b c d e f", "a b"], 2),
        (["a b c d e", "a"], 5),
        (["a b c d", "a b c d e f g"], 4),
    ],
)
def test_the_closest_reference_measures_the_length(references: list[str], closest: int) -> None:
    together, _ = scores(("a b c d", references))
    assert together[0] == pytest.approx(min(1, math.exp(1 - closest / 4)))


def test_a_caption_without_words_is_worth_nothing() -> None:
    together, rows = scores(("", ["a b"]), ("a b", ["a b"]))
    assert rows[0] == [0, 0, 0, 0]
    assert together[0] == pytest.approx(math.exp(1 - 4 / 2))


@given(told=images)
def test_the_order_of_references_and_their_repetition_do_not_matter(
    told: list[tuple[str, list[str]]],
) -> None:
    turned = [(said, refs[::-1] + refs[:1]) for said, refs in told]
    assert scores(*turned) == scores(*told)


@given(told=images)
def test_the_order_of_images_does_not_matter(told: list[tuple[str, list[str]]]) -> None:
    together, rows = scores(*told)
    assert scores(*told[::-1]) == (together, rows[::-1])


@given(told=images)
def test_one_image_alone_has_its_score_among_others(told: list[tuple[str, list[str]]]) -> None:
    assert scores(*told)[1] == [scores(one)[0] for one in told]


@given(line=lines.filter(lambda line: len(line.split()) >= 4), refs=st.lists(lines, max_size=3))
def test_a_caption_among_its_references_is_perfect(line: str, refs: list[str]) -> None:
    assert scores((line, [*refs, line]))[0] == pytest.approx([1, 1, 1, 1])
