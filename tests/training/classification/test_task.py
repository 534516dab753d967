"""The classification task: metrics, optimizer groups, loss and mixing, and a run with its files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from classification_data import write_digits
from PIL import Image
from torch.nn.functional import cross_entropy
from torchmetrics.functional.classification import (
    multiclass_accuracy,
    multiclass_calibration_error,
)

from visattn.cli import main
from visattn.commands.digests import file_digest
from visattn.data.classification.datasets import LabeledBatch
from visattn.models.resnet import AttentionResNet
from visattn.training.checkpoint import read_checkpoint
from visattn.training.classification.metrics import ClassificationScores
from visattn.training.classification.task import ClassificationTask

DIGITS = tuple("0123456789")
CONFIG = """\
trainer:
  accelerator: cpu
  max_epochs: 2
  enable_progress_bar: false
  enable_model_summary: false
  num_sanity_val_steps: 0
  log_every_n_steps: 1
  callbacks:
    - class_path: CropPanels
      init_args: {images: 3}
    - class_path: EMA
model:
  class_path: ClassificationTask
  init_args:
    classifier:
      class_path: AttentionResNet
      init_args: {depth: 8, stem_width: 4, block: se, stem_block: stn,
        stem_block_kwargs: {hidden_channels: 4}, img_size: [28, 28], mean: [0.1], std: [0.3]}
    mixup: 0.2
    cutmix: 1.0
data:
  class_path: ClassificationData
  init_args:
    source:
      class_path: TorchvisionImages
      init_args:
        {dataset: MNIST, root: DIGITS, val: 5}
    batch_size: 6
    train_transforms: [{class_path: RandomCrop, init_args: {size: 28, padding: 1}}]
"""


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


def batch() -> LabeledBatch:
    random = torch.Generator().manual_seed(2)
    images = torch.randint(256, (7, 1, 8, 8), dtype=torch.uint8, generator=random)
    return LabeledBatch(images, torch.arange(7))


@torch.no_grad()
def test_the_loss_is_the_cross_entropy_of_smoothed_or_mixed_labels() -> None:
    task, examples = build_task(label_smoothing=0.1).eval(), batch()
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


def test_a_run_is_recorded_scored_per_class_and_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_digits(tmp_path)
    Path("tiny.yaml").write_text(CONFIG.replace("DIGITS", str(tmp_path)))
    assert main(["fit", "--config", "tiny.yaml", "--run", "run"]) == 0
    last = "run/checkpoints/last.ckpt"
    steps = read_checkpoint(last)["global_step"]
    assert main(["test", "--run", "run", "--ckpt_path", last, "--data.batch_size", "5"]) == 0
    record = json.loads(Path("run/run.json").read_text())
    assert (record["config"], record["seed"]) == ("tiny", 42)
    fit, test = record["fit"], record["test"]
    assert (fit["steps"], fit["sessions"], fit["machine"]["device"]) == (steps, 1, "cpu")
    assert min(fit["cpu_seconds"], fit["wall_seconds"]) > 0
    assert (test["checkpoint"], test["step"], test["images"]) == ("last", steps, {"test": 11})
    assert test["data"]["init_args"]["batch_size"] == 5
    assert fit["commits"] == [test["commit"]]
    scores = json.loads(Path("run/test.json").read_text())
    verdict = [scores.pop(f"test/accuracy_{name}") for name in ("verdict", "majority_baseline")]
    assert verdict == ["at chance", pytest.approx(2 / 11, abs=1e-6)]  # two zeros among eleven
    assert "guessing gives 0.1000, 0.1818 by always answering '0'; over 11" in scores.pop("chance")
    names = ("accuracy", "balanced_accuracy", "worst_class_accuracy", "calibration_error", "loss")
    assert set(scores) == {f"test/{name}" for name in names}
    classes = json.loads(Path("run/test_classes.json").read_text())
    assert [row["class"] for row in classes] == list(DIGITS)
    assert sum(row["num_images"] for row in classes) == 11
    num_correct = sum(row["num_correct"] for row in classes)
    assert scores["test/accuracy"] == pytest.approx(num_correct / 11, abs=1e-6)
    Image.new("L", (40, 30), 99).save("digit.png")
    overlay = ["overlay", "digit.png", "--method", "gradcam", "--out", "maps", "--model"]
    assert main([*overlay, "run"]) == 0
    settings = json.loads(Path("maps/digit.json").read_text())["made"]["settings"]
    digest = file_digest(Path("run/checkpoints/best.ckpt"))
    assert settings["weights"] == {"file": "best.ckpt", "sha256": digest}
    capsys.readouterr()
    assert main([*overlay, "run", "--model-args", "pretrained=true"]) == 1
    assert "run comes with its own" in capsys.readouterr().err
    assert main([*overlay, "rum"]) == 1
    assert "no model is named" in capsys.readouterr().err
