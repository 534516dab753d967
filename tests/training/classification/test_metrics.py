"""Classification metrics: against torchmetrics, and by hand."""

import math

import pytest
import torch
from torchmetrics.functional.classification import (
    multiclass_accuracy,
    multiclass_calibration_error,
)

from visattn.training.classification.metrics import ClassificationScores


def test_scores_match_torchmetrics_for_any_batch_size() -> None:
    random = torch.Generator().manual_seed(5)
    logits = 3 * torch.randn(211, 5, generator=random)
    labels = torch.randint(4, (211,), generator=random)  # class 4 has no images
    metric = ClassificationScores(5)
    for chunk, true in zip(logits.split(13), labels.split(13), strict=True):
        metric.update(chunk, true)
    results = metric.compute()
    torch.testing.assert_close(
        results["accuracy"], multiclass_accuracy(logits, labels, 5, average="micro")
    )
    reference = multiclass_calibration_error(logits.double().softmax(1), labels, 5, n_bins=15)
    torch.testing.assert_close(results["calibration_error"], reference.float())
    per_class = multiclass_accuracy(logits, labels, 5, average="none")
    torch.testing.assert_close(metric.per_class_accuracy()[:4], per_class[:4])
    assert metric.per_class_accuracy()[4].isnan()
    torch.testing.assert_close(results["balanced_accuracy"], per_class[:4].mean())
    torch.testing.assert_close(results["worst_class_accuracy"], per_class[:4].min())


def test_scores_match_values_by_hand() -> None:
    certain, doubtful = [60.0, 0.0], [math.log(3), 0.0]  # confidence 1 and 0.75
    scores = ClassificationScores(2)
    scores.update(torch.tensor([certain, doubtful, doubtful]), torch.tensor([0, 0, 1]))
    computed = scores.compute()
    assert computed.pop("confusion").tolist() == [[2, 0], [1, 0]]
    values = {name: float(value) for name, value in computed.items()}
    expected = {
        "accuracy": 2 / 3,
        "balanced_accuracy": 0.5,
        "worst_class_accuracy": 0.0,
        "calibration_error": 2 / 3 * 0.25,
    }
    assert values == pytest.approx(expected)


def test_reset_clears_the_state() -> None:
    scores = ClassificationScores(2)
    scores.update(torch.eye(2), torch.tensor([1, 0]))
    scores.reset()
    scores.update(torch.eye(2), torch.tensor([0, 1]))
    assert float(scores.compute()["accuracy"]) == 1


def test_overconfidence_does_not_cancel_underconfidence() -> None:
    confident, doubtful = [60.0, 0.0], [math.log(3), 0.0]  # confidence 1, wrong; and 0.75, right
    scores = ClassificationScores(2)
    scores.update(torch.tensor([confident, doubtful]), torch.tensor([1, 0]))
    assert float(scores.compute()["calibration_error"]) == pytest.approx((1 + 0.25) / 2)
