"""Metrics of a split over an epoch, weighted means, and chance-level accuracy."""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn
from torchmetrics import Metric


class Evaluation(nn.Module, ABC):
    """The metrics of a split, updated in the steps of a task and logged at the end of an epoch."""

    names: Sequence[str] = ()
    """The metrics that validation logs during training."""

    @abstractmethod
    def compute(self) -> Mapping[str, Tensor]:
        """Return the metrics by name, with equal names in every process."""

    def notes(self, split: str) -> dict[str, Any]:
        """Return additional results for `validate` and `test`, such as those of each class.

        Like `compute`, it is called in all processes and returns global results. Names start with
        the split.
        """
        return {}

    def reset(self) -> None:
        """Reset all metrics."""
        for module in self.modules():
            if isinstance(module, Metric):
                module.reset()


class Sums(Metric):
    """A metric whose states are sums over samples: exact for any batches and processes.

    Args:
        dtype: Integers, or float64, which is precise enough to add single samples to millions.
        shapes: The shape of each state by its name.
    """

    full_state_update = False

    def __init__(self, dtype: torch.dtype = torch.float64, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        for name, shape in shapes.items():
            self.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")


class WeightedMean(Sums):
    """The sum of all amounts divided by the sum of their counts; NaN before the first update.

    Example:
        >>> mean = WeightedMean()
        >>> mean.update(3, 4)
        >>> mean.update(0, 2)
        >>> mean.compute()
        tensor(0.5000)
    """

    amount: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__(amount=(), count=())

    def update(self, amount: float | Tensor, count: float | Tensor) -> None:
        """Add an amount and its count."""
        self.amount += amount
        self.count += count

    def compute(self) -> Tensor:
        """Return the mean."""
        return (self.amount / self.count).float()


class Means(nn.Module):
    """Weighted means by name.

    Example:
        >>> means = Means("hits", "area")
        >>> means.add(hits=(3, 4))
        >>> means.compute("hits")
        {'hits': tensor(0.7500)}
    """

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.means = nn.ModuleDict({name: WeightedMean() for name in names})

    def add(self, **sums: tuple[float | Tensor, float | Tensor]) -> None:
        """Add amounts and counts by name."""
        for name, (amount, count) in sums.items():
            self[name].update(amount, count)

    def compute(self, *names: str) -> dict[str, Tensor]:
        """Return the means of these names, or of all."""
        for name in names or self.means:
            if isinstance(self[name], WeightedMean):
                self[name].update(0, 0)  # torchmetrics warns about metrics without an update
        return {name: self[name].compute() for name in names or self.means}

    def __getitem__(self, name: str) -> Any:
        """Return a mean, or another metric of a subclass."""
        return self.means[name]


_Z = 1.959964  # the 97.5 % quantile of the standard normal distribution
Verdict = Literal["above chance", "at chance", "below chance"]


class ClassCounts(Sums):
    """Number of images of each class.

    Example:
        >>> counts = ClassCounts(3)
        >>> counts.update(torch.tensor([2, 0, 2]))
        >>> counts.compute()
        tensor([1, 0, 2])
    """

    counts: Tensor

    def __init__(self, num_classes: int) -> None:
        super().__init__(torch.int64, counts=(num_classes,))

    def update(self, labels: Int[Tensor, " b"]) -> None:
        """Add the true classes of images."""
        self.counts += torch.bincount(labels, minlength=len(self.counts))

    def compute(self) -> Int[Tensor, " k"]:
        """Return the number of images of each class."""
        return self.counts.clone()


class ChanceLevel(NamedTuple):
    """The accuracy of guessing without the image, with a 95 % confidence interval.

    There are two guesses: a uniformly random class, and the most frequent class, which is at least
    as accurate. The interval is from the lower end of Wilson's interval of the first to the upper
    end of that of the second, for the number of images.

    Example:
        >>> level = chance_level(torch.tensor([60, 40]), ("cat", "dog"))
        >>> level.uniform, level.majority, round(level.low, 3), round(level.high, 3)
        (0.5, 0.6, 0.404, 0.691)
        >>> level.verdict(0.65), level.verdict(0.7), level.verdict(0.4)
        ('at chance', 'above chance', 'below chance')

    Source:
        Wilson 1927, doi:10.1080/01621459.1927.10502953.
    """

    uniform: float
    majority: float
    low: float
    high: float
    num_images: int
    majority_class: str
    """The most frequent class; empty if all are equally frequent."""

    def verdict(self, accuracy: float) -> Verdict:
        """Return whether an accuracy is above, in or below the interval."""
        if self.low <= accuracy <= self.high:
            return "at chance"
        return "above chance" if accuracy > self.high else "below chance"

    def report(self, scores: dict[str, float], *, errors: bool = False) -> dict[str, Any]:
        """Return a verdict on each score, an accuracy or error, and a sentence about the first.

        Example:
            >>> level = chance_level(torch.tensor([60, 40]), ("cat", "dog"))
            >>> report = level.report({"test/error": 0.41}, errors=True)
            >>> report["test/error_verdict"], report["test/error_majority_baseline"]
            ('at chance', 0.4)
        """
        first = next(iter(scores))
        uniform, majority, low, high = (1 - level if errors else level for level in self[:4])
        verdicts = {
            name: self.verdict(1 - score if errors else score) for name, score in scores.items()
        }
        interval = f"{min(low, high):.4f} to {max(low, high):.4f}"
        constant = (
            f", {majority:.4f} by always answering {self.majority_class!r}"
            if self.majority_class
            else ""
        )
        return {
            **{f"{name}_verdict": verdict for name, verdict in verdicts.items()},
            f"{first}_majority_baseline": round(majority, 6),
            "chance": (
                f"{first} is {verdicts[first]}: guessing gives {uniform:.4f}{constant}; over "
                f"{self.num_images:,} images {interval} with 95 % confidence"
            ),
        }


def chance_level(counts: Int[Tensor, " k"], class_names: Sequence[str]) -> ChanceLevel:
    """Return the accuracy at chance level, from the number of images of each class."""
    num_images = int(counts.sum())
    largest = int(counts.max())
    uniform = 1 / len(counts)
    majority = largest / num_images
    low, _ = wilson_interval(uniform, num_images)
    _, high = wilson_interval(majority, num_images)
    majority_class = "" if int(counts.min()) == largest else class_names[int(counts.argmax())]
    return ChanceLevel(uniform, majority, low, high, num_images, majority_class)


def wilson_interval(probability: float, count: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of an expected proportion, for a number of trials.

    Example:
        >>> [round(end, 4) for end in wilson_interval(0.5, 100)]
        [0.4038, 0.5962]
    """
    variance = _Z**2 / count
    center = (probability + variance / 2) / (1 + variance)
    root = math.sqrt(probability * (1 - probability) / count + variance / (4 * count))
    margin = _Z * root / (1 + variance)
    return max(0.0, center - margin), min(1.0, center + margin)
