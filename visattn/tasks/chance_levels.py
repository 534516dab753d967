"""What guessing would score, and whether a score is more than that."""

import math
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor
from torchmetrics import Metric

_Z = 1.959964  # standard deviations to each side that hold 95 % of a Gaussian
Verdict = Literal["above chance", "at chance", "below chance"]


class ClassCounts(Metric):
    """How many pictures each class has, over everything that was seen.

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
        """Take in the true classes of pictures."""
        self.counts += torch.bincount(labels, minlength=len(self.counts))

    def compute(self) -> Int[Tensor, " k"]:
        """Return the number of pictures of each class so far."""
        return self.counts.clone()


class ChanceLevel(NamedTuple):
    """The accuracy of the best guess without looking: always the most frequent class.

    Where classes are equally frequent it equals that of a uniform guess. The interval is Wilson's,
    of 95 %, for as many pictures as were scored.

    Example:
        >>> level = chance_level(torch.tensor([60, 40]), ("cat", "dog"))
        >>> level.rate, round(level.low, 3), round(level.high, 3)
        (0.6, 0.502, 0.691)
        >>> level.verdict(0.65), level.verdict(0.7), level.verdict(0.5)
        ('at chance', 'above chance', 'below chance')

    Source:
        Wilson 1927, doi:10.1080/01621459.1927.10502953.
    """

    rate: float
    low: float
    high: float
    pictures: int
    guess: str
    """What is guessed, in words."""

    def verdict(self, accuracy: float) -> Verdict:
        """Return where an accuracy lies, with respect to the interval."""
        if self.low <= accuracy <= self.high:
            return "at chance"
        return "above chance" if accuracy > self.high else "below chance"

    def notes(self, scores: dict[str, float], *, errors: bool = False) -> dict[str, Any]:
        """Return what a task notes of its scores: a verdict on each, and a sentence on the guess.

        Args:
            scores: By their names, with that of the split; the first one decides.
            errors: The scores are shares of wrong answers, not of right ones.

        Example:
            >>> level = chance_level(torch.tensor([60, 40]), ("cat", "dog"))
            >>> notes = level.notes({"test/error": 0.41}, errors=True)
            >>> notes["test/error_verdict"], notes["test/error_by_guessing"]
            ('at chance', 0.4)
        """
        first = next(iter(scores))
        rate, low, high = (1 - self.rate, 1 - self.high, 1 - self.low) if errors else self[:3]
        verdicts = {
            name: self.verdict(1 - score if errors else score) for name, score in scores.items()
        }
        sentence = (
            f"{first} is {verdicts[first]}: {self.guess} gives {rate:.4f}, and over "
            f"{self.pictures:,} pictures {low:.4f} to {high:.4f} in 95 % of cases"
        )
        return {
            **{f"{name}_verdict": verdict for name, verdict in verdicts.items()},
            f"{first}_by_guessing": round(rate, 6),
            "chance": sentence,
        }


def chance_level(counts: Int[Tensor, " k"], names: tuple[str, ...]) -> ChanceLevel:
    """Return what guessing would score.

    Args:
        counts: How many pictures of each class were scored, at least one in all.
        names: Of the classes.
    """
    pictures, most = int(counts.sum()), int(counts.max())
    rate = most / pictures
    if int(counts.min()) == most:
        guess = f"guessing among {len(names)} equally frequent classes"
    else:
        guess = f"always answering {names[int(counts.argmax())]!r}, the most frequent class,"
    low, high = wilson_interval(rate, pictures)
    return ChanceLevel(rate, low, high, pictures, guess)


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
