"""Training a classifier: rates of its parts, mixed images, scores, what a checkpoint keeps."""

import json
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from class_miniatures import write_digits
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy

from visattn.cli import main
from visattn.commands.overlay.map_records import digest
from visattn.data.classification.datasets import LabeledBatch
from visattn.models.resnet.attention_resnet import AttentionResNet
from visattn.models.vit.vision_transformer import VisionTransformer
from visattn.pipelines.save_load import load
from visattn.training.checkpoint.reader import read_model
from visattn.training.tasks.classification import ClassificationTask

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
      init_args: {images: 3, height: 28}
    - class_path: EMA
model:
  class_path: ClassificationTask
  init_args:
    classifier:
      class_path: AttentionResNet
      init_args: {depth: 8, width: 4, block: se, first: stn, first_options: {hidden: 4},
        size: [28, 28], mean: [0.1], std: [0.3]}
    mixup: 0.2
    cutmix: 1.0
data:
  class_path: TorchvisionDataModule
  init_args: {source: MNIST, root: DIGITS, validation: 5, batch: 6, augment: [{RandomTranslate: {pixels: 1}}]}
"""


def task(**options: Any) -> ClassificationTask:
    def classifier(classes: list[str]) -> AttentionResNet:
        return AttentionResNet(
            classes, depth=8, width=4, block="se", size=(8, 8), mean=(0.5,), std=(0.5,)
        )

    made = ClassificationTask(classifier, {"classes": list(DIGITS)}, **options)
    made.log = lambda *_, **__: None
    return made


def batch() -> LabeledBatch:
    random = torch.Generator().manual_seed(2)
    images = torch.randint(256, (7, 1, 8, 8), dtype=torch.uint8, generator=random)
    return LabeledBatch(images, torch.arange(7))


def optimized(made: ClassificationTask, steps: int = 100) -> Any:
    made.trainer = SimpleNamespace(  # pyright: ignore[reportAttributeAccessIssue]
        estimated_stepping_batches=steps
    )
    return made.configure_optimizers()


def test_each_part_has_its_rate_and_only_matrices_decay() -> None:
    made = task(backbone_rate=0.1, block_rate=2.0, head_rate=10.0)
    groups = optimized(made)["optimizer"].param_groups
    rates = {"conv1.weight": 0.01, "bn1.weight": 0.01, "fc.weight": 1.0, "fc.bias": 1.0}
    rates["layer2.0.attention.squeeze.weight"] = 0.2
    found = {id(p): group for group in groups for p in group["params"]}
    for name, parameter in made.model.named_parameters():
        group = found.pop(id(parameter))
        if name in rates:
            assert group["initial_lr"] == pytest.approx(rates[name])
        assert group["weight_decay"] == (5e-4 if parameter.ndim > 1 else 0)
    assert not found


@pytest.mark.parametrize(
    "options",
    [
        {"distilled": True, "registers": 2, "locality": True, "layer_scale": 0.1},
        {"pool": "attention", "positions": "relative", "qk_norm": True, "stem": "conv"},
    ],
)
def test_only_the_maps_of_a_transformer_decay(options: dict[str, Any]) -> None:
    def classifier(classes: list[str]) -> VisionTransformer:
        sizes: dict[str, Any] = {"size": (8, 8), "patch": 4, "width": 8, "depth": 2, "heads": 2}
        return VisionTransformer(classes, **sizes, **options)

    made = ClassificationTask(
        classifier,
        {"classes": list(DIGITS)},
        optimizer=partial(torch.optim.AdamW, lr=1e-3, weight_decay=0.05),
    )
    groups = optimized(made)["optimizer"].param_groups
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    decayed = {name for name, p in made.model.named_parameters() if decay.pop(id(p))}
    assert not decay
    maps = (nn.Linear, nn.Conv2d)
    wanted = {name for name, module in made.model.named_modules() if isinstance(module, maps)}
    assert decayed == {f"{name}.weight" for name in wanted}


@pytest.mark.parametrize(
    ("options", "middle"), [({}, 0.5), ({"schedule": "trapezoid", "hold": 0.5}, 1.0)]
)
def test_the_rate_follows_its_schedule(options: dict[str, Any], middle: float) -> None:
    (share,) = optimized(task(**options))["lr_scheduler"]["scheduler"].lr_lambdas[:1]
    assert share(0) == pytest.approx(1)
    assert share(50) == pytest.approx(middle)
    assert share(100) < 0.03


def test_the_loss_is_the_cross_entropy() -> None:
    made, given = task(smoothing=0.1).eval(), batch()
    with torch.no_grad():
        scores = made.model(given.images).double()
        loss = made.training_step(given, 0)
    wanted = 0.0
    for row, label in zip(scores.log_softmax(1), given.labels, strict=True):
        wanted -= float(0.9 * row[label] + 0.1 * row.mean()) / 7
    assert float(loss) == pytest.approx(wanted, rel=1e-5)


def test_mixed_images_have_mixed_labels() -> None:
    made = task(mixup=1.0).eval()
    given = batch()
    torch.manual_seed(3)
    with torch.no_grad():
        loss = made.training_step(given, 0)
        torch.manual_seed(3)
        images, labels = made.mixing(made.model.normalized(given.images), given.labels)
        again = cross_entropy(made.model.classify(images), labels)
    assert torch.equal(loss, again)
    assert labels.shape == (7, 10)
    share = labels[0, 0]
    assert 0 < share < 1
    whole = made.model.normalized(given.images)
    torch.testing.assert_close(images, share * whole + (1 - share) * whole.roll(1, 0))


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


def test_a_run_is_scored_class_by_class(config: Path, run: Path) -> None:
    last = run / "checkpoints" / "last.ckpt"
    assert main(["test", "--config", str(config), "--ckpt_path", str(last)]) == 0
    scores = json.loads((run / "test.json").read_text())
    said = [scores.pop(f"test/accuracy_{name}") for name in ("verdict", "by_guessing")]
    assert said == ["at chance", pytest.approx(2 / 11, abs=1e-6)]  # two zeros among eleven
    assert "guessing gives 0.1000, 0.1818 by always answering '0'; over 11" in scores.pop("chance")
    assert set(scores) == {
        f"test/{name}" for name in ("accuracy", "balanced", "worst", "calibration", "loss")
    }
    classes = json.loads((run / "test_classes.json").read_text())
    assert [told["class"] for told in classes] == list(DIGITS)
    assert sum(told["images"] for told in classes) == 11
    right = sum(told["right"] for told in classes)
    assert scores["test/accuracy"] == pytest.approx(right / 11, abs=1e-6)


def test_class_names_come_with_the_exported_file(run: Path, tmp_path: Path) -> None:
    checkpoint, file = run / "checkpoints" / "last.ckpt", tmp_path / "m.safetensors"
    assert main(["export", str(checkpoint), "--out", str(file)]) == 0
    model: Any = load(file)
    assert model.classes == DIGITS
    trained = read_model(checkpoint)
    images = torch.randint(256, (2, 1, 28, 28), dtype=torch.uint8)
    assert torch.equal(model(images), trained(images))


def test_maps_of_a_run_as_training_left_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("L", (40, 30), 99).save("digit.png")
    words = ["overlay", "digit.png", "--method", "gradcam", "--out", "maps", "--model"]
    assert main([*words, f"run:{run}"]) == 0
    told = json.loads(Path("maps/digit.gradcam.json").read_text())
    assert told["weights"] == {
        "file": "best.ckpt",
        "sha256": digest(run / "checkpoints" / "best.ckpt"),
    }


def test_a_run_brings_its_own_weights(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Image.new("L", (40, 30), 99).save("digit.png")
    words = ["overlay", "digit.png", "--method", "gradcam", "--out", "maps", "--model"]
    assert main([*words, f"run:{run}", "--pretrained"]) == 1
    assert f"run:{run} brings its own" in capsys.readouterr().err
    assert main([*words, f"run:{run.parent / 'rum'}"]) == 1
    assert f"there is {run}" in capsys.readouterr().err


def test_the_weights_of_other_classes_are_refused(run: Path) -> None:
    made = ClassificationTask(lambda classes: AttentionResNet(classes, depth=8), {"classes": "ab"})
    with pytest.raises(
        ValueError, match=r"trained with other classes.*\['0', '1', '2', '3', '4'\]"
    ):
        made.on_load_checkpoint(torch.load(run / "checkpoints" / "last.ckpt"))


@pytest.mark.parametrize("options", [{"mixup": -1.0}, {"head_rate": -1.0}, {"smoothing": 1.0}])
def test_shares_and_rates_are_in_range(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="must be at least 0, smoothing at least 0 and below 1"):
        task(**options)
