"""Training of image classifiers."""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torchvision.transforms import v2

from visattn.data.classification.datasets import LabeledBatch
from visattn.models.classifier import ImageClassifier, ParameterGroup
from visattn.training.callbacks.monitor import monitor_with_mode
from visattn.training.data_module import InputSpec
from visattn.training.metrics.chance_level import chance_level
from visattn.training.metrics.classification import CLASSIFICATION_METRICS, ClassificationScores
from visattn.training.metrics.weighted_mean import WeightedMean
from visattn.training.optim import (
    OptimizerFactory,
    OptimizerGroup,
    Schedule,
    warmup_schedule,
    weight_decay_groups,
)
from visattn.training.task import Task, check_class_names

_SGD = partial(SGD, lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)


class ClassificationTask(Task):
    """Train a classifier on images with classes.

    Weight decay applies to all weights but those of `no_weight_decay_parameters` of the classifier.

    Args:
        classifier: The classifier; it gets the names of its classes from the data.
        data_info: Values that the data module provides; `class_names` are the names of the classes.
        label_smoothing: Label smoothing of the cross-entropy.
        mixup: Alpha of mixup, the parameter of the Beta distribution; 0 disables it.
        cutmix: Alpha of CutMix; 0 disables it. If both are above 0, one of the two is drawn for
            each batch.
        optimizer: The optimizer; by default SGD with a learning rate of 0.1, Nesterov momentum of
            0.9 and a weight decay of 5e-4.
        backbone_lr_mult: Learning rate of the network without blocks and head, as a multiple of
            the optimizer's.
        block_lr_mult: The same for attention blocks.
        head_lr_mult: The same for the head.
        schedule: Learning-rate schedule after the warmup: `cosine` annealing, or constant and then
            linear decay (`trapezoid`).
        warmup_steps: Steps of linear warmup.
        decay_start: Fraction of the run after which the learning rate of `trapezoid` decays.
        monitor: The validation metric that selects the best checkpoint.
    """

    model: ImageClassifier
    can_shard = True
    training_forward = "classify"
    val_scores = tuple(f"val/{name}" for name in (*CLASSIFICATION_METRICS, "loss"))

    def __init__(
        self,
        classifier: Callable[[list[str]], ImageClassifier],
        data_info: dict[str, Any],
        *,
        label_smoothing: float = 0.0,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        optimizer: OptimizerFactory | None = None,
        backbone_lr_mult: float = 1.0,
        block_lr_mult: float = 1.0,
        head_lr_mult: float = 1.0,
        schedule: Literal["cosine", "trapezoid"] = "cosine",
        warmup_steps: int = 0,
        decay_start: float = 0.4,
        monitor: str = "val/accuracy",
    ) -> None:
        lowest = min(mixup, cutmix, backbone_lr_mult, block_lr_mult, head_lr_mult)
        if lowest < 0 or not 0 <= label_smoothing < 1:
            raise ValueError(
                "mixup, cutmix, backbone_lr_mult, block_lr_mult and head_lr_mult must be at least "
                f"0, label_smoothing at least 0 and below 1; got {mixup}, {cutmix}, "
                f"{backbone_lr_mult}, {block_lr_mult}, {head_lr_mult} and {label_smoothing}"
            )
        super().__init__(classifier(data_info["class_names"]))
        self.label_smoothing, self.optimizer = label_smoothing, optimizer or _SGD
        num_classes = len(self.model.class_names)
        self.mix = _batch_mixing(mixup, cutmix, num_classes=num_classes)
        self.lr_mults: dict[ParameterGroup, float] = {
            "backbone": backbone_lr_mult,
            "blocks": block_lr_mult,
            "head": head_lr_mult,
        }
        self.schedule: Literal["cosine", "trapezoid"] = schedule
        self.warmup_steps, self.decay_start = warmup_steps, decay_start
        self.monitor = monitor_with_mode(monitor)
        self.loss = WeightedMean()
        self.scores = ClassificationScores(num_classes)

    @property
    def input_spec(self) -> InputSpec:
        """The input of the classifier."""
        return InputSpec(self.model.img_size, self.model.mean, self.model.std)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse weights that were trained for other classes, even if there are as many."""
        super().on_load_checkpoint(checkpoint)
        check_class_names(checkpoint, self.model.class_names)

    def parameter_groups(self) -> list[OptimizerGroup]:
        """Return backbone, blocks and head, each with and without weight decay."""
        return weight_decay_groups(
            self.model.parameter_groups(),
            self.lr_mults,
            self.model.no_weight_decay_parameters(),
        )

    def lr_schedule(self) -> Schedule:
        """Return the schedule with its warmup."""
        return warmup_schedule(self.schedule, self.warmup_steps, self.decay_start)

    def training_step(self, batch: LabeledBatch, batch_idx: int) -> Tensor:
        """Return the cross-entropy of a batch."""
        images, labels = self.mix(self.model.normalize(batch.images), batch.labels)
        logits = self.model.classify(images)
        loss = cross_entropy(logits, labels, label_smoothing=self.label_smoothing)
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(logits))
        return loss

    def validation_step(self, batch: LabeledBatch, batch_idx: int) -> None:
        """Update the metrics."""
        self._update_metrics(batch)

    def test_step(self, batch: LabeledBatch, batch_idx: int) -> None:
        """Update the metrics."""
        self._update_metrics(batch)

    def on_validation_epoch_end(self) -> None:
        """Log the metrics of the validation images."""
        self._log_metrics("val")

    def on_test_epoch_end(self) -> None:
        """Log the metrics of the test images, and store those of each class."""
        self._log_metrics("test")

    def _update_metrics(self, batch: LabeledBatch) -> None:
        logits = self.model(batch.images)
        self.loss.update(cross_entropy(logits, batch.labels, reduction="sum"), len(logits))
        self.scores.update(logits, batch.labels)

    def _log_metrics(self, split: str) -> None:
        metrics = {**self.scores.compute(), "loss": self.loss.compute()}
        confusion = metrics.pop("confusion")
        for name, value in metrics.items():
            self.log(f"{split}/{name}", value, prog_bar=name == "accuracy", sync_dist=True)
        if self.trainer.state.fn != "fit":
            self.notes[f"{split}_classes"] = self._per_class_results(confusion)
            level = chance_level(confusion.sum(1), self.model.class_names)
            self.notes |= level.report({f"{split}/accuracy": float(metrics["accuracy"])})
        self.loss.reset()
        self.scores.reset()

    def _per_class_results(self, confusion: Int[Tensor, "k k"]) -> list[dict[str, Any]]:
        """Return the accuracy of each class that has images."""
        correct, count = confusion.diag().tolist(), confusion.sum(1).tolist()
        return [
            {"class": name, "num_correct": right, "num_images": total, "accuracy": right / total}
            for name, right, total in zip(self.model.class_names, correct, count, strict=True)
            if total
        ]


class _NoMixing(nn.Module):
    """Returns images and labels unchanged."""

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return images, labels


def _batch_mixing(mixup: float, cutmix: float, *, num_classes: int) -> nn.Module:
    """Return the module that mixes the images of a batch and their labels."""
    modules: list[nn.Module] = []
    if mixup:
        modules.append(v2.MixUp(alpha=mixup, num_classes=num_classes))
    if cutmix:
        modules.append(v2.CutMix(alpha=cutmix, num_classes=num_classes))
    if len(modules) > 1:
        return v2.RandomChoice(modules)
    return modules[0] if modules else _NoMixing()
