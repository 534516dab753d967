"""What is explained: a class by number, name or as predicted, or any number made of scores."""

import pytest
import torch
from small_subjects import CLASSES, small_cnn

from visattn.attribution.target_scores import answers
from visattn.attribution.targets import ClassTarget, target_of

SCORES = torch.tensor([[1.0, 5.0, 2.0, 0.0], [7.0, 3.0, 4.0, 6.0], [0.0, 1.0, 2.0, 3.0]])


def test_classes_come_by_number_name_or_one_for_each_image() -> None:
    subject = small_cnn()
    assert target_of(2, subject)(SCORES).tolist() == [2, 4, 2]
    assert target_of("dog", subject)(SCORES).tolist() == [5, 3, 1]
    assert target_of(["hen", 0, 1], subject)(SCORES).tolist() == [0, 7, 1]
    assert target_of((3,), subject)(SCORES).tolist() == [0, 6, 3]


def test_the_prediction_of_the_first_call_stays() -> None:
    target = target_of(None, small_cnn())
    assert isinstance(target, ClassTarget)
    assert target(SCORES).tolist() == [5, 7, 3]
    assert target.numbers == (1, 0, 3)
    assert target(-SCORES).tolist() == [-5, -7, -3]
    assert target.first == (5, 7, 3)


def test_anything_may_be_made_of_scores() -> None:
    target = target_of(lambda scores: scores[:, 0] - scores[:, 1], small_cnn())
    assert target(SCORES).tolist() == [-4, 4, -1]
    assert target.first == (-4, 4, -1)
    assert target_of(target, small_cnn()) is target
    with pytest.raises(ValueError, match=r"one number for each image, .* returned \[\]"):
        target_of(lambda scores: scores.sum(), small_cnn())(SCORES)


def test_what_is_no_class_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)  # as in daily use
    subject = small_cnn()
    with pytest.raises(ValueError, match="4 classes are counted from 0 to 3, got target 4"):
        target_of(4, subject)
    with pytest.raises(ValueError, match="got target -1"):
        target_of(-1, subject)
    with pytest.raises(ValueError, match="no class 'dg' among its 4; did you mean 'dog'"):
        target_of("dg", subject)
    with pytest.raises(ValueError, match="counted from 0 to 3, got target 9"):
        ClassTarget([9])(SCORES)
    with pytest.raises(ValueError, match="got 2 for 3 images"):
        ClassTarget([0, 1])(SCORES)
    with pytest.raises(TypeError, match="a function of what the model returns; got float"):
        target_of(1.5, subject)  # pyright: ignore[reportArgumentType]
    nameless = type(subject)(subject.model, subject.card, subject.forward)
    assert target_of(3, nameless)(SCORES).tolist() == [0, 6, 3]
    with pytest.raises(ValueError, match="does not know the names of its classes"):
        target_of("dog", nameless)


def test_variants_of_images_are_asked_together(monkeypatch: pytest.MonkeyPatch) -> None:
    subject = small_cnn()
    subject.model.eval()
    variants = torch.randn(5, 2, 3, 13, 17, dtype=torch.float64)
    target = target_of([1, 3], subject)
    found = answers(subject, variants, target, of="probabilities")
    for variant, one in zip(variants, found, strict=True):
        expected = subject.scores(variant).softmax(1)
        torch.testing.assert_close(one, torch.stack([expected[0, 1], expected[1, 3]]))
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)  # as in daily use
    with pytest.raises(ValueError, match="made of probabilities or of scores, got 'odds'"):
        answers(subject, variants, target, of="odds")  # pyright: ignore[reportArgumentType]
    assert len(CLASSES) == 4
