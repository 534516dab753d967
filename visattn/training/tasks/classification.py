"""Training a classifier of images."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Literal

from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Optimizer
from torchvision.transforms import v2

from visattn.data.classification.datasets import LabeledBatch
from visattn.models.classifier import ImageClassifier, Part
from visattn.training.base import Task
from visattn.training.callbacks.monitor import monitor_of
from visattn.training.metrics.chance_level import chance_level
from visattn.training.metrics.classification import OF_CLASSES, ClassScores
from visattn.training.metrics.weighted_mean import WeightedMean
from visattn.training.optim import cosine, trapezoid, with_schedule

Schedule = Literal["cosine", "trapezoid"]
_SGD = partial(SGD, lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)


class ClassificationTask(Task):
    """Train a classifier on images with classes.

    Weights are decayed except for those that the classifier says are `undecayed`.

    Args:
        classifier: The classifier; it gets the names of its classes from the data.
        data_info: What the data tells of itself; `classes` are the names.
        smoothing: Share of label smoothing.
        mixup: Images are mixed by shares drawn from a Beta distribution with both parameters
            this; 0 mixes none.
        cutmix: The same for rectangles of one image in another. Where both are above 0, each
            batch gets one of the two.
        optimizer: The optimizer; by default SGD with a rate of 0.1, Nesterov momentum of 0.9 and a
            weight decay of 5e-4.
        backbone_rate: Learning rate of the network without blocks and head, as a multiple of the
            optimizer's.
        block_rate: The same for attention blocks.
        head_rate: The same for the head.
        schedule: How the learning rate falls: as a `cosine` from the start, or level at first and
            then in a line (`trapezoid`).
        warm: Steps in which the learning rate rises.
        hold: Share of the run after which a `trapezoid` falls.
        best_by: The validation score by which the best checkpoint is chosen.
    """

    model: ImageClassifier
    val_scores = tuple(f"val/{name}" for name in (*OF_CLASSES, "loss"))

    def __init__(
        self,
        classifier: Callable[[list[str]], ImageClassifier],
        data_info: dict[str, Any],
        *,
        smoothing: float = 0.0,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        optimizer: Callable[[Iterable[Any]], Optimizer] | None = None,
        backbone_rate: float = 1.0,
        block_rate: float = 1.0,
        head_rate: float = 1.0,
        schedule: Schedule = "cosine",
        warm: int = 0,
        hold: float = 0.4,
        best_by: str = "val/accuracy",
    ) -> None:
        least = min(mixup, cutmix, backbone_rate, block_rate, head_rate)
        if least < 0 or not 0 <= smoothing < 1:
            raise ValueError(
                "mixup, cutmix and the rates must be at least 0, smoothing at least 0 and below 1; "
                f"got {mixup}, {cutmix}, {backbone_rate}, {block_rate}, {head_rate} and {smoothing}"
            )
        super().__init__(classifier(data_info["classes"]))
        self.smoothing, self.optimizer = smoothing, optimizer or _SGD
        self.mixing = _mixing(mixup, cutmix, classes=len(self.model.classes))
        self.rates: dict[Part, float] = {
            "backbone": backbone_rate,
            "blocks": block_rate,
            "head": head_rate,
        }
        self.schedule: Schedule = schedule
        self.warm, self.hold = warm, hold
        self.monitor = monitor_of(best_by)
        self.loss = WeightedMean()
        self.scores = ClassScores(len(self.model.classes))
        self.notes: dict[str, Any] = {}

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse weights that were trained for other classes, of which there may be as many."""
        super().on_load_checkpoint(checkpoint)
        saved = checkpoint.get("visattn", {}).get("model", {}).get("arguments", {}).get("classes")
        if saved is not None and tuple(saved) != self.model.classes:
            raise ValueError(
                "the checkpoint was trained with other classes: say the same data options; it has "
                f"{list(saved)[:5]}, the data {list(self.model.classes)[:5]}"
            )

    def configure_optimizers(self) -> Any:
        """Return the optimizer, each part of the network at its own rate, and the schedule."""
        spared = {id(weight) for weight in self.model.undecayed()}
        groups = [
            {"params": chosen, "rate": self.rates[part], **({} if decayed else {"weight_decay": 0})}
            for part, parameters in self.model.parts().items()
            for decayed in (True, False)
            if (
                chosen := [
                    p for p in parameters if p.requires_grad and (id(p) in spared) != decayed
                ]
            )
        ]
        optimizer = self.optimizer(groups)
        total = int(self.trainer.estimated_stepping_batches)
        falling = {"cosine": cosine, "trapezoid": partial(trapezoid, hold=self.hold)}[self.schedule]
        share = partial(falling, total=total, warm=self.warm)
        return with_schedule(optimizer, share)

    def training_step(self, batch: LabeledBatch, batch_idx: int) -> Tensor:
        """Return the loss of a batch."""
        images, labels = self.mixing(self.model.normalized(batch.images), batch.labels)
        scores = self.model.classify(images)
        loss = cross_entropy(scores, labels, label_smoothing=self.smoothing)
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(scores))
        return loss

    def validation_step(self, batch: LabeledBatch, batch_idx: int) -> None:
        """Take in what the network says of a batch."""
        self._take_in(batch)

    def test_step(self, batch: LabeledBatch, batch_idx: int) -> None:
        """Take in what the network says of a batch."""
        self._take_in(batch)

    def on_validation_epoch_end(self) -> None:
        """Log the scores of the validation images."""
        self._tell("val")

    def on_test_epoch_end(self) -> None:
        """Log the scores of the test images, and note those of each class."""
        self._tell("test")

    def _take_in(self, batch: LabeledBatch) -> None:
        scores = self.model(batch.images)
        self.loss.update(cross_entropy(scores, batch.labels, reduction="sum"), len(scores))
        self.scores.update(scores, batch.labels)

    def _tell(self, split: str) -> None:
        found = {**self.scores.compute(), "loss": self.loss.compute()}
        confusion = found.pop("confusion")
        for name, value in found.items():
            self.log(f"{split}/{name}", value, prog_bar=name == "accuracy", sync_dist=True)
        if self.trainer.state.fn != "fit":
            self.notes[f"{split}_classes"] = self._of_classes(confusion)
            level = chance_level(confusion.sum(1), self.model.classes)
            self.notes |= level.notes({f"{split}/accuracy": float(found["accuracy"])})
        self.loss.reset()
        self.scores.reset()

    def _of_classes(self, counts: Int[Tensor, "k k"]) -> list[dict[str, Any]]:
        """Return, per class, how many of its images were told right."""
        told = zip(self.model.classes, counts.diag().tolist(), counts.sum(1).tolist(), strict=True)
        return [
            {"class": name, "right": right, "images": images, "accuracy": right / images}
            for name, right, images in told
            if images
        ]


class _Unmixed(nn.Module):
    """Images and labels as they are."""

    def forward(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        return images, labels


def _mixing(mixup: float, cutmix: float, *, classes: int) -> nn.Module:
    """Return what mixes the images of a batch and their labels."""
    chosen: list[nn.Module] = []
    if mixup:
        chosen.append(v2.MixUp(alpha=mixup, num_classes=classes))
    if cutmix:
        chosen.append(v2.CutMix(alpha=cutmix, num_classes=classes))
    return v2.RandomChoice(chosen) if len(chosen) > 1 else chosen[0] if chosen else _Unmixed()
