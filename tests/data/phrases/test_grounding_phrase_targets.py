"""Words with boxes and where their attention ought to lie."""

import pytest
import torch
from hypothesis import given, strategies as st

from visattn.data.phrases.grounding import supervised_words
from visattn.data.phrases.phrases import Phrase
from visattn.geometry.affine import Box

LEFT, RIGHT, MIDDLE = (0.0, 0.0, 0.5, 1.0), (0.5, 0.0, 1.0, 1.0), (0.25, 0.0, 0.75, 1.0)
SPANS = st.lists(st.tuples(st.integers(0, 11), st.integers(1, 5)), max_size=5)


def phrase(first: int, count: int, *boxes: Box) -> Phrase:
    return Phrase(first, count, boxes, (), " ".join("x" * count))


def test_word_targets_by_hand() -> None:
    captions = [[phrase(0, 2, LEFT), phrase(3, 1, MIDDLE)], [], [phrase(1, 3, RIGHT, LEFT)]]
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
