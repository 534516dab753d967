"""BLEU: by hand, and invariances."""

import math

import pytest
from hypothesis import given, strategies as st

from visattn.metrics.ngrams import NgramCounts, bleu_scores, ngram_counts

lines = st.lists(st.sampled_from(["a", "b", "c", "d", "e"]), max_size=11).map(" ".join)
images = st.lists(st.tuples(lines, st.lists(lines, min_size=1, max_size=5)), min_size=1, max_size=5)


def grams(line: str) -> NgramCounts:
    return ngram_counts(line.split())


def scores(*samples: tuple[str, list[str]]) -> tuple[list[float], list[list[float]]]:
    return bleu_scores(
        [grams(said) for said, _ in samples], [[*map(grams, refs)] for _, refs in samples]
    )


def test_bleu_by_hand() -> None:
    # 5 of 6 words, 3 of 5 pairs, 1 of 4 triples, 0 of 3 fours; as long as the reference
    together, _ = scores(("the cat sat on the mat", ["the cat is on the mat"]))
    assert together[0] == pytest.approx(5 / 6)
    assert together[1] == pytest.approx(math.sqrt(5 / 6 * 3 / 5))
    assert together[2] == pytest.approx((5 / 6 * 3 / 5 * 1 / 4) ** (1 / 3))
    assert together[3] == pytest.approx((5 / 6 * 3 / 5 * 1 / 4 * 1e-15 / 3) ** (1 / 4))


def test_matches_are_clipped_to_the_count_in_a_reference() -> None:
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
def test_brevity_penalty_uses_the_closest_reference_length(
    references: list[str], closest: int
) -> None:
    together, _ = scores(("a b c d", references))
    assert together[0] == pytest.approx(min(1, math.exp(1 - closest / 4)))


def test_empty_caption_scores_zero() -> None:
    together, rows = scores(("", ["a b"]), ("a b", ["a b"]))
    assert rows[0] == [0, 0, 0, 0]
    assert together[0] == pytest.approx(math.exp(1 - 4 / 2))


@given(samples=images)
def test_bleu_ignores_order_and_repetition_of_references(
    samples: list[tuple[str, list[str]]],
) -> None:
    turned = [(said, refs[::-1] + refs[:1]) for said, refs in samples]
    assert scores(*turned) == scores(*samples)


@given(samples=images)
def test_bleu_ignores_the_order_of_images(samples: list[tuple[str, list[str]]]) -> None:
    together, rows = scores(*samples)
    assert scores(*samples[::-1]) == (together, rows[::-1])


@given(samples=images)
def test_image_scores_are_independent_of_other_images(samples: list[tuple[str, list[str]]]) -> None:
    assert scores(*samples)[1] == [scores(sample)[0] for sample in samples]


@given(line=lines.filter(lambda line: len(line.split()) >= 4), refs=st.lists(lines, max_size=3))
def test_caption_equal_to_a_reference_is_perfect(line: str, refs: list[str]) -> None:
    assert scores((line, [*refs, line]))[0] == pytest.approx([1, 1, 1, 1])


captions = st.lists(st.sampled_from(["a", "b", "c"]), max_size=11)


@given(words=captions)
def test_number_of_ngrams(words: list[str]) -> None:
    grams = ngram_counts(words)
    assert grams.length == len(words)
    sums = [counts.total() for counts in grams.counts]
    assert sums == [max(0, len(words) - n) for n in range(4)]


def test_ngrams_by_hand() -> None:
    unigrams, two, three, four = ngram_counts(["on", "and", "on", "and"]).counts
    assert unigrams == {("on",): 2, ("and",): 2}
    assert two == {("on", "and"): 2, ("and", "on"): 1}
    assert three == {("on", "and", "on"): 1, ("and", "on", "and"): 1}
    assert four == {("on", "and", "on", "and"): 1}
