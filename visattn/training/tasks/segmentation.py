"""Training of segmentation models: cross-entropy, Dice, focal loss, supervised gates."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.optim import AdamW

from visattn.data.regions.segmentation import SegmentationBatch
from visattn.models.segmentation.unet import UNet, UNetOutput
from visattn.results.kinds import BACKGROUND
from visattn.training.callbacks.monitor import monitor_with_mode
from visattn.training.data_module import InputSpec
from visattn.training.metrics.segmentation import (
    FOREGROUND_METRIC,
    SEGMENTATION_METRICS,
    GateScores,
    SegmentationScores,
)
from visattn.training.metrics.weighted_mean import WeightedMean
from visattn.training.optim import (
    OptimizerFactory,
    OptimizerGroup,
    Schedule,
    warmup_schedule,
    weight_decay_groups,
)
from visattn.training.task import Task, check_class_names
from visattn.training.tasks.segmentation_losses import (
    dice_loss,
    focal_loss,
    gate_supervision_loss,
    pixel_cross_entropy,
)
from visattn.training.tasks.segmentation_panels import batch_panels

_ADAMW = partial(AdamW, lr=2e-3, weight_decay=1e-2)


class SegmentationTask(Task):
    """Train a segmentation model.

    The loss is a weighted sum of the cross-entropy per pixel, the Dice loss without background and
    the focal loss. Pixels of the class 255 are left out of losses and metrics.

    Metrics are those of `SegmentationScores`; of a model with attention gates also `GateScores` of
    each gate, `gate_1_auc` for the coarsest. A second test set is logged as `novel/...`.

    Args:
        segmenter: The model; it gets the names of its classes from the data.
        data_info: Values that the data module provides; `class_names` are the names of the classes.
        ce_weight: Weight of the cross-entropy.
        dice_weight: Weight of the Dice loss.
        focal_weight: Weight of the focal loss, for rare classes.
        focal_gamma: Exponent of the focal loss.
        gate_loss_weight: Weight of the binary cross-entropy of each attention gate against the
            share of objects in its cells; 0 leaves the gates free. Free gates tend to open
            everywhere, and their maps then show nothing.
        optimizer: The optimizer; by default AdamW with a learning rate of 2e-3 and a weight decay
            of 1e-2.
        encoder_lr_mult: Learning rate of the encoder, as a multiple of the optimizer's.
        schedule: Learning-rate schedule after the warmup: `cosine` annealing, or constant and then
            linear decay (`trapezoid`).
        warmup_steps: Steps of linear warmup.
        decay_start: Fraction of the run after which the learning rate of `trapezoid` decays.
        num_panels: Number of test images per test set that are written as figures to `panels/` of
            the run: image, truth, prediction, errors and gates.
        monitor: The validation metric that selects the best checkpoint; by default `val/miou`.

    Raises:
        ValueError: If a number is out of range, no loss has a weight, or gates are supervised in a
            model without gates or without a background class.
    """

    model: UNet
    idle_parameters = True  # timm backbones may have layers after their last stage

    def __init__(
        self,
        segmenter: Callable[[list[str]], UNet],
        data_info: dict[str, Any],
        *,
        ce_weight: float = 1.0,
        dice_weight: float = 1.0,
        focal_weight: float = 0.0,
        focal_gamma: float = 2.0,
        gate_loss_weight: float = 0.0,
        optimizer: OptimizerFactory | None = None,
        encoder_lr_mult: float = 0.25,
        schedule: Literal["cosine", "trapezoid"] = "cosine",
        warmup_steps: int = 0,
        decay_start: float = 0.4,
        num_panels: int = 8,
        monitor: str = "val/miou",
    ) -> None:
        weights = (ce_weight, dice_weight, focal_weight, gate_loss_weight)
        if min(*weights, focal_gamma, encoder_lr_mult) < 0 or not any(weights[:3]):
            raise ValueError(
                "ce_weight, dice_weight, focal_weight, focal_gamma, gate_loss_weight and "
                "encoder_lr_mult must be at least 0, and one of the first three above; got "
                f"{ce_weight}, {dice_weight}, {focal_weight}, {focal_gamma}, {gate_loss_weight} "
                f"and {encoder_lr_mult}"
            )
        super().__init__(segmenter(data_info["class_names"]))
        self.has_background = self.model.class_names[0] == BACKGROUND
        num_gates = sum(level.gate is not None for level in self.model.levels)
        if gate_loss_weight and not (num_gates and self.has_background):
            raise ValueError(
                "gate_loss_weight supervises attention gates by the objects in front of the "
                f"background: it needs block: gate, and {BACKGROUND!r} as the first class; got "
                f"block: {self.model.block} and {self.model.class_names[0]!r}"
            )
        self.ce_weight, self.dice_weight = ce_weight, dice_weight
        self.focal_weight, self.focal_gamma = focal_weight, focal_gamma
        self.gate_loss_weight = gate_loss_weight
        self.optimizer, self.encoder_lr_mult = optimizer or _ADAMW, encoder_lr_mult
        self.schedule: Literal["cosine", "trapezoid"] = schedule
        self.warmup_steps, self.decay_start = warmup_steps, decay_start
        self.num_panels = num_panels
        self.monitor = monitor_with_mode(monitor)
        num_scored = num_gates if self.has_background else 0
        self.evaluations = nn.ModuleDict(
            {
                name: SplitScores(len(self.model.class_names), self.has_background, num_scored)
                for name in ("main", "novel")
            }
        )
        self.val_scores = tuple(f"val/{name}" for name in self._split_scores("val").names)

    @property
    def input_spec(self) -> InputSpec:
        """The input of the encoder."""
        return InputSpec(self.model.img_size, self.model.mean, self.model.std)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse weights that were trained for other classes, even if there are as many."""
        super().on_load_checkpoint(checkpoint)
        check_class_names(checkpoint, self.model.class_names)

    def parameter_groups(self) -> list[OptimizerGroup]:
        """Return encoder and decoder, each with and without weight decay."""
        return weight_decay_groups(
            self.model.parameter_groups(),
            {"encoder": self.encoder_lr_mult, "decoder": 1.0},
            self.model.no_weight_decay_parameters(),
        )

    def lr_schedule(self) -> Schedule:
        """Return the schedule with its warmup."""
        return warmup_schedule(self.schedule, self.warmup_steps, self.decay_start)

    def training_step(self, batch: SegmentationBatch, batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        output = self.model.segment(batch.images)
        loss = self._pixel_loss(output.logits, batch)
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(batch.images))
        if self.gate_loss_weight:
            losses = [gate_supervision_loss(gate, batch.labels) for gate in output.gates]
            gate_loss = torch.stack(losses).sum()
            self.log("train/gate_loss", gate_loss.detach(), batch_size=len(batch.images))
            loss = loss + self.gate_loss_weight * gate_loss
        return loss

    def validation_step(self, batch: SegmentationBatch, batch_idx: int) -> None:
        """Update the metrics."""
        self._update_metrics(batch, "val")

    def test_step(self, batch: SegmentationBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Update the metrics; draw panels of the first images."""
        split = "novel" if dataloader_idx else "test"
        output = self._update_metrics(batch, split)
        count = self.num_panels - batch_idx * len(batch.images)
        if count > 0 and self.trainer.is_global_zero:
            panels = batch_panels(self.model, batch, output, count)
            first = batch_idx * len(batch.images)
            self.notes |= {f"panels/{split}_{first + i}": p for i, p in enumerate(panels)}

    def on_validation_epoch_end(self) -> None:
        """Log the metrics of the validation images."""
        self._log_metrics("val")

    def on_test_epoch_end(self) -> None:
        """Log the metrics of the test images, and store those of each class."""
        for split in ("test", "novel"):
            if self._split_scores(split).scores.update_called:
                self._log_metrics(split)

    def _pixel_loss(
        self, logits: Float[Tensor, "b k y x"], batch: SegmentationBatch
    ) -> Float[Tensor, ""]:
        """Return the weighted sum of the losses of pixels."""
        losses: list[Tensor] = []
        if self.ce_weight:
            losses.append(self.ce_weight * pixel_cross_entropy(logits, batch.labels))
        if self.dice_weight:
            background = not self.has_background
            losses.append(self.dice_weight * dice_loss(logits, batch.labels, background=background))
        if self.focal_weight:
            focal = focal_loss(logits, batch.labels, gamma=self.focal_gamma)
            losses.append(self.focal_weight * focal)
        return torch.stack(losses).sum()

    def _split_scores(self, split: str) -> "SplitScores":
        return cast("SplitScores", self.evaluations["novel" if split == "novel" else "main"])

    def _update_metrics(self, batch: SegmentationBatch, split: str) -> UNetOutput:
        output, evaluation = self.model.segment(batch.images), self._split_scores(split)
        loss, count = self._pixel_loss(output.logits, batch), len(batch.images)
        evaluation.loss.update(loss * count, count)
        evaluation.scores.update(output.logits.argmax(1), batch.labels)
        for scores, gate in zip(evaluation.gate_scores, output.gates, strict=False):
            scores.update(gate, batch.labels)
        return output

    def _log_metrics(self, split: str) -> None:
        evaluation = self._split_scores(split)
        for name, value in evaluation.compute().items():
            self.log(f"{split}/{name}", value, prog_bar=name == "miou", sync_dist=True)
        if self.trainer.state.fn != "fit":
            pairs = zip(
                self.model.class_names, evaluation.scores.per_class_iou().tolist(), strict=True
            )
            self.notes[f"{split}_classes"] = [
                {"class": name, "iou": None if iou != iou else iou} for name, iou in pairs
            ]
        evaluation.reset()


class SplitScores(nn.Module):
    """Metrics of a split: those of pixels, the loss, and those of each gate.

    Args:
        num_classes: Number of classes.
        background: Whether class 0 is the background.
        num_gates: Number of gates that are scored.
    """

    def __init__(self, num_classes: int, background: bool, num_gates: int) -> None:
        super().__init__()
        self.scores = SegmentationScores(num_classes, background=background)
        self.loss = WeightedMean()
        self.gates = nn.ModuleList(GateScores() for _ in range(num_gates))
        foreground = (FOREGROUND_METRIC,) if background else ()
        gate_names = [
            f"gate_{number}_{name}"
            for number in range(1, num_gates + 1)
            for name in ("auc", "inside", "outside")
        ]
        self.names = (*SEGMENTATION_METRICS, *foreground, "loss", *gate_names)

    @property
    def gate_scores(self) -> Sequence[GateScores]:
        """The metrics of each gate."""
        return cast("Sequence[GateScores]", tuple(self.gates))

    def compute(self) -> dict[str, Tensor]:
        """Return all metrics by name."""
        values = {**self.scores.compute(), "loss": self.loss.compute()}
        for number, gate in enumerate(self.gate_scores, 1):
            values |= {f"gate_{number}_{name}": value for name, value in gate.compute().items()}
        return values

    def reset(self) -> None:
        """Reset all metrics."""
        for metric in (self.scores, self.loss, *self.gate_scores):
            metric.reset()
