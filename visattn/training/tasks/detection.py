"""Training of object detectors."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate
from torch.optim import AdamW

from visattn.data.regions.detection import DetectionBatch
from visattn.functional.evaluation.localization import peak_locations, pointing_game_hits
from visattn.metrics.detection.average_precision import AP_METRICS
from visattn.models.detection.detr import DETR, BoxPrediction, DetrOutput
from visattn.pipelines.detector_attention import detector_attention
from visattn.training.callbacks.monitor import monitor_with_mode
from visattn.training.data_module import InputSpec
from visattn.training.metrics.detection import DETECTION_METRICS, DetectionScores
from visattn.training.metrics.weighted_mean import WeightedMean
from visattn.training.optim import (
    OptimizerFactory,
    OptimizerGroup,
    Schedule,
    trapezoid,
    weight_decay_groups,
)
from visattn.training.targets import TargetCounts
from visattn.training.task import Task, check_class_names
from visattn.training.tasks.detection_losses import SetCriterion

_ADAMW = partial(AdamW, lr=5e-4, weight_decay=1e-4)
_MAP_METRICS = ("pointing_game", "pointing_exact", "pointing_3x3", "other_query")


class DetectionTask(Task):
    """Train a detector.

    Validation logs COCO's average precision. The test adds that of small, medium and large objects,
    and scores the attention of the queries: `pointing_exact` is how often the maximum of a query's
    map lies on the pixels of its object, `pointing_3x3` that of its mean over 3 x 3 cells, since
    the features of a cell are made from pixels around it, `pointing_game` how often the first
    maximum lies within half a cell of the object, since a thin one need not contain the center of a
    cell, and `other_query`, the control, how often the maximum of another object's query does.

    Args:
        detector: The detector; it gets the names of its classes from the data.
        data_info: Values that the data module provides; `class_names` are the names of the classes.
        optimizer: The optimizer; by default AdamW with a learning rate of 5e-4 and a weight decay
            of 1e-4.
        encoder_lr_mult: Learning rate of the image encoder, as a multiple of the optimizer's.
        warmup_steps: Steps of linear warmup.
        decay_start: Fraction of the run after which the learning rate decays linearly.
        class_weight: Weight of classification in matching and loss.
        l1_weight: Weight of the L1 distance of boxes in matching and loss.
        giou_weight: Weight of the generalized IoU in matching and loss.
        no_object_weight: Weight of "no object" in the cross-entropy of a softmax detector.
        max_detections: Largest number of detections per image that are scored.
        monitor: The validation metric that selects the best checkpoint.
    """

    model: DETR
    val_scores = tuple(f"val/{name}" for name in DETECTION_METRICS)

    def __init__(
        self,
        detector: Callable[[list[str]], DETR],
        data_info: dict[str, Any],
        *,
        optimizer: OptimizerFactory | None = None,
        encoder_lr_mult: float = 1.0,
        warmup_steps: int = 0,
        decay_start: float = 0.7,
        class_weight: float = 2.0,
        l1_weight: float = 5.0,
        giou_weight: float = 2.0,
        no_object_weight: float = 0.1,
        max_detections: int = 100,
        monitor: str = "val/AP",
    ) -> None:
        super().__init__(detector(data_info["class_names"]))
        weights = (class_weight, l1_weight, giou_weight, no_object_weight, encoder_lr_mult)
        if min(weights) < 0 or max_detections < 1:
            raise ValueError(
                "the weights and encoder_lr_mult must be at least 0 and max_detections at least 1, "
                f"got {weights} and {max_detections}"
            )
        self.optimizer, self.encoder_lr_mult = optimizer or _ADAMW, encoder_lr_mult
        self.warmup_steps, self.decay_start = warmup_steps, decay_start
        self.max_detections = max_detections
        self.criterion = SetCriterion(
            self.model.class_probability, class_weight, l1_weight, giou_weight, no_object_weight
        )
        self.monitor = monitor_with_mode(monitor)
        self.loss, self.scores = WeightedMean(), DetectionScores()
        self.map_scores = torch.nn.ModuleDict({name: WeightedMean() for name in _MAP_METRICS})

    @property
    def input_spec(self) -> InputSpec:
        """The input of the detector."""
        return InputSpec(self.model.img_size, self.model.mean, self.model.std)

    def target_remarks(self, split: str, counts: TargetCounts) -> list[str]:
        """Return whether images have more objects than the model has queries."""
        if counts.largest <= self.model.num_queries:
            return []
        return [
            f"an image has {counts.largest:,} objects, but the model {self.model.num_queries:,} "
            f"queries: objects beyond them are not learned; set num_queries to {counts.largest:,}"
        ]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse weights that were trained for other classes, even if there are as many."""
        super().on_load_checkpoint(checkpoint)
        check_class_names(checkpoint, self.model.class_names)

    def parameter_groups(self) -> list[OptimizerGroup]:
        """Return encoder and detector, each with and without weight decay."""
        return weight_decay_groups(
            self.model.parameter_groups(),
            {"encoder": self.encoder_lr_mult, "decoder": 1.0},
            self.model.no_weight_decay_parameters(),
        )

    def lr_schedule(self) -> Schedule:
        """Return linear warmup, a constant phase and linear decay."""
        return partial(trapezoid, warmup_steps=self.warmup_steps, decay_start=self.decay_start)

    def training_step(self, batch: DetectionBatch, batch_idx: int) -> Tensor:
        """Return the sum of all losses, with denoising if the model has it."""
        memory = self.model.encode(batch.images)
        output = self.model.decode(memory, (batch.labels, batch.boxes))
        losses = self.criterion.losses(output, batch.labels, batch.boxes)
        total = torch.stack(list(losses.values())).sum()
        logged = {f"train/{name}": loss.detach() for name, loss in losses.items()}
        self.log_dict(logged, batch_size=len(batch.images))
        self.log("train/loss", total.detach(), prog_bar=True, batch_size=len(batch.images))
        return total

    def validation_step(self, batch: DetectionBatch, batch_idx: int) -> None:
        """Update the metrics; those of maps outside of `fit` only."""
        self._update_metrics(batch, maps=self.trainer.state.fn != "fit")

    def test_step(self, batch: DetectionBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Update the metrics."""
        self._update_metrics(batch, maps=True)

    def on_validation_epoch_end(self) -> None:
        """Log the metrics of the validation images."""
        self._log_metrics("val")

    def on_test_epoch_end(self) -> None:
        """Log the metrics of the test images, and store those of each class."""
        self._log_metrics("test")

    def _update_metrics(self, batch: DetectionBatch, *, maps: bool) -> None:
        output = self.model.decode(self.model.encode(batch.images))
        last = BoxPrediction(output.layers.logits[-1], output.layers.boxes[-1])
        loss = self._evaluation_loss(output, batch)
        self.loss.update(loss * len(batch.images), len(batch.images))
        detections = self.model.select(last, max_detections=self.max_detections)
        self.scores.update(detections, batch.samples)
        if maps:
            self._update_map_scores(batch)

    def _evaluation_loss(self, output: DetrOutput, batch: DetectionBatch) -> Float[Tensor, ""]:
        losses = self.criterion.losses(output, batch.labels, batch.boxes)
        return torch.stack(list(losses.values())).sum()

    def _update_map_scores(self, batch: DetectionBatch) -> None:
        """Score the map of each object's query on the object, and on the next object."""
        attention = detector_attention(self.model, batch.images)
        layers = BoxPrediction(*(part[None] for part in attention.prediction))
        matches = self.criterion.match(layers, batch.labels, batch.boxes)
        for index, sample in enumerate(batch.samples):
            own = matches.image == index
            objects = batch.objects[index, matches.object[own]].cpu()
            masks = sample.region.masks
            if masks is None or not len(objects) or not bool(masks[objects].any((1, 2)).all()):
                continue
            maps = attention.maps[index, matches.query[own]].cpu()
            self._score_maps(maps, masks[objects])

    def _score_maps(self, maps: Float[Tensor, "n gy gx"], masks: Bool[Tensor, "n y x"]) -> None:
        """Score the map of each object of an image."""
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
            "other_query": pointing_game_hits(peaks.roll(1, 0), masks, half_cell),
        }
        for name, hit in hits.items():
            if len(hit) > 1 or name != "other_query":
                self._map_score(name).update(hit.sum(), len(hit))

    def _map_score(self, name: str) -> WeightedMean:
        return cast("WeightedMean", self.map_scores[name])

    def _log_metrics(self, split: str) -> None:
        result = self.scores.compute()
        names: Sequence[str] = DETECTION_METRICS[:-1]
        if self.trainer.state.fn != "fit":
            names = AP_METRICS
            self.notes[f"{split}_classes"] = [
                {"class": self.model.class_names[label], "AP": value}
                for label, value in result.per_class.items()
            ]
            for name in _MAP_METRICS:
                self.log(f"{split}/{name}", self._map_score(name).compute(), sync_dist=True)
        for name in names:
            score = torch.tensor(result.scores[name])
            self.log(f"{split}/{name}", score, prog_bar=name == "AP", sync_dist=True)
        self.log(f"{split}/loss", self.loss.compute(), sync_dist=True)
        for metric in (self.loss, self.scores, *map(self._map_score, _MAP_METRICS)):
            metric.reset()
