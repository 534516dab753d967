"""The segmentation task: losses, gate supervision, metrics and panels."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from visattn.cli import main
from visattn.data.regions.segmentation import SegmentationBatch
from visattn.data.scenes.dataset import SceneObjects
from visattn.models.base import SmallEncoder
from visattn.models.unet import UNet
from visattn.training.checkpoint import read_checkpoint
from visattn.training.data_module import InputSpec
from visattn.training.segmentation.data import SegmentationData
from visattn.training.segmentation.task import SegmentationTask

NAMES = ["background", "circle", "square", "triangle", "cross", "ring", "star"]
CONFIG = """\
trainer:
  accelerator: cpu
  max_epochs: 1
  enable_progress_bar: false
  enable_model_summary: false
  num_sanity_val_steps: 0
  log_every_n_steps: 1
  callbacks:
    - class_path: SegmentationPanels
      init_args: {images: 2}
model:
  class_path: SegmentationTask
  init_args:
    segmenter:
      class_path: UNet
      init_args:
        encoder:
          class_path: SmallEncoder
          init_args: {img_size: [24, 24], channels: 8}
        decoder_channels: [8, 8]
        block: gate
    gate_loss_weight: 0.1
    focal_weight: 0.5
    num_panels: 3
data:
  class_path: SegmentationData
  init_args:
    source:
      class_path: SceneObjects
      init_args:
        {train: 8, val: 3, test: 5, image_size: 24}
    batch_size: 2
    train_transforms: [RandomHorizontalFlip]
"""


def scenes(count: int) -> SegmentationBatch:
    data = SegmentationData(SceneObjects(train=count, image_size=48))
    data.input_spec = InputSpec((48, 48), (0.5,) * 3, (0.5,) * 3)
    return data.collate("train")([data.dataset("train")[row] for row in range(count)])


def build_task(block: str | None = None, **options: Any) -> SegmentationTask:
    def segmenter(names: list[str]) -> UNet:
        torch.manual_seed(1)
        return UNet(names, SmallEncoder((48, 48), channels=16), block=block)

    return SegmentationTask(segmenter, {"class_names": NAMES}, **options)


def loss_after_training(task: SegmentationTask, steps: int) -> list[float]:
    batch = scenes(8)
    optimizer = torch.optim.AdamW(task.parameters(), lr=1e-2)
    task.log = lambda *_, **__: None  # type: ignore[method-assign]
    losses: list[float] = []
    for step in range(steps):
        optimizer.zero_grad()
        loss = task.training_step(batch, step)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    "weights",
    [
        {"ce_weight": 1.0, "dice_weight": 0.0},
        {"ce_weight": 0.0, "dice_weight": 1.0},
        {"ce_weight": 0.0, "dice_weight": 0.0, "focal_weight": 1.0},
    ],
)
def test_each_loss_falls(weights: dict[str, Any]) -> None:
    losses = loss_after_training(build_task(**weights), 12)
    assert losses[-1] < 0.8 * losses[0]


def test_supervised_gates_open_on_objects() -> None:
    task = build_task("gate", gate_loss_weight=1.0, ce_weight=0.01)
    loss_after_training(task, 40)
    batch = scenes(8)
    with torch.no_grad():
        gates = task.model.eval().segment(batch.images).gates
    objects = batch.labels > 0
    for gate in gates:
        full = torch.nn.functional.interpolate(gate[:, None], (48, 48), mode="nearest-exact")[:, 0]
        assert float(full[objects].mean()) > 1.5 * float(full[~objects].mean())


def test_dice_includes_class_0_only_without_a_background() -> None:
    batch = scenes(2)
    logits = torch.randn(2, 7, 48, 48, generator=torch.Generator().manual_seed(0))
    losses: list[Tensor] = []
    for first in ("background", "sky"):
        task = SegmentationTask(
            lambda names: UNet(names, SmallEncoder((48, 48), channels=16)),
            {"class_names": [first, *NAMES[1:]]},
            ce_weight=0.0,
        )
        assert ("val/miou_foreground" in task.val_scores) == (first == "background")
        losses.append(task._pixel_loss(logits, batch))
    assert not torch.equal(*losses)


def test_gates_are_supervised_where_there_are_some() -> None:
    for block in ("scse", None):
        with pytest.raises(ValueError, match=f"it needs block: gate, .* got block: {block}"):
            build_task(block, gate_loss_weight=0.2)


def test_a_run_is_tested_with_panels_of_both_test_sets(tmp_path: Path) -> None:
    Path("unet.yaml").write_text(CONFIG)
    assert main(["fit", "--config", "unet.yaml", "--run", "run"]) == 0
    groups = read_checkpoint("run/checkpoints/last.ckpt")["optimizer_states"][0]["param_groups"]
    assert [group["lr_mult"] for group in groups] == [0.25, 0.25, 1.0, 1.0]
    assert [group["weight_decay"] for group in groups] == [0.01, 0, 0.01, 0]
    assert main(["test", "--run", "run"]) == 0
    scores = json.loads(Path("run/test.json").read_text())
    for name in ("miou", "miou_foreground", "dice", "gate_1_auc", "gate_2_inside"):
        assert 0 <= scores[f"test/{name}"] <= 1
        assert f"novel/{name}" in scores
    classes = json.loads(Path("run/test_classes.json").read_text())
    assert [entry["class"] for entry in classes] == NAMES
    panels = sorted(path.name for path in Path("run/panels").iterdir())
    assert panels == [f"{split}_{i}.png" for split in ("novel", "test") for i in range(3)]
    with Image.open("run/panels/test_0.png") as panel:
        assert panel.size[0] == 1400
