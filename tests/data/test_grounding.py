"""Grounding scores and targets of phrases, by hand and by counting pixels."""

import pytest
import torch
from hypothesis import given, strategies as st
from torch import Tensor

from visattn.data.phrases import score_phrases, supervised_words
from visattn.geometry.affine import Box
from visattn.results.captions import Phrase

LEFT, RIGHT, TOP = (0.0, 0.0, 0.5, 1.0), (0.5, 0.0, 1.0, 1.0), (0.0, 0.0, 1.0, 0.5)
STEPS = st.integers(0, 60)
CORNERS = st.tuples(STEPS, STEPS, STEPS, STEPS).filter(lambda c: c[0] != c[2] and c[1] != c[3])


def phrase(first: int, count: int, *boxes: Box) -> Phrase:
    return Phrase(first, count, boxes, (), " ".join("x" * count))


def random_maps(words: int, y: int, x: int) -> Tensor:
    random = torch.Generator().manual_seed(words * y * x)
    drawn = torch.randn(words, y * x, generator=random, dtype=torch.float64)
    return drawn.softmax(-1).view(words, y, x)


def test_phrase_scores_by_hand() -> None:
    maps = torch.tensor([[[0.0, 1.0]], [[0.75, 0.25]], [[0.5, 0.5]]])
    [judged] = score_phrases(maps, [phrase(0, 3, LEFT)])
    assert judged.word_correctness == pytest.approx((0, 0.75, 0.5))
    assert (judged.max_correctness, judged.last_correctness) == pytest.approx((0.75, 0.5))
    assert judged.mean_correctness == pytest.approx(1.25 / 3)
    assert judged.baseline == pytest.approx(0.5)
    assert judged.pointing_hit is False  # in total 1.25 on the left and 1.75 on the right
    assert score_phrases(maps, [phrase(1, 1, LEFT)])[0].pointing_hit is True


@given(corners=st.lists(CORNERS, min_size=1, max_size=5))
def test_attention_in_a_union_equals_counted_squares(
    corners: list[tuple[int, int, int, int]],
) -> None:
    ordered = [(min(a, c), min(b, d), max(a, c), max(b, d)) for a, b, c, d in corners]
    mask = torch.zeros(60, 60, dtype=torch.float64)
    for x0, y0, x1, y1 in ordered:
        mask[y0:y1, x0:x1] = 1
    boxes = tuple((a / 60, b / 60, c / 60, d / 60) for a, b, c, d in ordered)
    maps = random_maps(2, 3, 5)
    enlarged = maps.repeat_interleave(20, 1).repeat_interleave(12, 2) / (20 * 12)
    [judged] = score_phrases(maps, [phrase(0, 2, *boxes)])
    assert judged.word_correctness == pytest.approx(
        (enlarged * mask).sum((1, 2)).tolist(), abs=1e-6
    )
    assert judged.baseline == pytest.approx(float(mask.mean()), abs=1e-6)


def test_score_of_the_paper_uses_the_strongest_word() -> None:
    maps = random_maps(5, 7, 7)
    alone = [score_phrases(maps, [phrase(word, 1, TOP)])[0].paper_correctness for word in range(5)]
    [judged] = score_phrases(maps, [phrase(0, 5, TOP)])
    assert judged.paper_correctness == pytest.approx(max(alone))
    assert judged.paper_baseline == pytest.approx(0.5)
    assert judged.max_correctness != pytest.approx(judged.paper_correctness, abs=1e-6)


def test_random_maps_score_the_baseline_except_the_strongest_word() -> None:
    random = torch.Generator().manual_seed(5)
    maps = torch.randn(1200, 49, generator=random).softmax(-1).view(1200, 7, 7)
    judged = score_phrases(maps, [phrase(3 * n, 3, (0.1, 0.3, 0.6, 0.8)) for n in range(400)])
    mean, last, strongest = (
        sum(getattr(item, reading) - item.baseline for item in judged) / 400
        for reading in ("mean_correctness", "last_correctness", "max_correctness")
    )
    assert abs(mean) < 0.02
    assert abs(last) < 0.02
    assert strongest > 0.05


def test_every_word_of_a_phrase_requires_a_map() -> None:
    with pytest.raises(
        ValueError,
        match="'x x' ends at word 3, counted from 0, and needs a map for each word; got 3 maps",
    ):
        score_phrases(torch.full((3, 1, 1), 1.0), [phrase(2, 2, LEFT)])


def test_maps_that_do_not_sum_to_one_are_refused() -> None:
    with pytest.raises(ValueError, match="must sum to 1"):
        score_phrases(torch.full((1, 2, 2), float("nan")), [phrase(0, 1, LEFT)])


MIDDLE = (0.25, 0.0, 0.75, 1.0)
SPANS = st.lists(st.tuples(st.integers(0, 11), st.integers(1, 5)), max_size=5)


def test_word_targets_by_hand() -> None:
    captions = [
        [phrase(0, 2, LEFT), phrase(3, 1, MIDDLE)],
        [],
        [phrase(1, 3, RIGHT, LEFT)],
    ]
    supervised = supervised_words(captions, (1, 2))
    assert supervised.caption_indices.tolist() == [0, 0, 0, 2, 2, 2]
    assert supervised.steps.tolist() == [0, 1, 3, 1, 2, 3]
    left, even = [1.0, 0.0], [0.5, 0.5]
    assert supervised.targets.tolist() == [left, left, even, even, even, even]


def test_last_word_targets_only() -> None:
    captions = [[phrase(0, 2, LEFT), phrase(3, 1, MIDDLE)], [phrase(2, 3, RIGHT)]]
    supervised = supervised_words(captions, (1, 2), words="last")
    assert supervised.caption_indices.tolist() == [0, 0, 1]
    assert supervised.steps.tolist() == [1, 3, 4]


@pytest.mark.parametrize("captions", [[], [[]], [[], []]])
def test_no_word_targets(captions: list[list[Phrase]]) -> None:
    supervised = supervised_words(captions, (3, 5))
    assert (supervised.caption_indices.shape, supervised.steps.shape) == ((0,), (0,))
    assert supervised.targets.shape == (0, 15)
    assert supervised.caption_indices.dtype == supervised.steps.dtype == torch.long


@given(spans=st.lists(SPANS, max_size=5), last=st.booleans())
def test_words_are_distinct_and_targets_sum_to_one(
    spans: list[list[tuple[int, int]]], *, last: bool
) -> None:
    captions = [[phrase(first, count, MIDDLE) for first, count in row] for row in spans]
    supervised = supervised_words(captions, (3, 2), words="last" if last else "all")
    said = list(zip(supervised.caption_indices.tolist(), supervised.steps.tolist(), strict=True))
    wanted = {
        (row, step)
        for row, item in enumerate(spans)
        for first, count in item
        for step in range(first + count - 1 if last else first, first + count)
    }
    assert len(said) == len(wanted)
    assert set(said) == wanted
    torch.testing.assert_close(supervised.targets.sum(-1), torch.ones(len(said)))


def test_word_of_two_phrases_has_the_boxes_of_both() -> None:
    supervised = supervised_words([[phrase(0, 2, LEFT), phrase(1, 1, RIGHT)]], (1, 2))
    assert supervised.steps.tolist() == [0, 1]
    assert supervised.targets.tolist() == [[1.0, 0.0], [0.5, 0.5]]


def test_targets_are_row_major() -> None:
    lower = (0.0, 0.5, 1 / 3, 1.0)
    [target] = supervised_words([[phrase(0, 1, lower)]], (2, 3)).targets
    torch.testing.assert_close(target, torch.tensor([0.0, 0, 0, 1, 0, 0]))
