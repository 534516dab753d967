"""The classification task: metrics, loss and mixing."""

from typing import Any

import pytest
import torch
from random_numbers import pixels
from torch.nn.functional import cross_entropy
from torchmetrics.functional.classification import multiclass_accuracy, multiclass_calibration_error

from visattn.data.classification.datasets import LabeledBatch
from visattn.models.resnet import AttentionResNet
from visattn.training.classification.metrics import ClassificationScores
from visattn.training.classification.task import ClassificationTask

DIGITS = tuple("0123456789")


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


def build_task(**options: Any) -> ClassificationTask:
    def classifier(classes: list[str]) -> AttentionResNet:
        size = {"img_size": (8, 8), "mean": (0.5,), "std": (0.5,)}
        return AttentionResNet(classes, depth=8, stem_width=4, block="se", **size)

    task = ClassificationTask(classifier, {"class_names": list(DIGITS)}, **options)
    task.log = lambda *_, **__: None
    return task


@torch.no_grad()
def test_the_loss_is_the_cross_entropy_of_smoothed_or_mixed_labels() -> None:
    task = build_task(label_smoothing=0.1).eval()
    examples = LabeledBatch(pixels(7, 1, 8, 8, seed=2), torch.arange(7))
    scores = task.model(examples.images).double()
    expected = 0.0
    for row, label in zip(scores.log_softmax(1), examples.labels, strict=True):
        expected -= float(0.9 * row[label] + 0.1 * row.mean()) / 7
    assert float(task.training_step(examples, 0)) == pytest.approx(expected, rel=1e-5)
    task = build_task(mixup=1.0).eval()
    torch.manual_seed(3)
    loss = task.training_step(examples, 0)
    torch.manual_seed(3)
    inputs = task.model.normalize(examples.images)
    images, labels = task.mix(inputs, examples.labels)
    assert torch.equal(loss, cross_entropy(task.model.classify(images), labels))
    weight = labels[0, 0]
    assert 0 < weight < 1
    torch.testing.assert_close(images, weight * inputs + (1 - weight) * inputs.roll(1, 0))
