"""Segmentation metrics from integer counts: mIoU, Dice, and scores of gates."""

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from visattn.results.kinds import IGNORE_CLASS
from visattn.training.metrics import Sums

SEGMENTATION_METRICS = ("miou", "dice", "pixel_accuracy")
FOREGROUND_METRIC = "miou_foreground"
"""mIoU without the background, for models that have one."""
_BINS = 4096
_MAX_LOGIT = 16.0


class SegmentationScores(Sums):
    """mIoU, Dice and pixel accuracy over all pixels of a data set.

    Classes that are neither predicted nor true anywhere are excluded from all means; if only one
    class remains, `miou` is NaN, since there was nothing to distinguish. Pixels of the class 255
    are ignored.

    Args:
        num_classes: Number of classes.
        background: Whether class 0 is the background, which only `miou` includes.

    Example:
        >>> scores = SegmentationScores(3, background=True)
        >>> labels = torch.tensor([[[0, 1, 1, 255]]], dtype=torch.uint8)
        >>> scores.update(torch.tensor([[[0, 1, 0, 1]]]), labels)
        >>> {name: round(float(value), 3) for name, value in scores.compute().items()}
        {'miou': 0.5, 'dice': 0.667, 'pixel_accuracy': 0.667, 'miou_foreground': 0.5}
    """

    confusion: Tensor

    def __init__(self, num_classes: int, *, background: bool) -> None:
        super().__init__(torch.int64, confusion=(num_classes, num_classes))
        self.num_classes = num_classes
        self.background = background

    def update(self, predictions: Int[Tensor, "b y x"], labels: UInt8[Tensor, "b y x"]) -> None:
        """Add predicted and true classes of pixels.

        Raises:
            ValueError: If a label is neither a class nor 255.
        """
        counted = labels != IGNORE_CLASS
        true = labels[counted].long()
        predicted = predictions[counted]
        if len(true) and int(true.max()) >= self.num_classes:
            raise ValueError(
                f"labels must be below the number of classes, {self.num_classes}, or "
                f"{IGNORE_CLASS}; got {int(true.max())}"
            )
        cells = torch.bincount(true * self.num_classes + predicted, minlength=self.num_classes**2)
        self.confusion += cells.view(self.num_classes, self.num_classes)

    def compute(self) -> dict[str, Tensor]:
        """Return all metrics by name; NaN without pixels."""
        first = int(self.background)
        iou = self._iou()
        several = bool(iou.isfinite().sum() > 1)
        metrics = {
            "miou": iou.nanmean() if several else torch.full_like(iou[0], torch.nan),
            "dice": (2 * iou / (1 + iou))[first:].nanmean(),
            "pixel_accuracy": self.confusion.diag().sum() / self.confusion.sum(),
        }
        return metrics | ({FOREGROUND_METRIC: iou[1:].nanmean()} if self.background else {})

    def per_class_iou(self) -> Float[Tensor, " k"]:
        """Return the IoU of each class over all processes; NaN for a class without pixels."""
        with self.sync_context():
            return self._iou()

    def _iou(self) -> Float[Tensor, " k"]:
        intersection = self.confusion.diag()
        return intersection / (self.confusion.sum(0) + self.confusion.sum(1) - intersection)


class GateScores(Sums):
    """How well a spatial gate separates pixels of objects from the background.

    `auc`: area under the ROC curve of the gate of pixels inside of objects against that of the
    background (0.5 for a gate that does not depend on them). `inside`, `outside`: mean gate. Each
    pixel has the gate of its cell. Gates are counted in 4,096 bins of their logit; a tie within a
    bin counts half.

    Example:
        >>> scores = GateScores()
        >>> labels = torch.tensor([[[0, 0, 1, 1]]], dtype=torch.uint8)
        >>> scores.update(torch.tensor([[[0.2, 0.9]]]), labels)
        >>> {name: round(float(value), 2) for name, value in scores.compute().items()}
        {'auc': 1.0, 'inside': 0.9, 'outside': 0.2}
    """

    counts: Tensor
    totals: Tensor

    def __init__(self) -> None:
        super().__init__(counts=(2, _BINS), totals=(2,))

    def update(self, gates: Float[Tensor, "b gy gx"], labels: UInt8[Tensor, "b y x"]) -> None:
        """Add the gates of images and the classes of their pixels; 0 is the background."""
        size = labels.shape[1:]
        values = torch.nn.functional.interpolate(
            gates.double()[:, None], tuple(size), mode="nearest-exact"
        ).squeeze(1)
        # Binned by logit, so that gates near 0 or 1 remain distinguishable.
        position = (values.logit(1e-9).clamp(-_MAX_LOGIT, _MAX_LOGIT) / _MAX_LOGIT + 1) / 2
        bins = (position * (_BINS - 1)).round().long()
        objects = (labels != 0) & (labels != IGNORE_CLASS)
        for row, region in enumerate((labels == 0, objects)):
            self.counts[row] += torch.bincount(bins[region], minlength=_BINS)
            self.totals[row] += values[region].sum()

    def compute(self) -> dict[str, Tensor]:
        """Return `auc`, `inside` and `outside`; NaN without pixels of one kind."""
        background, objects = self.counts
        # Background pixels below each bin plus half of those in it, summed over object pixels: the
        # number of pairs in which the object has the larger gate, with ties as halves.
        below = background.cumsum(0) - background / 2
        outside, inside = self.totals / self.counts.sum(1)
        auc = (objects * below).sum() / (objects.sum() * background.sum())
        return {"auc": auc.float(), "inside": inside.float(), "outside": outside.float()}
