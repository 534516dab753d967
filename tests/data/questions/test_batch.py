"""Batches of questions: padding, soft scores, and what is refused."""

from itertools import combinations

import pytest
import torch

from visattn.data.captions.batch import Vocabulary
from visattn.data.questions.batch import (
    Question,
    QuestionSample,
    collate_questions,
    encode_questions,
    vqa_accuracy,
)

IMAGE = torch.zeros(3, 2, 2, dtype=torch.uint8)
WORDS = Vocabulary.from_captions(["is it red"])


def sample(*questions: Question) -> QuestionSample:
    return QuestionSample("a", IMAGE, questions)


def test_vqa_accuracy_is_the_mean_over_all_subsets_of_nine() -> None:
    for count in range(11):
        answers = ["red"] * count + ["blue"] * (10 - count)
        subsets = list(combinations(answers, 9))
        mean = sum(min(subset.count("red") / 3, 1) for subset in subsets) / len(subsets)
        assert vqa_accuracy(answers, "red") == pytest.approx(mean)
    assert vqa_accuracy(["red"], "red") == 1


def test_soft_scores_hold_the_accuracy_of_each_answer() -> None:
    answers = ("red",) * 3 + ("blue",) * 6 + ("odd",)
    batch = collate_questions(
        [sample(Question("red ?", "blue", "other", answers=answers), Question("it", "red", "x"))],
        WORDS,
        ["blue", "red", "green"],
    )
    assert batch.soft_scores is not None
    torch.testing.assert_close(batch.soft_scores, torch.tensor([[1.0, 0.9, 0.0], [0.0, 1.0, 0.0]]))


def test_data_without_boxes_have_no_referents() -> None:
    batch = collate_questions([sample(Question("it", "red", "x"))], WORDS, ["red"])
    assert batch.boxes is None
    assert batch.referents is None
    assert batch.to("cpu").questions.tolist() == [[5]]


def test_an_unpaired_image_keeps_its_place() -> None:
    batch = collate_questions([sample(Question("it", "red", "x"))] * 3, WORDS, ["red"])
    assert batch.num_paired == 2
    assert batch.rows()[2].text == "it"


def test_empty_questions_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one word, got ' '"):
        encode_questions(["red", " "], WORDS)
    with pytest.raises(ValueError, match="every sample needs a question"):
        collate_questions([sample()], WORDS, ["red"])
