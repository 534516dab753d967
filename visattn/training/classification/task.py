"""Training of image classifiers."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD
from torchvision.transforms import v2

from visattn.data.classification.datasets import LabeledBatch
from visattn.models.base import ImageClassifier
from visattn.training.classification.metrics import CLASSIFICATION_METRICS, ClassificationScores
from visattn.training.metrics import Evaluation, WeightedMean, chance_level
from visattn.training.optim import OptimConfig
from visattn.training.task import Task

_OPTIM = OptimConfig(schedule="cosine")


class ClassificationTask(Task):
    """Train a classifier on images with classes.

    Weight decay does not apply to biases, norms, tokens and position embeddings of visattn's
    classifiers.

    Args:
        classifier: The classifier; it gets the names of its classes from the data.
        data_info: Values that the data module provides; `class_names` are the names of the classes.
        label_smoothing: Label smoothing of the cross-entropy.
        class_weights: Weights of the classes in the cross-entropy, in their order; `balanced` for
            the inverse of the number of training images of each class.
        mixup: Alpha of mixup, the parameter of the Beta distribution; 0 disables it.
        cutmix: Alpha of CutMix; 0 disables it. If both are above 0, each batch uses one of them at
            random.
        optim: The optimizer, by default SGD with a learning rate of 0.1, Nesterov momentum of 0.9
            and a weight decay of 5e-4; `lr_mults` for `backbone`, `blocks` and `head`.
        monitor: The validation metric that selects the best checkpoint.
    """

    model: ImageClassifier
    default_optimizer = staticmethod(
        partial(SGD, lr=0.1, momentum=0.9, weight_decay=5e-4, nesterov=True)
    )

    def __init__(
        self,
        classifier: Callable[[list[str]], ImageClassifier],
        data_info: dict[str, Any],
        *,
        label_smoothing: float = 0.0,
        class_weights: list[float] | Literal["balanced"] | None = None,
        mixup: float = 0.0,
        cutmix: float = 0.0,
        optim: OptimConfig = _OPTIM,
        monitor: str = "val/accuracy",
    ) -> None:
        super().__init__(classifier(data_info["class_names"]), optim, monitor)
        self.label_smoothing = label_smoothing
        self.class_weights = class_weights
        self.weight: Tensor | None = None
        names = self.model.class_names
        self.mix = _batch_mixing(mixup, cutmix, num_classes=len(names))
        self.add_evaluations(lambda: ClassificationEvaluation(names))

    def on_fit_start(self) -> None:
        """Set the weights of the classes."""
        super().on_fit_start()
        weights = self.class_weights
        if weights == "balanced":
            counted = self.data and self.data.count_targets("train")
            if not counted:
                raise ValueError("class_weights: balanced needs data with known class counts")
            names = self.model.class_names
            counts = [counted[1][name] for name in names]
            weights = [sum(counts) / (len(names) * max(1, count)) for count in counts]
        if weights is not None:
            self.weight = torch.tensor(weights, device=self.device)

    def training_step(self, batch: LabeledBatch, batch_idx: int) -> Tensor:
        """Return the cross-entropy of a batch."""
        images, labels = self.mix(self.model.normalize(batch.images), batch.labels)
        logits = self.model.classify(images)
        loss = cross_entropy(
            logits, labels, weight=self.weight, label_smoothing=self.label_smoothing
        )
        self.log("train/loss", loss.detach(), prog_bar=True, batch_size=len(logits))
        return loss

    def evaluate(self, batch: LabeledBatch, split: str) -> None:
        """Update the metrics of a split."""
        self.evaluation(split).update(self.model(batch.images), batch.labels)


class ClassificationEvaluation(Evaluation):
    """Accuracy, calibration and loss of a split."""

    names = (*CLASSIFICATION_METRICS, "loss")

    def __init__(self, class_names: Sequence[str]) -> None:
        super().__init__()
        self.class_names = class_names
        self.scores = ClassificationScores(len(class_names))
        self.loss = WeightedMean()

    def update(self, logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"]) -> None:
        """Add the logits of images and their true classes."""
        self.loss.update(cross_entropy(logits, labels, reduction="sum"), len(logits))
        self.scores.update(logits, labels)

    def compute(self) -> dict[str, Tensor]:
        """Return all metrics by name."""
        values = {**self.scores.compute(), "loss": self.loss.compute()}
        del values["confusion"]
        return values

    def notes(self, split: str) -> dict[str, Any]:
        """Return the accuracy of each class that has images, and whether it is above chance."""
        scores = self.scores.compute()
        confusion = scores["confusion"]
        correct = confusion.diag().tolist()
        count = confusion.sum(1).tolist()
        rows = [
            {"class": name, "num_correct": right, "num_images": total, "accuracy": right / total}
            for name, right, total in zip(self.class_names, correct, count, strict=True)
            if total
        ]
        level = chance_level(confusion.sum(1), self.class_names)
        report = level.report({f"{split}/accuracy": float(scores["accuracy"])})
        return {f"{split}_classes": rows, **report}


def _batch_mixing(mixup: float, cutmix: float, *, num_classes: int) -> nn.Module:
    """Return the module that mixes the images of a batch and their labels."""
    modules: list[nn.Module] = []
    if mixup:
        modules.append(v2.MixUp(alpha=mixup, num_classes=num_classes))
    if cutmix:
        modules.append(v2.CutMix(alpha=cutmix, num_classes=num_classes))
    if len(modules) > 1:
        return v2.RandomChoice(modules)
    return modules[0] if modules else v2.Identity()
