"""COCO average precision of a detector, exact over all processes."""

from collections.abc import Sequence
from hashlib import sha256

import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric

from visattn.data.regions.detection import DetectionSample
from visattn.metrics.detection import APResult, DetectedBoxes, TrueBoxes, average_precision
from visattn.models.detr import PredictedObjects

DETECTION_METRICS = ("AP", "AP50", "AP75", "AR100", "loss")
"""Metrics that validation logs; the test adds AP by area and scores of query maps."""
_DETECTED = 7  # columns of the tables
_TRUE = 8


class DetectionScores(Metric):
    """Average precision and recall of detections in pixels of the original images.

    All detections are kept until the end, as table rows that can be gathered over processes.

    Example:
        >>> from visattn.data.regions.detection import detection_input
        >>> from visattn.images.resize import ResizeSpec
        >>> photo = np.zeros((64, 64, 3), np.uint8)
        >>> cats = photo, [("cat", (3, 5, 20, 30)), ("cat", (9, 9, 50, 60))]
        >>> sample = detection_input(cats, 0, numbers={"cat": 0}, resize=ResizeSpec((32, 32)))
        >>> samples = [sample]
        >>> boxes = sample.true_boxes[None] / 64
        >>> rank = torch.arange(boxes.shape[1])[None]
        >>> scores = DetectionScores()
        >>> predicted = PredictedObjects(boxes, sample.labels[None], 1.0 - 0.1 * rank, rank)
        >>> scores.update(predicted, samples)
        >>> round(scores.compute().scores["AP"], 6)
        1.0
    """

    full_state_update = False
    detected: list[Tensor]
    true: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("detected", [], dist_reduce_fx="cat")
        self.add_state("true", [], dist_reduce_fx="cat")

    def update(self, detections: PredictedObjects, samples: Sequence[DetectionSample]) -> None:
        """Add the detections in images, and their annotations."""
        for index, sample in enumerate(samples):
            # Equal on all processes, and 52 bits, since float64 represents integers up to 2^53.
            image = int.from_bytes(sha256(sample.id.encode()).digest()[:8], "big") >> 12
            boxes = sample.geometry.boxes_to_image(detections.boxes[index].cpu().double())
            predicted = (detections.labels[index], detections.scores[index])
            self.detected.append(_table(image, *predicted, *boxes.unbind(1)))
            annotated = (sample.labels, sample.crowd, sample.areas)
            self.true.append(_table(image, *annotated, *sample.true_boxes.unbind(1)))

    def compute(self) -> APResult:
        """Return average precision and recall."""
        predicted = _rows(self.detected, _DETECTED)
        real = _rows(self.true, _TRUE)
        detected = DetectedBoxes(
            predicted[:, 0].long().numpy(),
            predicted[:, 1].long().numpy(),
            predicted[:, 2].numpy(),
            predicted[:, 3:].numpy(),
        )
        true = TrueBoxes(
            real[:, 0].long().numpy(),
            real[:, 1].long().numpy(),
            real[:, 4:].numpy(),
            real[:, 3].numpy(),
            real[:, 2].bool().numpy(),
        )
        return average_precision(detected, true)


def _table(image: int, *columns: Tensor) -> Float[Tensor, "n c"]:
    values = [column.detach().cpu().double() for column in columns]
    return torch.stack([torch.full_like(values[0], image), *values], 1)


def _rows(tables: list[Tensor] | Tensor, width: int) -> Float[Tensor, "n {width}"]:
    """Return all rows, which are one tensor after a reduction over processes."""
    if isinstance(tables, Tensor):
        return tables.cpu()
    return torch.cat(tables).cpu() if tables else torch.zeros(0, width, dtype=torch.float64)
