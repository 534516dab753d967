"""Segmentation metrics: brute force, and torchmetrics."""

import pytest
import torch
from torchmetrics.classification import BinaryAUROC

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


def test_metrics_equal_brute_force() -> None:
    predictions, labels = maps(0)
    pairs = [
        (int(p), int(t))
        for p, t in zip(predictions.flatten(), labels.flatten(), strict=True)
        if t != 255
    ]
    iou, dice = [], []
    for number in range(3):
        inside = sum(p == t == number for p, t in pairs)
        sizes = sum(p == number for p, _ in pairs) + sum(t == number for _, t in pairs)
        iou.append(inside / (sizes - inside))
        dice.append(2 * inside / sizes)
    scores = scored(predictions[:2], labels[:2])  # in batches of any size
    scores.update(predictions[2:], labels[2:])
    values = scores.compute()
    assert float(values["miou"]) == pytest.approx(sum(iou) / 3, abs=1e-6)  # without class 3
    assert float(values["miou_foreground"]) == pytest.approx(sum(iou[1:]) / 2, abs=1e-6)
    assert float(values["dice"]) == pytest.approx(sum(dice[1:]) / 2, abs=1e-6)
    right = sum(p == t for p, t in pairs) / len(pairs)
    assert float(values["pixel_accuracy"]) == pytest.approx(right, abs=1e-6)


def test_a_class_that_is_predicted_though_absent_is_an_error() -> None:
    missing = scored(torch.full((1, *SIZE), 3), torch.zeros(1, *SIZE, dtype=torch.uint8)).compute()
    assert float(missing["miou"]) == 0


def test_unknown_labels_are_refused() -> None:
    with pytest.raises(ValueError, match=r"below the number of classes, 4, or 255; got 7"):
        scored(torch.zeros(1, 2, 2).long(), torch.full((1, 2, 2), 7, dtype=torch.uint8))


def test_gate_scores_equal_torchmetrics() -> None:
    random = torch.Generator().manual_seed(3)
    labels = maps(5)[1]
    gates = torch.rand(5, *SIZE, generator=random) * 0.5 + 0.4 * (labels == 1)
    scores = GateScores()
    for part in (slice(0, 2), slice(2, 5)):
        scores.update(gates[part], labels[part])
    counted = labels != 255
    expected = BinaryAUROC()(gates[counted], (labels[counted] > 0).long())
    values = scores.compute()
    assert float(values["auc"]) == pytest.approx(float(expected), abs=1e-3)
    inside = gates[(labels > 0) & counted].mean()
    assert float(values["inside"]) == pytest.approx(float(inside), abs=1e-6)
    assert float(values["outside"]) == pytest.approx(float(gates[labels == 0].mean()), abs=1e-6)


def test_a_constant_gate_and_a_nearly_open_one() -> None:
    labels = maps(6)[1]
    constant, opened = GateScores(), GateScores()
    constant.update(torch.ones(5, 2, 3), labels)
    assert float(constant.compute()["auc"]) == pytest.approx(0.5)
    gates = 0.9990 + 0.0009 * ((labels > 0) & (labels != 255))
    opened.update(gates, labels)
    assert float(opened.compute()["auc"]) == pytest.approx(1)
