"""The segmentation task: its weighted losses, supervised gates, scores and panels."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from visattn.data.regions.segmentation import SegmentationBatch
from visattn.data.scenes.dataset import SceneObjects
from visattn.models.base import SmallEncoder
from visattn.models.unet import UNet
from visattn.training.data_module import InputSpec
from visattn.training.segmentation.data import SegmentationData
from visattn.training.segmentation.losses import (
    dice_loss,
    focal_loss,
    gate_supervision_loss,
    pixel_cross_entropy,
)
from visattn.training.segmentation.task import SegmentationTask

NAMES = ["background", "circle", "square", "triangle", "cross", "ring", "star"]


def scenes(count: int) -> SegmentationBatch:
    data = SegmentationData(SceneObjects(train=count, image_size=48))
    data.input_spec = InputSpec((48, 48), (0.5,) * 3, (0.5,) * 3)
    return data.collate("train")([data.dataset("train")[row] for row in range(count)])


def build_task(block: str | None = None, first: str = "background", **options: Any) -> Any:
    def segmenter(names: list[str]) -> UNet:
        torch.manual_seed(1)
        return UNet(names, SmallEncoder((48, 48), channels=16), block=block)

    task: Any = SegmentationTask(segmenter, {"class_names": [first, *NAMES[1:]]}, **options)
    task.log = lambda *_, **__: None
    return task


@torch.no_grad()
@pytest.mark.parametrize("first", ["background", "sky"])
def test_the_loss_is_the_weighted_sum_and_supervises_gates(first: str) -> None:
    """Dice has class 0 only without a background; gates need one."""
    options = {"gate_loss_weight": 0.25} if first == "background" else {}
    weights = {"ce_weight": 0.5, "dice_weight": 2.0, "focal_weight": 3.0, "focal_gamma": 1.5}
    task, batch = build_task("gate", first, **options, **weights).eval(), scenes(3)
    output, labels = task.model.segment(batch.images), batch.labels
    expected = 0.5 * pixel_cross_entropy(output.logits, labels)
    expected += 2 * dice_loss(output.logits, labels, background=first == "sky")
    expected += 3 * focal_loss(output.logits, labels, gamma=1.5)
    assert len(output.gates) == 2
    if options:
        expected += 0.25 * sum(gate_supervision_loss(gate, labels) for gate in output.gates)
    torch.testing.assert_close(task.training_step(batch, 0), expected)
    assert ("val/miou_foreground" in task.val_scores) == (first == "background")
    for block in ("scse", None):
        with pytest.raises(ValueError, match=f"it needs block: gate, .* got block: {block}"):
            build_task(block, gate_loss_weight=0.2)


def test_both_test_sets_have_scores_classes_and_panels() -> None:
    task, batch = build_task("gate", num_panels=4).eval(), scenes(3)
    task.trainer = SimpleNamespace(state=SimpleNamespace(fn="test"), is_global_zero=True)
    with torch.no_grad():
        for loader, number in ((0, 0), (0, 1), (1, 0)):
            task.test_step(batch, number, loader)
    panels = {name for name in task.notes if name.startswith("panels/")}
    assert panels == {f"panels/{name}" for name in (
        "novel_0", "novel_1", "novel_2", "test_0", "test_1", "test_2", "test_3")}  # fmt: skip
    assert task.notes["panels/test_3"].shape[1] == 1400
    for split in ("test", "novel"):
        scores = task.evaluations[split].compute()
        assert {"miou", "miou_foreground", "dice", "gate_1_auc", "gate_2_inside"} <= {*scores}
        rows = task.evaluations[split].notes(split)[f"{split}_classes"]
        assert [row["class"] for row in rows] == NAMES


def test_the_encoder_learns_slower_and_vectors_do_not_decay() -> None:
    task = build_task()
    task.trainer = SimpleNamespace(estimated_stepping_batches=5, callbacks=[])
    groups = task.configure_optimizers()["optimizer"].param_groups
    assert [group["lr_mult"] for group in groups] == [0.25, 0.25, 1.0, 1.0]
    assert [group["weight_decay"] for group in groups] == [0.01, 0, 0.01, 0]
