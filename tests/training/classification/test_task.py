"""The classification task: optimizer, mixing, metrics and checkpoints."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from classification_data import write_digits
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy

from visattn.cli import main
from visattn.commands.digests import file_digest
from visattn.data.classification.datasets import LabeledBatch
from visattn.models.resnet import AttentionResNet
from visattn.models.saving import load
from visattn.models.vit import VisionTransformer
from visattn.training.checkpoint import read_checkpoint
from visattn.training.classification.task import ClassificationTask
from visattn.training.optim import OptimConfig

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


def build_task(**options: Any) -> ClassificationTask:
    def classifier(classes: list[str]) -> AttentionResNet:
        return AttentionResNet(
            classes, depth=8, stem_width=4, block="se", img_size=(8, 8), mean=(0.5,), std=(0.5,)
        )

    task = ClassificationTask(classifier, {"class_names": list(DIGITS)}, **options)
    task.log = lambda *_, **__: None
    return task


def batch() -> LabeledBatch:
    random = torch.Generator().manual_seed(2)
    images = torch.randint(256, (7, 1, 8, 8), dtype=torch.uint8, generator=random)
    return LabeledBatch(images, torch.arange(7))


def optimizer_config(task: ClassificationTask, steps: int = 100) -> Any:
    task.trainer = SimpleNamespace(  # pyright: ignore[reportAttributeAccessIssue]
        estimated_stepping_batches=steps, callbacks=[]
    )
    return task.configure_optimizers()


def test_each_part_has_its_learning_rate_and_only_matrices_have_weight_decay() -> None:
    task = build_task(optim=OptimConfig(lr_mults={"backbone": 0.1, "blocks": 2.0, "head": 10.0}))
    groups = optimizer_config(task)["optimizer"].param_groups
    rates = {"conv1.weight": 0.01, "bn1.weight": 0.01, "fc.weight": 1.0, "fc.bias": 1.0}
    rates["layer2.0.attention.squeeze.weight"] = 0.2
    group_of = {id(p): group for group in groups for p in group["params"]}
    for name, parameter in task.model.named_parameters():
        group = group_of.pop(id(parameter))
        if name in rates:
            assert group["initial_lr"] == pytest.approx(rates[name])
        assert group["weight_decay"] == (5e-4 if parameter.ndim > 1 else 0)
    assert not group_of


@pytest.mark.parametrize(
    "options",
    [
        {"lsa": True, "stem": "shifted"},
        {"global_pool": "sequence", "pos_embed_type": "sine", "stem": "conv"},
    ],
)
def test_only_linear_and_conv_weights_of_a_transformer_have_weight_decay(
    options: dict[str, Any],
) -> None:
    def classifier(classes: list[str]) -> VisionTransformer:
        return VisionTransformer(
            classes, img_size=(8, 8), patch_size=4, embed_dim=8, depth=2, num_heads=2, **options
        )

    task = ClassificationTask(
        classifier,
        {"class_names": list(DIGITS)},
        optim=OptimConfig(partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.05)),
    )
    groups = optimizer_config(task)["optimizer"].param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    decayed = {name for name, p in task.model.named_parameters() if decay.pop(id(p))}
    assert not decay
    maps = (nn.Linear, nn.Conv2d)
    expected = {name for name, module in task.model.named_modules() if isinstance(module, maps)}
    assert decayed == {f"{name}.weight" for name in expected}


def test_loss_is_the_label_smoothed_cross_entropy() -> None:
    task, examples = build_task(label_smoothing=0.1).eval(), batch()
    with torch.no_grad():
        scores = task.model(examples.images).double()
        loss = task.training_step(examples, 0)
    expected = 0.0
    for row, label in zip(scores.log_softmax(1), examples.labels, strict=True):
        expected -= float(0.9 * row[label] + 0.1 * row.mean()) / 7
    assert float(loss) == pytest.approx(expected, rel=1e-5)


def test_mixed_images_have_mixed_labels() -> None:
    task = build_task(mixup=1.0).eval()
    examples = batch()
    torch.manual_seed(3)
    with torch.no_grad():
        loss = task.training_step(examples, 0)
        torch.manual_seed(3)
        images, labels = task.mix(task.model.normalize(examples.images), examples.labels)
        again = cross_entropy(task.model.classify(images), labels)
    assert torch.equal(loss, again)
    assert labels.shape == (7, 10)
    weight = labels[0, 0]
    assert 0 < weight < 1
    inputs = task.model.normalize(examples.images)
    torch.testing.assert_close(images, weight * inputs + (1 - weight) * inputs.roll(1, 0))


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits")
    write_digits(folder)
    path = folder / "tiny.yaml"
    path.write_text(CONFIG.replace("DIGITS", str(folder)))
    return path


@pytest.fixture(scope="module")
def run(config: Path) -> Path:
    folder = config.parent / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["visattn"])
        assert main(["fit", "--config", str(config), "--run", str(folder)]) == 0
    return folder


def test_a_run_records_how_it_was_trained_and_scored(config: Path, run: Path) -> None:
    last = run / "checkpoints" / "last.ckpt"
    scored = ["--run", str(run), "--ckpt_path", str(last)]
    assert main(["test", *scored, "--data.batch_size", "5"]) == 0
    record = json.loads((run / "run.json").read_text())
    assert (record["config"], record["seed"]) == ("tiny", 42)
    fit, test = record["fit"], record["test"]
    steps = read_checkpoint(last)["global_step"]
    assert (fit["steps"], fit["sessions"], fit["machine"]["device"]) == (steps, 1, "cpu")
    assert fit["cpu_seconds"] > 0
    assert fit["wall_seconds"] > 0
    assert (test["checkpoint"], test["step"], test["images"]) == ("last", steps, {"test": 11})
    assert test["data"]["init_args"]["batch_size"] == 5
    assert fit["commits"] == [test["commit"]]


def test_results_have_the_accuracy_of_each_class(config: Path, run: Path) -> None:
    last = run / "checkpoints" / "last.ckpt"
    assert main(["test", "--config", str(config), "--ckpt_path", str(last)]) == 0
    scores = json.loads((run / "test.json").read_text())
    verdict = [scores.pop(f"test/accuracy_{name}") for name in ("verdict", "majority_baseline")]
    assert verdict == ["at chance", pytest.approx(2 / 11, abs=1e-6)]  # two zeros among eleven
    assert "guessing gives 0.1000, 0.1818 by always answering '0'; over 11" in scores.pop("chance")
    assert set(scores) == {
        f"test/{name}"
        for name in (
            "accuracy",
            "balanced_accuracy",
            "worst_class_accuracy",
            "calibration_error",
            "loss",
        )
    }
    classes = json.loads((run / "test_classes.json").read_text())
    assert [row["class"] for row in classes] == list(DIGITS)
    assert sum(row["num_images"] for row in classes) == 11
    num_correct = sum(row["num_correct"] for row in classes)
    assert scores["test/accuracy"] == pytest.approx(num_correct / 11, abs=1e-6)


def test_exported_file_has_the_class_names(run: Path, tmp_path: Path) -> None:
    checkpoint, file = run / "checkpoints" / "last.ckpt", tmp_path / "m.safetensors"
    assert main(["export", str(checkpoint), "--out", str(file)]) == 0
    model: Any = load(file)
    assert model.class_names == DIGITS
    trained = load(checkpoint)
    images = torch.randint(256, (2, 1, 28, 28), dtype=torch.uint8)
    assert torch.equal(model(images), trained(images))


def test_maps_of_a_run_record_its_checkpoint(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("L", (40, 30), 99).save("digit.png")
    arguments = ["overlay", "digit.png", "--method", "gradcam", "--out", "maps", "--model"]
    assert main([*arguments, str(run)]) == 0
    record = json.loads(Path("maps/digit.json").read_text())
    assert record["made"]["settings"]["weights"] == {
        "file": "best.ckpt",
        "sha256": file_digest(run / "checkpoints" / "best.ckpt"),
    }


def test_run_and_pretrained_exclude_each_other(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("L", (40, 30), 99).save("digit.png")
    arguments = ["overlay", "digit.png", "--method", "gradcam", "--out", "maps", "--model"]
    assert main([*arguments, str(run), "--model-args", "pretrained=true"]) == 1
    assert f"{run} brings its own" in capsys.readouterr().err
    assert main([*arguments, str(run.parent / "rum")]) == 1
    assert "no model is named" in capsys.readouterr().err
