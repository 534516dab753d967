"""The detection task: scores on the photo, for any batches and processes; maps of queries."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from visattn.data.regions.detection import DetectionBatch, DetectionSample
from visattn.data.scenes.dataset import SceneObjects
from visattn.data.scenes.world import SHAPES
from visattn.geometry.affine import Geometry
from visattn.models.base import SmallEncoder
from visattn.models.detr import DETR, BoxPrediction, PredictedObjects
from visattn.pipelines.detection import DetectorAttention
from visattn.training.data_module import InputSpec
from visattn.training.detection import task as detection
from visattn.training.detection.data import DetectionData
from visattn.training.detection.metrics import DetectionScores
from visattn.training.detection.task import DetectionTask

SIZE = (32, 64)  # of the input; the photo is twice as large
CAT, DOG = [10.0, 10.0, 30.0, 40.0], [50.0, 5.0, 120.0, 60.0]


def sample(
    name: str, boxes: list[list[float]], labels: list[int], crowd: int = -1
) -> DetectionSample:
    """An image whose objects have boxes in pixels of the photo."""
    geometry = Geometry.identity((64, 128)).resized(SIZE)
    true = torch.tensor(boxes, dtype=torch.float64).view(-1, 4)
    masks = torch.zeros(len(boxes), *SIZE, dtype=torch.bool)
    image = torch.zeros(3, *SIZE, dtype=torch.uint8)
    areas = (true[:, 2] - true[:, 0]) * (true[:, 3] - true[:, 1])
    is_crowd = torch.arange(len(boxes)) == crowd
    return DetectionSample(
        name, image, true.float() / 2, masks, geometry, torch.tensor(labels).long(), is_crowd,
        true.float(), areas,
    )  # fmt: skip


def detected(*images: tuple[list[int], list[float]]) -> PredictedObjects:
    """Detections of the boxes of the cat and the dog, with labels and scores for each image."""
    corners = torch.tensor([CAT, DOG]) / torch.tensor([128.0, 64.0, 128.0, 64.0])
    labels, scores = (torch.tensor(part) for part in zip(*images, strict=True))
    count = len(images)
    return PredictedObjects(
        corners.expand(count, -1, -1), labels, scores, torch.arange(2).expand(count, -1)
    )


def precision(detections: PredictedObjects, *samples: DetectionSample, name: str = "AP") -> float:
    scores = DetectionScores()
    scores.update(detections, samples)
    return scores.compute().scores[name]


def test_boxes_are_compared_on_the_photo_and_crowds_are_no_misses() -> None:
    truth = sample("a", [DOG, CAT], [1, 0])
    assert precision(detected(([0, 1], [0.9, 0.8])), truth) == pytest.approx(1.0)
    assert precision(detected(([1, 0], [0.9, 0.8])), truth) == pytest.approx(0.0)
    pair = detected(([0, 1], [0.9, 0.8]), ([0, 1], [0.0, 0.0]))
    crowd = sample("a", [CAT, DOG], [0, 1], crowd=1)  # the dog in the crowd counts neither way
    assert precision(pair, crowd, sample("b", [], [])) == pytest.approx(1.0)
    none = PredictedObjects(torch.zeros(1, 0, 4), *(torch.zeros(1, 0) for _ in range(3)))
    assert precision(none, sample("a", [CAT], [0]), name="AP50") == 0


def test_batches_and_processes_give_the_same_scores_in_any_order() -> None:
    found = [([0, 1], [0.9, 0.3]), ([0, 1], [0.2, 0.7]), ([0, 0], [0.5, 0.6])]
    truths = [
        sample("a", [CAT], [0]), sample("b", [CAT, DOG], [0, 1]), sample("c", [CAT], [0])
    ]  # fmt: skip
    together = DetectionScores()
    together.update(detected(*found), truths)
    expected = together.compute().scores
    shards = [DetectionScores(), DetectionScores()]
    for number in (2, 1, 0):
        shards[number % 2].update(detected(found[number]), [truths[number]])
    shards[0].merge_state(shards[1])
    assert shards[0].compute().scores == pytest.approx(expected, nan_ok=True)
    assert 0 < expected["AP"] < 1


def scene_batch(count: int = 7) -> DetectionBatch:
    data = DetectionData(SceneObjects(val=count, image_size=32))
    data.input_spec = InputSpec((32, 32), (0.5,) * 3, (0.5,) * 3)
    data.setup("validate")
    return data.example_batch(count)


@pytest.fixture
def task() -> DetectionTask:
    torch.manual_seed(2)

    def build(class_names: list[str]) -> DETR:
        encoder = SmallEncoder((32, 32), channels=8)
        sizes = {"dim": 16, "num_queries": 6, "num_heads": 2}
        return DETR(class_names, encoder, **sizes, num_encoder_layers=1, num_decoder_layers=2)

    built = DetectionTask(build, {"class_names": list(SHAPES)})
    built.log = built.log_dict = lambda *_, **__: None
    return built


def evaluated(task: DetectionTask, batch: DetectionBatch, stage: str) -> Any:
    trainer = SimpleNamespace(state=SimpleNamespace(fn=stage))
    task.trainer = trainer  # pyright: ignore[reportAttributeAccessIssue]
    task.evaluate(batch, "test")
    return task.evaluation("test")


def test_a_step_gives_all_parameters_a_gradient_from_all_losses(task: DetectionTask) -> None:
    batch = scene_batch(2)
    loss: Tensor = task.training_step(batch, 0)
    loss.backward()
    assert [name for name, weight in task.named_parameters() if weight.grad is None] == []
    layers = task.model.decode(task.model.encode(batch.images))
    losses = task.criterion.losses(layers, batch.labels, batch.boxes)
    torch.testing.assert_close(loss, torch.stack(list(losses.values())).sum())


def perfect_output(batch: DetectionBatch) -> BoxPrediction:
    """Return predictions whose first queries are the objects of each image, in their order."""
    logits = torch.full((1, len(batch.images), 6, len(SHAPES) + 1), -9.0)
    logits[..., -1] = 0.0  # no object
    boxes = torch.full((1, len(batch.images), 6, 4), 0.5)
    boxes[0, :, : batch.labels.shape[1]] = batch.boxes
    for image, labels in enumerate(batch.labels.tolist()):
        for query, label in enumerate(labels):
            if label >= 0:
                logits[0, image, query, label] = 9.0 - query
    return BoxPrediction(logits, boxes)


def test_perfect_predictions_have_an_average_precision_of_one(
    task: DetectionTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = scene_batch()
    monkeypatch.setattr(task.model, "decode", lambda _: perfect_output(batch))
    result = evaluated(task, batch, "fit").scores.compute()
    assert result.scores["AP"] == pytest.approx(1)
    assert set(result.per_class) == set(batch.labels[batch.labels >= 0].tolist())


@pytest.mark.parametrize("shifted", [False, True])
def test_maps_are_scored_on_the_pixels_of_their_object(
    shifted: bool, task: DetectionTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The map of each query is the mask of its object, or that of the next one."""
    batch = scene_batch()
    maps = torch.zeros(7, 6, 32, 32)
    for image, own in enumerate(batch.samples):
        assert own.masks is not None
        masks = own.masks.float()
        maps[image, : len(masks)] = masks.roll(-1, 0) if shifted else masks
    layers = perfect_output(batch)
    prediction = BoxPrediction(layers.logits[0], layers.boxes[0])
    attention = DetectorAttention(prediction, maps * (1 + torch.rand(32, 32) / 100), (1,))
    monkeypatch.setattr(detection, "detector_attention", lambda *_: attention)
    means = evaluated(task, batch, "test").maps.means
    scores = {name: float(score.compute()) for name, score in means.items()}
    smooth = scores.pop("pointing_3x3")
    assert smooth < 0.1 if shifted else smooth > 0.9  # a thin ring may have its peak in the hole
    if shifted:
        assert (scores["pointing_exact"], scores["other_query"]) == (0, 1)
    else:
        assert scores == {"pointing_game": 1, "pointing_exact": 1, "other_query": 0}


def test_recorded_maps_belong_to_the_predictions(task: DetectionTask) -> None:
    batch = scene_batch(5)
    means = evaluated(task.eval(), batch, "test").maps.means
    count = sum(len(own.labels) for own in batch.samples)
    assert float(means["pointing_game"].count) == count
