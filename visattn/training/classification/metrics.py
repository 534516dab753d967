"""Accuracy and calibration of a classifier."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from visattn.training.metrics import Sums

CLASSIFICATION_METRICS = (
    "accuracy",
    "balanced_accuracy",
    "worst_class_accuracy",
    "calibration_error",
)


class ClassificationScores(Sums):
    """Accuracy, per-class accuracy and expected calibration error.

    The bins of the confidence have equal widths.

    Example:
        >>> scores = ClassificationScores(2)
        >>> scores.update(torch.tensor([[9.0, 0.0], [9.0, 0.0]]), torch.tensor([0, 1]))
        >>> results = scores.compute()
        >>> float(results["accuracy"]), round(float(results["calibration_error"]), 3)
        (0.5, 0.5)

    Source:
        Guo et al. 2017, arXiv:1706.04599, equation 5, for the expected calibration error.
    """

    confusion: Tensor
    bin_counts: Tensor
    bin_confidence: Tensor
    bin_correct: Tensor

    def __init__(self, num_classes: int, *, num_bins: int = 15) -> None:
        bins = ("bin_counts", "bin_confidence", "bin_correct")
        super().__init__(confusion=(num_classes,) * 2, **dict.fromkeys(bins, (num_bins,)))
        self.num_bins = num_bins

    def update(self, logits: Float[Tensor, "b k"], labels: Int[Tensor, " b"]) -> None:
        """Add the logits of images and their true classes."""
        confidence, predictions = logits.double().softmax(1).max(1)
        ones = torch.ones_like(confidence)
        self.confusion.index_put_((labels, predictions), ones, accumulate=True)
        scaled = confidence * self.num_bins
        bins = scaled.ceil().long().clamp(1, self.num_bins) - 1  # bins exclude their lower edge
        self.bin_counts.index_add_(0, bins, ones)
        self.bin_confidence.index_add_(0, bins, confidence)
        self.bin_correct.index_add_(0, bins, (predictions == labels).double())

    def compute(self) -> dict[str, Tensor]:
        """Return all metrics.

        Returns:
            `accuracy`; `balanced_accuracy`, the mean of the per-class accuracies, and
            `worst_class_accuracy`, their minimum, both over classes with images;
            `calibration_error`, the expected calibration error; and `confusion`, the confusion
            matrix with true classes in rows and predicted classes in columns.
        """
        per_class = self.per_class_accuracy()
        present = per_class[~per_class.isnan()]
        gaps = (self.bin_correct - self.bin_confidence).abs()
        return {
            "accuracy": (self.confusion.diag().sum() / self.confusion.sum()).float(),
            "balanced_accuracy": present.mean(),
            "worst_class_accuracy": present.min() if len(present) else present.sum(),
            "confusion": self.confusion.long(),
            "calibration_error": (gaps.sum() / self.bin_counts.sum()).float(),
        }

    def per_class_accuracy(self) -> Float[Tensor, " k"]:
        """Return the accuracy of each class; NaN for a class without images."""
        return (self.confusion.diag() / self.confusion.sum(1)).float()
