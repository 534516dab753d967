"""Detection scores: order of batches, processes, coordinates of the original image."""

import pytest
import torch
from torch import Tensor

from visattn.data.regions.detection import DetectionSample
from visattn.geometry.affine import Geometry
from visattn.models.detr import PredictedObjects
from visattn.training.detection.metrics import DetectionScores

SIZE = (32, 64)  # of the input; the photo is twice as large


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


def predicted_boxes(
    boxes: list[list[float]], labels: list[int], scores: list[float]
) -> list[Tensor]:
    """Detections with boxes in pixels of the photo, in shares of the input."""
    corners = torch.tensor(boxes).view(-1, 4) / torch.tensor([128.0, 64.0, 128.0, 64.0])
    rank = torch.arange(len(boxes))
    return [corners, torch.tensor(labels).long(), torch.tensor(scores), rank]


def batch(*images: list[Tensor]) -> PredictedObjects:
    return PredictedObjects(*(torch.stack(parts) for parts in zip(*images, strict=True)))


CAT, DOG = [10.0, 10.0, 30.0, 40.0], [50.0, 5.0, 120.0, 60.0]


def test_boxes_are_compared_on_the_photo() -> None:
    scores = DetectionScores()
    scores.update(
        batch(predicted_boxes([CAT, DOG], [0, 1], [0.9, 0.8])), [sample("a", [DOG, CAT], [1, 0])]
    )
    assert scores.compute().scores["AP"] == pytest.approx(1.0)
    wrong = DetectionScores()
    wrong.update(
        batch(predicted_boxes([CAT, DOG], [1, 0], [0.9, 0.8])), [sample("a", [DOG, CAT], [1, 0])]
    )
    assert wrong.compute().scores["AP"] == pytest.approx(0.0)


def test_batches_and_processes_give_the_same_scores_in_any_order() -> None:
    images = [
        (predicted_boxes([CAT, DOG], [0, 1], [0.9, 0.3]), sample("a", [CAT], [0])),
        (predicted_boxes([CAT, DOG], [0, 1], [0.2, 0.7]), sample("b", [CAT, DOG], [0, 1])),
        (predicted_boxes([DOG, CAT], [0, 0], [0.6, 0.5]), sample("c", [CAT], [0])),
    ]
    together = DetectionScores()
    together.update(batch(*(each for each, _ in images)), [each for _, each in images])
    expected = together.compute().scores
    shards = [DetectionScores(), DetectionScores()]
    for number, (detections, truth) in enumerate(reversed(images)):
        shards[number % 2].update(batch(detections), [truth])
    shards[0].merge_state(shards[1])
    assert shards[0].compute().scores == pytest.approx(expected, nan_ok=True)
    assert 0 < expected["AP"] < 1


def test_crowds_and_empty_images_are_no_misses() -> None:
    scores = DetectionScores()
    detections = batch(
        predicted_boxes([CAT, DOG], [0, 1], [0.9, 0.8]),
        predicted_boxes([CAT, DOG], [0, 1], [0.0, 0.0]),
    )
    crowd = sample("a", [CAT, DOG], [0, 1], crowd=1)  # the dog in the crowd counts neither way
    scores.update(detections, [crowd, sample("b", [], [])])
    assert scores.compute().scores["AP"] == pytest.approx(1.0)


def test_without_detections_nothing_is_found() -> None:
    scores = DetectionScores()
    none = PredictedObjects(torch.zeros(1, 0, 4), *(torch.zeros(1, 0) for _ in range(3)))
    scores.update(none, [sample("a", [CAT], [0])])
    assert scores.compute().scores["AP50"] == 0.0
