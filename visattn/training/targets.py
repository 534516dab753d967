"""Counts of what the loss reads of a data set, made before the first step."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from jaxtyping import Int
from torch import Tensor

from visattn.io.messages import format_names

_SPLITS = {"train": "training", "validation": "validation"}


@dataclass(frozen=True)
class TargetCounts:
    """Targets of a split, as the loss will read them.

    Args:
        images: Number of images.
        unit: What a target is, in the plural: `objects`, `captions`.
        total: Number of targets that the loss reads.
        classes: Number of targets of each class; empty if targets have no classes.
        largest: Size of the largest target of an image: objects of one image, words of one caption.
        remarks: What is cut, changed or left out on the way, each with the option that cures it.
        cure: What to do about a class or a split without targets.

    Example:
        >>> counts = TargetCounts(7, "objects", 5, {"cat": 5, "dog": 0}, cure="remove the class")
        >>> for line in counts.lines("validation"):
        ...     print(line)
        validation targets: 7 images, 5 objects, 2 classes from dog (0) to cat (5)
        no objects of dog in validation, so its scores leave the class out: remove the class
    """

    images: int
    unit: str
    total: int
    classes: Mapping[str, int] = field(default_factory=dict)
    largest: int = 0
    remarks: Sequence[str] = ()
    cure: str = ""

    @classmethod
    def of_labels(cls, labels: Int[Tensor, " n"], class_names: Sequence[str]) -> Self:
        """Return the number of images of each class."""
        counts = labels.bincount(minlength=len(class_names)).tolist()
        classes = dict(zip(class_names, counts, strict=True))
        cure = "remove the class, or add images of it"
        return cls(len(labels), "labels", sum(counts), classes, cure=cure)

    def lines(self, split: str) -> list[str]:
        """Return the report of a split, line by line; refuse one without a target."""
        name = _SPLITS[split]
        if not self.total:
            raise ValueError(
                f"the {name} split has no {self.unit} that the loss reads, in {self.images:,} "
                f"images: {self.cure}"
            )
        spread = ""
        if self.classes:
            pairs = sorted(self.classes.items(), key=lambda pair: pair[1])
            few = pairs[0]
            many = pairs[-1]
            spread = (
                f", {len(self.classes):,} classes from {few[0]} ({few[1]:,}) to {many[0]} "
                f"({many[1]:,})"
            )
        first = f"{name} targets: {self.images:,} images, {self.total:,} {self.unit}{spread}"
        return [first, *self.remarks, *self._missing(split)]

    def _missing(self, split: str) -> list[str]:
        missing = [name for name, count in self.classes.items() if not count]
        if not missing:
            return []
        names = format_names(missing, 5)
        several = "classes" if len(missing) > 1 else "class"
        effect = (
            f"the model cannot learn the {several}"
            if split == "train"
            else f"its scores leave the {several} out"
        )
        return [f"no {self.unit} of {names} in {_SPLITS[split]}, so {effect}: {self.cure}"]
