"""Questions: Sort-of-CLEVR against plain computations from its rules; batches and soft scores."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from visattn.data.captions.batch import Vocabulary, num_paired
from visattn.data.questions.batch import (
    Question,
    QuestionSample,
    collate_questions,
    encode_questions,
    vqa_accuracy,
)
from visattn.data.questions.sort_of_clevr import (
    SORT_OF_CLEVR_ANSWERS,
    SORT_OF_CLEVR_COLORS,
    SORT_OF_CLEVR_GROUPS,
    SortOfClevr,
    SortOfClevrLayout,
    draw_layouts,
    layout_boxes,
    layout_facts,
    sample_layouts,
    sort_of_clevr_texts,
)

NAMES = list(SORT_OF_CLEVR_COLORS)


def expected(question: Question, world: Any, *, original: bool) -> tuple[str, list[set[int]]]:
    """Answer a question by loops over the objects; return the objects of each step too."""
    centers = [tuple(center) for center in world.centers.tolist()]
    shapes = ["rectangle" if flag else "circle" for flag in world.rectangles.tolist()]
    words = question.text.split()
    [first] = [NAMES.index(word) for word in words if word in NAMES]
    x, y = centers[first]
    if question.type == "shape":
        return shapes[first], [{first}]
    if question.type in ("left", "top"):
        return "yes" if (x if question.type == "left" else y) < 37.5 else "no", [{first}]
    if question.type == "count":
        same = {i for i in range(6) if shapes[i] == shapes[first]}
        return str(len(same)), [{first}, same]
    squares = [(x - a) ** 2 + (y - b) ** 2 for a, b in centers]
    if question.type == "furthest":
        other = squares.index(max(squares))
        return shapes[other], [{first}, {other}]
    squares[first] = 999 if original else 10**6
    other = squares.index(min(squares))
    return shapes[other], [{first}, {other}]


@pytest.mark.parametrize("original", [False, True])
def test_answers_and_referents_by_brute_force(original: bool) -> None:
    data = SortOfClevr(80, original=original)
    layouts = sample_layouts(data.seed, list(range(80)))
    for row, sample in enumerate(data.__getitems__(list(range(80)))):
        layout = SortOfClevrLayout(layouts.centers[row], layouts.rectangles[row])
        for question in sample.questions:
            answer, steps = expected(question, layout, original=original)
            assert question.answer == answer, (sample.id, question)
            assert [set(step) for step in question.referents] == steps, (sample.id, question)
            assert question.type in SORT_OF_CLEVR_GROUPS[question.group]
            assert question.answer in SORT_OF_CLEVR_ANSWERS


def test_lonely_objects_are_their_own_closest_ones_in_the_original() -> None:
    """By hand: the red circle is 32 pixels from the nearest object, 1,024 > 999; 31 is nearer."""
    centers = torch.tensor([[[5, 5], [37, 5], [69, 69], [58, 58], [47, 69], [36, 69]]])
    rectangles = torch.tensor([[False, True, True, True, True, True]])
    for shift, itself in ((0, True), (1, False)):
        moved = centers.clone()
        moved[0, 1, 0] -= shift
        layout = SortOfClevrLayout(moved, rectangles)
        assert int(layout_facts(layout, original=True).closest[0, 0]) == (0 if itself else 1)
        assert int(layout_facts(layout).closest[0, 0]) == 1


def test_pixels_equal_those_of_opencv_and_margins_move_objects_and_boxes_alike() -> None:
    layout = sample_layouts(3, list(range(20)))
    images, large = draw_layouts(layout), draw_layouts(layout, size=80)
    for image, centers, rectangles in zip(images, *layout, strict=True):
        canvas = np.full((75, 75, 3), 255, np.uint8)
        for color, (x, y), rectangle in zip(
            SORT_OF_CLEVR_COLORS.values(), centers.tolist(), rectangles.tolist(), strict=True
        ):
            if rectangle:
                cv2.rectangle(canvas, (x - 5, y - 5), (x + 5, y + 5), color, -1)
            else:
                cv2.circle(canvas, (x, y), 5, color, -1)
        np.testing.assert_array_equal(image.permute(1, 2, 0).numpy(), canvas)
    assert torch.equal(torch.nn.functional.pad(images, (2, 3, 2, 3), value=255), large)
    assert torch.equal(layout_boxes(layout, size=80), layout_boxes(layout) + 2)
    x, y, right, bottom = layout_boxes(layout)[0, 5].int().tolist()  # nothing covers the last color
    inside = images[0, :, y:bottom, x:right].permute(1, 2, 0).reshape(-1, 3)
    yellow = int((inside == torch.tensor([255, 255, 0])).all(1).sum())
    assert yellow == (121 if layout.rectangles[0, 5] else 81)
    many = sample_layouts(1, list(range(500))).centers
    assert (int(many.min()), int(many.max())) == (5, 69)
    distances = (many[:, :, None] - many[:, None]).square().sum(-1)
    assert int(distances[:, ~torch.eye(6, dtype=torch.bool)].min()) >= 100


def test_samples_depend_on_their_index_alone() -> None:
    data = SortOfClevr(4)
    together, alone = data.__getitems__([3, 1])[1], data[1]
    assert torch.equal(together.image, alone.image)
    assert together.questions == alone.questions
    for other in (data[1 + 4], SortOfClevr(4, split="test")[1]):
        assert not torch.equal(other.image, alone.image)


def test_batches_hold_words_answers_and_referents() -> None:
    samples = [SortOfClevr(4, size=80)[number] for number in (0, 1)]
    vocabulary = Vocabulary.from_captions(sort_of_clevr_texts())
    batch = collate_questions(samples, vocabulary, SORT_OF_CLEVR_ANSWERS)
    assert [tuple(kept) for kept in batch.samples] == [  # no tensors: those are sent once, stacked
        (sample.id, None, sample.questions, None) for sample in samples
    ]
    assert batch.boxes is not None
    assert batch.referents is not None
    for row, question in enumerate(batch.rows()):
        sample = samples[int(batch.image_indices[row])]
        assert question in sample.questions
        text = vocabulary.decode(batch.questions[row].tolist())
        assert text == question.text.removesuffix(" ?")
        assert SORT_OF_CLEVR_ANSWERS[int(batch.answers[row])] == question.answer
        for step, objects in enumerate(question.referents):
            marked = batch.referents[row, step].nonzero()[:, 0].tolist()
            assert marked == sorted(objects)
        assert not bool(batch.referents[row, len(question.referents) :].any())
    swapped, blank = batch.swap_images(), batch.without_images()
    assert torch.equal(swapped.images[0], samples[1].image)
    assert torch.equal(swapped.questions, batch.questions)
    assert int(blank.images.min()) == int(blank.images.max()) == 127


# ---------------------------------------------------------------- questions of any source

WORDS = Vocabulary.from_captions(["is it red"])


def sample(*questions: Question) -> QuestionSample:
    return QuestionSample("a", torch.zeros(3, 2, 2, dtype=torch.uint8), questions)


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


def test_data_without_boxes_have_no_referents_and_an_unpaired_image_keeps_its_place() -> None:
    batch = collate_questions([sample(Question("it", "red", "x"))] * 3, WORDS, ["red"]).to("cpu")
    assert (batch.boxes, batch.referents, num_paired(batch)) == (None, None, 2)
    assert batch.questions.tolist() == [[5]] * 3
    assert batch.rows()[2].text == "it"


REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: encode_questions(["red", " "], WORDS), "at least one word, got ' '"),
    (lambda: collate_questions([sample()], WORDS, ["red"]), "every sample needs a question"),
    (lambda: SortOfClevr(1, split="novel"), "not in tuple"),
    (lambda: SortOfClevr(1, size=64), "at least 75 pixels"),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_wrong_questions_and_options_are_refused(number: int) -> None:
    call, message = REFUSED[number]
    with pytest.raises(ValueError, match=message):
        call()
