"""Training of object detectors."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate
from torch.optim import AdamW

from visattn.data.regions.detection import DetectionBatch
from visattn.metrics.detection import AP_METRICS
from visattn.metrics.localization import peak_locations, pointing_game_hits
from visattn.models.detr import DETR, BoxPrediction
from visattn.pipelines.detection import detector_attention
from visattn.training.detection.losses import SetCriterion
from visattn.training.detection.metrics import DETECTION_METRICS, DetectionScores
from visattn.training.metrics import Evaluation, Means, WeightedMean
from visattn.training.optim import OptimConfig
from visattn.training.task import Task

_OPTIM = OptimConfig(decay_start=0.7)
_MAP_METRICS = ("pointing_game", "pointing_exact", "pointing_3x3", "other_query")


class DetectionTask(Task):
    """Train a detector.

    Validation logs COCO's average precision. The test adds that of small, medium and large objects,
    and scores the attention of the queries: `pointing_exact` is how often the maximum of a query's
    map is on the pixels of its object, `pointing_3x3` the same for its mean over 3 x 3 cells, since
    the features of a cell depend on pixels around it, `pointing_game` how often the first maximum
    is within half a cell of the object, since a thin object may not contain the center of a cell,
    and `other_query`, the control, the same for the query of another object.

    Args:
        detector: The detector; it gets the names of its classes from the data.
        data_info: Values that the data module provides; `class_names` are the names of the classes.
        optim: The optimizer, by default AdamW with a learning rate of 5e-4 and a weight decay of
            1e-4; `lr_mults` for `encoder` and `decoder`.
        class_weight: Weight of classification in matching and loss.
        l1_weight: Weight of the L1 distance of boxes in matching and loss.
        giou_weight: Weight of the generalized IoU in matching and loss.
        no_object_weight: Weight of "no object" in the cross-entropy.
        max_detections: Maximum number of scored detections per image.
        monitor: The validation metric that selects the best checkpoint.
    """

    model: DETR
    default_optimizer = staticmethod(partial(AdamW, lr=5e-4, weight_decay=1e-4))

    def __init__(
        self,
        detector: Callable[[list[str]], DETR],
        data_info: dict[str, Any],
        *,
        optim: OptimConfig = _OPTIM,
        class_weight: float = 1.0,
        l1_weight: float = 5.0,
        giou_weight: float = 2.0,
        no_object_weight: float = 0.1,
        max_detections: int = 100,
        monitor: str = "val/AP",
    ) -> None:
        super().__init__(detector(data_info["class_names"]), optim, monitor)
        self.max_detections = max_detections
        self.criterion = SetCriterion(class_weight, l1_weight, giou_weight, no_object_weight)
        self.add_evaluations(lambda: DetectionEvaluation(self.model.class_names))

    def training_step(self, batch: DetectionBatch, batch_idx: int) -> Tensor:
        """Return the sum of all losses."""
        layers = self.model.decode(self.model.encode(batch.images))
        losses = self.criterion.losses(layers, batch.labels, batch.boxes)
        total = torch.stack(list(losses.values())).sum()
        logged = {f"train/{name}": loss.detach() for name, loss in losses.items()}
        self.log_dict(logged, batch_size=len(batch.images))
        self.log("train/loss", total.detach(), prog_bar=True, batch_size=len(batch.images))
        return total

    def evaluate(self, batch: DetectionBatch, split: str) -> None:
        """Update the metrics of a split; those of maps only outside of `fit`."""
        layers = self.model.decode(self.model.encode(batch.images))
        losses = self.criterion.losses(layers, batch.labels, batch.boxes)
        loss = torch.stack(list(losses.values())).sum()
        last = BoxPrediction(layers.logits[-1], layers.boxes[-1])
        detections = self.model.select(last, max_detections=self.max_detections)
        evaluation: DetectionEvaluation = self.evaluation(split)
        evaluation.loss.update(loss * len(batch.images), len(batch.images))
        evaluation.scores.update(detections, batch.samples)
        evaluation.complete = not self.fitting
        if evaluation.complete:
            self._update_map_scores(batch, evaluation)

    def _update_map_scores(self, batch: DetectionBatch, evaluation: "DetectionEvaluation") -> None:
        """Score the map of each object's query on the object, and on the next object."""
        attention = detector_attention(self.model, batch.images)
        prediction = attention.prediction
        layers = BoxPrediction(prediction.logits[None], prediction.boxes[None])
        matches = self.criterion.match(layers, batch.labels, batch.boxes)
        for index, sample in enumerate(batch.samples):
            own = matches.image == index
            objects = batch.objects[index, matches.object[own]].cpu()
            masks = sample.masks
            if masks is None or not len(objects) or not bool(masks[objects].any((1, 2)).all()):
                continue
            maps = attention.maps[index, matches.query[own]].cpu()
            evaluation.update_maps(maps, masks[objects])


class DetectionEvaluation(Evaluation):
    """Average precision and loss of a split, and the scores of the maps of queries."""

    names = DETECTION_METRICS
    complete = False
    """Whether the maps are scored, and the AP of small, medium and large objects is logged."""

    def __init__(self, class_names: Sequence[str]) -> None:
        super().__init__()
        self.class_names = class_names
        self.loss = WeightedMean()
        self.scores = DetectionScores()
        self.maps = Means(*_MAP_METRICS)

    def update_maps(self, maps: Float[Tensor, "n gy gx"], masks: Bool[Tensor, "n y x"]) -> None:
        """Add the map and the mask of each object of an image."""
        size = (masks.shape[1], masks.shape[2])
        half_cell = min(size[0] / maps.shape[1], size[1] / maps.shape[2]) / 2
        large = interpolate(maps[None], size, mode="bilinear", align_corners=False)[0]
        peaks = peak_locations(large)
        smooth = avg_pool2d(maps, 3, stride=1, padding=1)
        smooth = interpolate(smooth[None], size, mode="bilinear", align_corners=False)[0]
        hits = {
            "pointing_game": pointing_game_hits(peaks, masks, half_cell),
            "pointing_exact": pointing_game_hits(peaks, masks),
            "pointing_3x3": pointing_game_hits(peak_locations(smooth), masks),
            # Control: the peak of the next object's query should miss.
            "other_query": pointing_game_hits(peaks.roll(1, 0), masks, half_cell),
        }
        for name, hit in hits.items():
            if len(hit) > 1 or name != "other_query":
                self.maps.add(**{name: (hit.sum(), len(hit))})

    def compute(self) -> dict[str, Tensor]:
        """Return all metrics by name."""
        scores = self.scores.compute().scores
        values = self.maps.compute() if self.complete else {}
        names = AP_METRICS if self.complete else DETECTION_METRICS[:-1]
        values |= {name: torch.tensor(scores[name]) for name in names}
        return {**values, "loss": self.loss.compute()}

    def notes(self, split: str) -> dict[str, Any]:
        """Return the average precision of each class."""
        rows = [
            {"class": self.class_names[label], "AP": value}
            for label, value in self.scores.compute().per_class.items()
        ]
        return {f"{split}_classes": rows}
