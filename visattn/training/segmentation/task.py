"""Training of segmentation models: cross-entropy, Dice, focal loss, supervised gates."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn
from torch.optim import AdamW

from visattn.data.regions.segmentation import SegmentationBatch
from visattn.geometry.affine import Geometry
from visattn.models.unet import UNet, UNetOutput
from visattn.pipelines.segmentation import place_segmentations
from visattn.results.kinds import BACKGROUND
from visattn.training.metrics import Evaluation, WeightedMean
from visattn.training.optim import OptimConfig
from visattn.training.segmentation.losses import (
    dice_loss,
    focal_loss,
    gate_supervision_loss,
    pixel_cross_entropy,
)
from visattn.training.segmentation.metrics import (
    FOREGROUND_METRIC,
    SEGMENTATION_METRICS,
    GateScores,
    SegmentationScores,
)
from visattn.training.task import Task
from visattn.viz.figures import rgb
from visattn.viz.segmentation import segmentation_figure

_OPTIM = OptimConfig(schedule="cosine", lr_mults={"encoder": 0.25})


class SegmentationTask(Task):
    """Train a segmentation model.

    The loss is a weighted sum of the cross-entropy per pixel, the Dice loss without background and
    the focal loss. Pixels of the class 255 are ignored in losses and metrics.

    Metrics are those of `SegmentationScores`; for a model with attention gates also `GateScores` of
    each gate, such as `gate_1_auc` for the coarsest. A second test set is logged as `novel/...`.

    Args:
        segmenter: The model; it gets the names of its classes from the data.
        data_info: Values that the data module provides; `class_names` are the names of the classes.
        ce_weight: Weight of the cross-entropy.
        dice_weight: Weight of the Dice loss.
        focal_weight: Weight of the focal loss, for rare classes.
        focal_gamma: Exponent of the focal loss.
        gate_loss_weight: Weight of the binary cross-entropy of each attention gate against the
            share of objects in its cells; 0 disables it. Unsupervised gates tend to open
            everywhere, and their maps then show nothing.
        optim: The optimizer, by default AdamW with a learning rate of 2e-3 and a weight decay of
            1e-2; `lr_mults` for `encoder` and `decoder`.
        num_panels: Number of test images per test set that are written as figures to `panels/` of
            the run: image, truth, prediction, errors and gates.
        monitor: The validation metric that selects the best checkpoint; by default `val/miou`.

    Raises:
        ValueError: If gates are supervised in a model without gates or without a background class.
    """

    model: UNet
    default_optimizer = staticmethod(partial(AdamW, lr=2e-3, weight_decay=1e-2))
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
        optim: OptimConfig = _OPTIM,
        num_panels: int = 8,
        monitor: str = "val/miou",
    ) -> None:
        super().__init__(segmenter(data_info["class_names"]), optim, monitor)
        self.has_background = self.model.class_names[0] == BACKGROUND
        num_gates = sum(level.gate is not None for level in self.model.levels)
        if gate_loss_weight and not (num_gates and self.has_background):
            raise ValueError(
                "gate_loss_weight supervises attention gates by the objects in front of the "
                f"background: it needs block: gate, and {BACKGROUND!r} as the first class; got "
                f"block: {self.model.block} and {self.model.class_names[0]!r}"
            )
        self.ce_weight = ce_weight
        self.dice_weight = dice_weight
        self.focal_weight = focal_weight
        self.focal_gamma = focal_gamma
        self.gate_loss_weight = gate_loss_weight
        self.num_panels = num_panels
        num_scored = num_gates if self.has_background else 0
        names = self.model.class_names
        background = self.has_background
        self.add_evaluations(lambda: SegmentationEvaluation(names, background, num_scored))

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

    def evaluate(self, batch: SegmentationBatch, split: str) -> UNetOutput:
        """Update the metrics of a split, and return the output."""
        output = self.model.segment(batch.images)
        loss = self._pixel_loss(output.logits, batch)
        self.evaluation(split).update(output, batch.labels, loss)
        return output

    def test_step(self, batch: SegmentationBatch, batch_idx: int, dataloader_idx: int = 0) -> None:
        """Update the metrics; draw panels of the first images."""
        split = "novel" if dataloader_idx else "test"
        output = self.evaluate(batch, split)
        count = self.num_panels - batch_idx * len(batch.images)
        if count > 0 and self.trainer.is_global_zero:
            panels = batch_panels(self.model, batch, output, count)
            first = batch_idx * len(batch.images)
            self.notes |= {f"panels/{split}_{first + i}": p for i, p in enumerate(panels)}

    def _pixel_loss(
        self, logits: Float[Tensor, "b k y x"], batch: SegmentationBatch
    ) -> Float[Tensor, ""]:
        """Return the weighted sum of the losses of pixels."""
        labels, background = batch.labels, not self.has_background
        losses = [
            (self.ce_weight, lambda: pixel_cross_entropy(logits, labels)),
            (self.dice_weight, lambda: dice_loss(logits, labels, background=background)),
            (self.focal_weight, lambda: focal_loss(logits, labels, gamma=self.focal_gamma)),
        ]
        return torch.stack([weight * loss() for weight, loss in losses if weight]).sum()


class SegmentationEvaluation(Evaluation):
    """Metrics of a split: pixel metrics, the loss, and scores of each supervised gate."""

    def __init__(self, class_names: Sequence[str], background: bool, num_gates: int) -> None:
        super().__init__()
        self.class_names = class_names
        self.scores = SegmentationScores(len(class_names), background=background)
        self.loss = WeightedMean()
        self.gates: Any = nn.ModuleList(GateScores() for _ in range(num_gates))
        foreground = (FOREGROUND_METRIC,) if background else ()
        gate_names = [
            f"gate_{number}_{name}"
            for number in range(1, num_gates + 1)
            for name in ("auc", "inside", "outside")
        ]
        self.names = (*SEGMENTATION_METRICS, *foreground, "loss", *gate_names)

    def update(
        self, output: UNetOutput, labels: UInt8[Tensor, "b y x"], loss: Float[Tensor, ""]
    ) -> None:
        """Add the output for images, the true classes of their pixels, and their mean loss."""
        self.loss.update(loss * len(labels), len(labels))
        self.scores.update(output.logits.argmax(1), labels)
        for scores, gate in zip(self.gates, output.gates, strict=False):
            scores.update(gate, labels)

    def compute(self) -> dict[str, Tensor]:
        """Return all metrics by name."""
        values = {**self.scores.compute(), "loss": self.loss.compute()}
        for number, gate in enumerate(self.gates, 1):
            values |= {f"gate_{number}_{name}": value for name, value in gate.compute().items()}
        return values

    def notes(self, split: str) -> dict[str, Any]:
        """Return the IoU of each class."""
        pairs = zip(self.class_names, self.scores.per_class_iou().tolist(), strict=True)
        rows = [{"class": name, "iou": None if iou != iou else iou} for name, iou in pairs]
        return {f"{split}_classes": rows}


def batch_panels(
    model: UNet, batch: SegmentationBatch, output: UNetOutput, count: int
) -> list[UInt8[np.ndarray, "height width 3"]]:
    """Return a figure of each of the first images of a batch, with truth, errors and gates."""
    geometry = Geometry.identity(model.img_size)
    count = min(count, len(batch.images))
    results = place_segmentations(output, model.class_names, [geometry] * count)
    images = batch.images.permute(0, 2, 3, 1).cpu().numpy()
    truths = batch.labels.cpu().numpy()
    return [
        rgb(segmentation_figure(np.ascontiguousarray(image), result, truth))
        for image, truth, result in zip(images, truths, results, strict=False)
    ]
