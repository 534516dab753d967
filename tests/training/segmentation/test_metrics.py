"""Segmentation metrics: those of torchmetrics, and what it does not have."""

import pytest
import torch
from torchmetrics.functional.classification import (
    binary_auroc,
    multiclass_accuracy,
    multiclass_f1_score,
    multiclass_jaccard_index,
)

from visattn.training.segmentation.metrics import GateScores, SegmentationScores

SIZE = (23, 31)


def maps(seed: int, count: int = 5, classes: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    """Blocky predictions and labels, of which some are ignored; class 3 is never used."""
    random = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes - 1, (count, 5, 7), generator=random)
    labels = labels.repeat_interleave(5, 1).repeat_interleave(5, 2)[:, : SIZE[0], : SIZE[1]]
    wrong = torch.rand(count, *SIZE, generator=random) < 0.2
    predictions = torch.where(
        wrong, torch.randint(classes - 1, wrong.shape, generator=random), labels
    )
    ignored = torch.rand(count, *SIZE, generator=random) < 0.1
    return predictions, labels.masked_fill(ignored, 255).to(torch.uint8)


def scored(predictions: torch.Tensor, labels: torch.Tensor) -> SegmentationScores:
    scores = SegmentationScores(4, background=True)
    scores.update(predictions, labels)
    return scores


def test_scores_are_those_of_torchmetrics_without_absent_classes() -> None:
    predictions, labels = maps(0)
    both = (predictions, labels.int(), 4)
    iou = multiclass_jaccard_index(*both, average="none", ignore_index=255)
    dice = multiclass_f1_score(*both, average="none", ignore_index=255)
    expected = {
        "miou": iou[:3].mean(),
        "dice": dice[1:3].mean(),
        "pixel_accuracy": multiclass_accuracy(*both, average="micro", ignore_index=255),
        "miou_foreground": iou[1:3].mean(),
    }
    scores = scored(predictions[:2], labels[:2])  # in batches of any size
    scores.update(predictions[2:], labels[2:])
    torch.testing.assert_close(scores.compute(), expected)


def test_a_class_that_is_predicted_though_absent_is_an_error() -> None:
    missing = scored(torch.full((1, *SIZE), 3), torch.zeros(1, *SIZE, dtype=torch.uint8)).compute()
    assert float(missing["miou"]) == 0


def test_unknown_labels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"below the number of classes, 4, or 255; got 7"):
        scored(torch.zeros(1, 2, 2).long(), torch.full((1, 2, 2), 7, dtype=torch.uint8))


def test_scores_of_gates_are_those_of_torchmetrics() -> None:
    random = torch.Generator().manual_seed(3)
    labels = maps(5)[1]
    gates = torch.rand(5, *SIZE, generator=random) * 0.5 + 0.4 * (labels == 1)
    scores = GateScores()
    for part in (slice(0, 2), slice(2, 5)):
        scores.update(gates[part], labels[part])
    counted = labels != 255
    expected = {
        "auc": binary_auroc(gates[counted], (labels[counted] > 0).long()),
        "inside": gates[(labels > 0) & counted].mean(),
        "outside": gates[labels == 0].mean(),
    }
    torch.testing.assert_close(scores.compute(), expected, atol=1e-3, rtol=0)


def test_a_constant_gate_and_a_nearly_open_one() -> None:
    labels = maps(6)[1]
    objects = (labels > 0) & (labels != 255)
    for gates, auc in ((torch.ones(5, 2, 3), 0.5), (0.9990 + 0.0009 * objects, 1.0)):
        scores = GateScores()
        scores.update(gates, labels)
        assert float(scores.compute()["auc"]) == pytest.approx(auc)
