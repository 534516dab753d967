"""Task of detectors: losses and metrics."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from visattn.data.regions.detection import DetectionBatch
from visattn.data.scenes.dataset import SceneObjects
from visattn.data.scenes.world import SHAPES
from visattn.models.base import SmallEncoder
from visattn.models.detr import DETR, BoxPrediction
from visattn.pipelines.detection import DetectorAttention
from visattn.training.data_module import InputSpec
from visattn.training.detection import task as detection
from visattn.training.detection.data import DetectionData
from visattn.training.detection.task import DetectionTask


def scene_batch(count: int = 5) -> DetectionBatch:
    data = DetectionData(SceneObjects(val=count, image_size=32))
    data.input_spec = InputSpec((32, 32), (0.5,) * 3, (0.5,) * 3)
    data.setup("validate")
    return data.example_batch(count)


def set_stage(task: DetectionTask, stage: str) -> DetectionTask:
    trainer = SimpleNamespace(state=SimpleNamespace(fn=stage))
    task.trainer = trainer  # pyright: ignore[reportAttributeAccessIssue]
    return task


def map_scores(task: DetectionTask, batch: DetectionBatch) -> dict[str, Any]:
    set_stage(task, "test").evaluate(batch, "test")
    return dict(task.evaluation("test").maps.means.items())


def detection_task() -> DetectionTask:
    torch.manual_seed(2)

    def build(class_names: list[str]) -> DETR:
        encoder = SmallEncoder((32, 32), channels=8)
        return DETR(
            class_names,
            encoder,
            dim=16,
            num_queries=6,
            num_heads=2,
            num_encoder_layers=1,
            num_decoder_layers=2,
        )

    task = DetectionTask(build, {"class_names": list(SHAPES)})
    task.log = task.log_dict = lambda *_, **__: None
    return task


def test_a_step_has_a_finite_loss_and_trains_all_parameters() -> None:
    task, batch = detection_task(), scene_batch()
    loss = task.training_step(batch, 0)
    loss.backward()
    assert bool(loss.isfinite())
    missing = [name for name, weight in task.named_parameters() if weight.grad is None]
    assert missing == []


def perfect_output(batch: DetectionBatch) -> BoxPrediction:
    """Return predictions whose first queries are the objects of each image, in their order."""
    logits = torch.full((1, len(batch.images), 6, len(SHAPES) + 1), -9.0)
    logits[..., -1] = 0.0  # no object
    boxes = torch.full((1, len(batch.images), 6, 4), 0.5)
    count = batch.labels.shape[1]
    boxes[0, :, :count] = batch.boxes
    for image, labels in enumerate(batch.labels.tolist()):
        for query, label in enumerate(labels):
            if label >= 0:
                logits[0, image, query, label] = 9.0 - query
    return BoxPrediction(logits, boxes)


def test_perfect_predictions_have_an_average_precision_of_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task, batch = detection_task(), scene_batch(7)
    monkeypatch.setattr(task.model, "decode", lambda _: perfect_output(batch))
    set_stage(task, "fit").evaluate(batch, "val")
    result = task.evaluation("val").scores.compute()
    assert result.scores["AP"] == pytest.approx(1)
    assert set(result.per_class) == set(batch.labels[batch.labels >= 0].tolist())


@pytest.mark.parametrize("shifted", [False, True])
def test_maps_are_scored_on_the_pixels_of_their_object(
    shifted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The map of each query is the mask of its object, or that of the next one."""
    task, batch = detection_task(), scene_batch(7)
    maps = torch.zeros(7, 6, 32, 32)
    for image, sample in enumerate(batch.samples):
        assert sample.masks is not None
        masks = sample.masks.float()
        maps[image, : len(masks)] = masks.roll(-1, 0) if shifted else masks
    layers = perfect_output(batch)
    prediction = BoxPrediction(layers.logits[0], layers.boxes[0])
    attention = DetectorAttention(prediction, maps * (1 + torch.rand(32, 32) / 100), "site")
    monkeypatch.setattr(detection, "detector_attention", lambda *_: attention)
    scores = {name: float(score.compute()) for name, score in map_scores(task, batch).items()}
    smooth = scores.pop("pointing_3x3")
    assert smooth < 0.1 if shifted else smooth > 0.9  # a thin ring may have its peak in the hole
    if shifted:
        assert (scores["pointing_exact"], scores["other_query"]) == (0, 1)
    else:
        assert scores == {"pointing_game": 1, "pointing_exact": 1, "other_query": 0}


def test_recorded_maps_belong_to_the_predictions() -> None:
    task, batch = detection_task().eval(), scene_batch()
    scores = map_scores(task, batch)
    count = sum(len(sample.labels) for sample in batch.samples)
    assert float(scores["pointing_game"].count) == count


def test_a_detector_overfits_one_scene() -> None:
    task, batch = detection_task(), scene_batch(1)
    optimizer = torch.optim.AdamW(task.parameters(), lr=5e-3)
    losses: list[float] = []
    for _ in range(60):
        loss: Tensor = task.training_step(batch, 0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 3
