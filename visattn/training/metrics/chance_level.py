"""What guessing would score, and whether a score is more than that."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from torchmetrics import Metric

_Z = 1.959964  # standard deviations to each side that hold 95 % of a Gaussian
Verdict = Literal["above chance", "at chance", "below chance"]


class ClassCounts(Metric):
    """How many images each class has, over everything that was seen.

    Args:
        classes: How many classes there are.

    Example:
        >>> counts = ClassCounts(3)
        >>> counts.update(torch.tensor([2, 0, 2]))
        >>> counts.compute()
        tensor([1, 0, 2])
    """

    full_state_update = False
    counts: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.add_state("counts", torch.zeros(classes, dtype=torch.int64), dist_reduce_fx="sum")

    def update(self, labels: Int[Tensor, " b"]) -> None:
        """Take in the true classes of images."""
        self.counts += torch.bincount(labels, minlength=len(self.counts))

    def compute(self) -> Int[Tensor, " k"]:
        """Return the number of images of each class so far."""
        return self.counts.clone()


class ChanceLevel(NamedTuple):
    """The accuracy of guesses that do not look at the image.

    Two of them: any class alike, and always the most frequent one, which is at least as good. The
    interval reaches from Wilson's lower end for the first to his upper end for the second, each of
    95 %, for as many images as were scored.

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
    images: int
    guess: str
    """The most frequent class; none if all are equally frequent."""

    def verdict(self, accuracy: float) -> Verdict:
        """Return where an accuracy lies, with respect to the interval."""
        if self.low <= accuracy <= self.high:
            return "at chance"
        return "above chance" if accuracy > self.high else "below chance"

    def notes(self, scores: dict[str, float], *, errors: bool = False) -> dict[str, Any]:
        """Return what a task notes of its scores: a verdict on each, and a sentence on the guess.

        Args:
            scores: By their names, with that of the split; the sentence is on the first.
            errors: The scores are shares of wrong answers, not of right ones.

        Example:
            >>> level = chance_level(torch.tensor([60, 40]), ("cat", "dog"))
            >>> notes = level.notes({"test/error": 0.41}, errors=True)
            >>> notes["test/error_verdict"], notes["test/error_by_guessing"]
            ('at chance', 0.4)
        """
        first = next(iter(scores))
        uniform, majority, low, high = (1 - part if errors else part for part in self[:4])
        verdicts = {
            name: self.verdict(1 - score if errors else score) for name, score in scores.items()
        }
        ends = f"{min(low, high):.4f} to {max(low, high):.4f}"
        always = f", {majority:.4f} by always answering {self.guess!r}" if self.guess else ""
        return {
            **{f"{name}_verdict": verdict for name, verdict in verdicts.items()},
            f"{first}_by_guessing": round(majority, 6),
            "chance": (
                f"{first} is {verdicts[first]}: guessing gives {uniform:.4f}{always}; over "
                f"{self.images:,} images {ends} with 95 % confidence"
            ),
        }


def chance_level(counts: Int[Tensor, " k"], names: Sequence[str]) -> ChanceLevel:
    """Return what guessing would score.

    Args:
        counts: How many images of each class were scored, at least one in all.
        names: Of the classes.
    """
    images, most = int(counts.sum()), int(counts.max())
    uniform, majority = 1 / len(counts), most / images
    low, high = wilson_interval(uniform, images)[0], wilson_interval(majority, images)[1]
    guess = "" if int(counts.min()) == most else names[int(counts.argmax())]
    return ChanceLevel(uniform, majority, low, high, images, guess)


def wilson_interval(rate: float, count: int) -> tuple[float, float]:
    """Return the interval that holds 95 % of the shares that chance would give.

    Args:
        rate: The share that is expected, in [0, 1].
        count: How many trials there are, at least 1.

    Example:
        >>> [round(end, 4) for end in wilson_interval(0.5, 100)]
        [0.4038, 0.5962]
    """
    spread = _Z**2 / count
    middle = (rate + spread / 2) / (1 + spread)
    half = _Z * math.sqrt(rate * (1 - rate) / count + spread / (4 * count)) / (1 + spread)
    return max(0.0, middle - half), min(1.0, middle + half)
