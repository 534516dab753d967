"""How well classes are told: against torchmetrics, and by hand."""

import math

import pytest
import torch
from torchmetrics.functional.classification import (
    multiclass_accuracy,
    multiclass_calibration_error,
)

from visattn.training.metrics.classification import ClassScores


def test_scores_are_those_of_torchmetrics_whatever_the_batches() -> None:
    random = torch.Generator().manual_seed(5)
    scores = 3 * torch.randn(211, 5, generator=random)
    labels = torch.randint(4, (211,), generator=random)  # class 4 is never there
    ours = ClassScores(5)
    for some, true in zip(scores.split(13), labels.split(13), strict=True):
        ours.update(some, true)
    found = ours.compute()
    torch.testing.assert_close(
        found["accuracy"], multiclass_accuracy(scores, labels, 5, average="micro")
    )
    theirs = multiclass_calibration_error(scores.double().softmax(1), labels, 5, n_bins=15)
    torch.testing.assert_close(found["calibration"], theirs.float())
    per_class = multiclass_accuracy(scores, labels, 5, average="none")
    torch.testing.assert_close(ours.per_class()[:4], per_class[:4])
    assert ours.per_class()[4].isnan()
    torch.testing.assert_close(found["balanced"], per_class[:4].mean())
    torch.testing.assert_close(found["worst"], per_class[:4].min())


def test_by_hand() -> None:
    certain, doubtful = [60.0, 0.0], [math.log(3), 0.0]  # confidence 1 and 0.75
    scores = ClassScores(2)
    scores.update(torch.tensor([certain, doubtful, doubtful]), torch.tensor([0, 0, 1]))
    computed = scores.compute()
    assert computed.pop("confusion").tolist() == [[2, 0], [1, 0]]
    found = {name: float(value) for name, value in computed.items()}
    wanted = {"accuracy": 2 / 3, "balanced": 0.5, "worst": 0.0, "calibration": 2 / 3 * 0.25}
    assert found == pytest.approx(wanted)


def test_it_begins_anew() -> None:
    scores = ClassScores(2)
    scores.update(torch.eye(2), torch.tensor([1, 0]))
    scores.reset()
    scores.update(torch.eye(2), torch.tensor([0, 1]))
    assert float(scores.compute()["accuracy"]) == 1


def test_too_sure_here_does_not_pay_for_too_doubtful_there() -> None:
    sure, doubtful = [60.0, 0.0], [math.log(3), 0.0]  # confidence 1, wrong; and 0.75, right
    scores = ClassScores(2)
    scores.update(torch.tensor([sure, doubtful]), torch.tensor([1, 0]))
    assert float(scores.compute()["calibration"]) == pytest.approx((1 + 0.25) / 2)
