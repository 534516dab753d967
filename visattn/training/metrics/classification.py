"""How well classes are told, over everything that was seen."""

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torchmetrics import Metric

OF_CLASSES = ("accuracy", "balanced", "worst", "calibration")


class ClassScores(Metric):
    """Accuracy, accuracy of each class, and how far confidence is from being right.

    Sums of whole numbers are all that is kept, so that it is exact over batches of any size and
    over several processes.

    Args:
        classes: How many classes there are.
        bins: Into how many equal parts of [0, 1] confidences are sorted.

    Example:
        >>> scores = ClassScores(2)
        >>> scores.update(torch.tensor([[9.0, 0.0], [9.0, 0.0]]), torch.tensor([0, 1]))
        >>> found = scores.compute()
        >>> float(found["accuracy"]), round(float(found["calibration"]), 3)
        (0.5, 0.5)

    Source:
        Guo et al. 2017, arXiv:1706.04599, equation 5, for the expected calibration error.
    """

    full_state_update = False
    confusion: Tensor
    filled: Tensor
    confidence: Tensor
    right: Tensor

    def __init__(self, classes: int, *, bins: int = 15) -> None:
        super().__init__()
        self.classes, self.bins = classes, bins
        counts = torch.zeros(classes, classes, dtype=torch.int64)
        self.add_state("confusion", counts, dist_reduce_fx="sum")
        for name in ("filled", "confidence", "right"):
            zeros = torch.zeros(bins, dtype=torch.float64)
            self.add_state(name, zeros, dist_reduce_fx="sum")

    def update(self, scores: Float[Tensor, "b k"], labels: Int[Tensor, " b"]) -> None:
        """Take in the scores of images, before softmax, and their true classes."""
        confidence, told = scores.double().softmax(1).max(1)
        cells = torch.bincount(labels * self.classes + told, minlength=self.classes**2)
        self.confusion += cells.view(self.classes, self.classes)
        bins = (confidence * self.bins).ceil().long().clamp(1, self.bins) - 1  # open below
        self.filled.index_add_(0, bins, torch.ones_like(confidence))
        self.confidence.index_add_(0, bins, confidence)
        self.right.index_add_(0, bins, (told == labels).double())

    def compute(self) -> dict[str, Tensor]:
        """Return what is known so far.

        Returns:
            `accuracy`; `balanced`, the mean of the classes' accuracies, and `worst`, the least of
            them, both over classes that were seen; `calibration`, the expected calibration error;
            and `confusion`, how many images of each class (rows) were told as which (columns).
        """
        per_class = self.per_class()
        seen = per_class[~per_class.isnan()]
        return {
            "accuracy": (self.confusion.diag().sum() / self.confusion.sum()).float(),
            "balanced": seen.mean(),
            "worst": seen.min() if len(seen) else seen.sum(),
            "confusion": self.confusion.clone(),
            "calibration": ((self.right - self.confidence).abs().sum() / self.filled.sum()).float(),
        }

    def per_class(self) -> Float[Tensor, " k"]:
        """Return the accuracy of each class so far; NaN for one that was not seen."""
        return (self.confusion.diag() / self.confusion.sum(1)).float()
