"""Any network is a classifier: trained, scored, explained and exported; heads, weights, remarks."""

import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from task_runs import as_yaml, data, of

from visattn import Scenes
from visattn.cli import main
from visattn.commands.files import file_digest
from visattn.data import SingleObjects
from visattn.data.scenes.world import SHAPES
from visattn.models.backbones.module_classifier import ModuleClassifier
from visattn.models.saving import load
from visattn.training import ClassificationData, ClassificationTask

NETWORK = """\
from torch import nn


class MyNet(nn.Module):
    def __init__(self, num_classes, width=8):
        super().__init__()
        self.layer1 = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.ReLU())
        self.fc = nn.Linear(width, num_classes)

    def forward(self, x):
        return self.fc(self.layer1(x).mean((2, 3)))
"""


def config(classifier: dict[str, Any]) -> str:
    source = of("SingleObjects", train=16, val=8, test=8, image_size=32)
    task = of("ClassificationTask", classifier=classifier, class_weights="balanced")
    return as_yaml(task, data("Classification", source, 8), max_epochs=1, logger=False)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> str:
    """A module in the working folder, which is trusted; with a name of its own for each test."""
    Path("own_network.py").write_text(NETWORK)
    monkeypatch.setenv("VISATTN_TRUST_MODULES", "own_network")
    return "own_network.MyNet"


def test_a_network_of_ones_own_is_trained_scored_explained_and_exported(
    network: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("configs").mkdir()  # the network lies in the working folder, not beside the config
    own = of(network, width=6, img_size=[32, 32], blocks={"se": "layer*"})
    Path("configs/own.yaml").write_text(config(own))
    assert main(["fit", "--config", "configs/own.yaml", "--run", "run"]) == 0
    assert main(["validate", "--run", "run"]) == 0
    assert "val/accuracy" in json.loads(Path("run/validate.json").read_text())
    last = "run/checkpoints/last.ckpt"
    assert main(["test", "--run", "run", "--ckpt_path", last, "--data.batch_size", "5"]) == 0
    record = json.loads(Path("run/run.json").read_text())
    assert (record["config"], record["seed"]) == ("own", 42)
    fit, test = record["fit"], record["test"]
    assert (fit["steps"], fit["sessions"], fit["machine"]["device"]) == (2, 1, "cpu")
    assert min(fit["cpu_seconds"], fit["wall_seconds"]) > 0
    assert (test["checkpoint"], test["step"], test["images"]) == ("last", 2, {"test": 8})
    assert test["data"]["init_args"]["batch_size"] == 5
    assert fit["commits"] == [test["commit"]]
    scores = json.loads(Path("run/test.json").read_text())
    assert {"test/accuracy_verdict", "test/accuracy_majority_baseline"} < {*scores}
    assert "guessing gives 0.1667" in scores["chance"]
    classes = json.loads(Path("run/test_classes.json").read_text())
    assert {row["class"] for row in classes} <= set(SHAPES)
    assert sum(row["num_images"] for row in classes) == 8
    correct = sum(row["num_correct"] for row in classes)
    assert scores["test/accuracy"] == pytest.approx(correct / 8, abs=1e-6)
    assert main(["export", "run", "--out", "own.safetensors"]) == 0
    model: Any = load("own.safetensors")
    assert (type(model.net).__name__, model.head.in_features) == ("MyNet", 6)
    assert any("visattn" in name for name, _ in model.net.named_parameters())
    photo = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    best = load("run/checkpoints/best.ckpt")
    assert torch.equal(model(photo), best(photo))
    Image.fromarray(Scenes(3, size=32)[0].image.permute(1, 2, 0).numpy()).save("photo.png")
    overlay = ["overlay", "photo.png", "--method", "gradcam", "--out", "maps", "--model"]
    assert main([*overlay, "run"]) == 0
    made = json.loads(Path("maps/photo.json").read_text())["made"]["settings"]
    digest = file_digest(Path("run/checkpoints/best.ckpt"))
    assert made["weights"] == {"file": "best.ckpt", "sha256": digest}
    capsys.readouterr()
    assert main([*overlay, "run", "--model-args", "pretrained=true"]) == 1
    assert "run comes with its own" in capsys.readouterr().err
    # Fewer classes: the layers before the last one are those of the first run.
    shapes = ["--data.source.shapes", "[circle,square]", "--init_from", last]
    frozen = ["--model.optim.lr_mults", "{backbone: 0, blocks: 0}"]
    assert main(["fit", "--config", "configs/own.yaml", "--run", "next", *shapes, *frozen]) == 0
    first, second = (load(f"{name}/checkpoints/last.ckpt").state_dict() for name in ("run", "next"))
    assert second["net.fc.weight"].shape == (2, 6)
    assert torch.equal(first["net.layer1.0.weight"], second["net.layer1.0.weight"])


def test_networks_of_torchvision_and_timm_are_classifiers_too() -> None:
    for name in ("torchvision:squeezenet1_1", "timm:test_resnet"):
        model = ModuleClassifier("abc", name, img_size=(64, 64), mean=(0.5,) * 3)
        assert model(torch.zeros(2, 3, 64, 64, dtype=torch.uint8)).shape == (2, 3)
    with pytest.raises(
        ValueError, match=r"must give 2 logits per image, got shape \(1, 128, 8, 8\)"
    ):
        ModuleClassifier("ab", "visattn.models.base.SmallEncoder", img_size=(64, 64))


def test_code_of_others_does_not_run(network: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VISATTN_TRUST_MODULES")
    with pytest.raises(ValueError, match="trust it: VISATTN_TRUST_MODULES=own_network"):
        ModuleClassifier("ab", "own_network.py:MyNet")


def test_balanced_weights_are_inverse_to_the_images(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = ClassificationData(SingleObjects(24, 8, image_size=32))
    samples.setup("fit")
    build = lambda names: ModuleClassifier(names, "timm:test_resnet", img_size=(32, 32))  # noqa: E731
    task = ClassificationTask(build, samples.data_info, class_weights="balanced")
    task.data = samples
    monkeypatch.setattr(ClassificationTask, "check_training", lambda _: None)
    task.on_fit_start()
    counted = samples.count_targets("train")
    assert counted is not None
    counts = torch.tensor([counted[1][name] for name in samples.class_names])
    assert task.weight is not None
    torch.testing.assert_close(task.weight * counts, torch.full((len(counts),), 24 / len(counts)))


def test_frozen_random_weights_are_remarked_unless_they_are_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remarks: list[str] = []
    monkeypatch.setattr("visattn.training.task.rank_zero_info", remarks.append)
    head = of("TimmClassifier", name="test_resnet", freeze_backbone=True)
    Path("frozen.yaml").write_text(config(head))
    save_file(timm.create_model("test_resnet").state_dict(), "w.safetensors")
    run = ["fit", "--config", "frozen.yaml", "--dry-run"]
    said = "the frozen weights of TimmClassifier are random: set pretrained: true"
    for more, remarked in (
        ([], True), (["--model.classifier.weights", "w.safetensors"], False),
        (["--model.classifier.freeze_backbone", "false"], False),
        (["--model.classifier.freeze_backbone", "false", "--model.optim.lr_mults.backbone", "0"],
         True),
    ):  # fmt: skip
        remarks.clear()
        assert main([*run, *more]) == 0
        assert any(said in each for each in remarks) == remarked
