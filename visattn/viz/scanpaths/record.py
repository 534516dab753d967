"""Data of one scan path: boxes, patches and class probabilities of the glimpses of an image."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, UInt8

_WIDE = 2.0  # ratio of width to height


class ReadLabel(NamedTuple):
    """A label that a glimpse model read."""

    name: str
    probability: float
    glimpse: int
    """Index of the glimpse after which it was read."""


def read_labels(
    probabilities: Float[np.ndarray, "t k"],
    class_names: Sequence[str],
    glimpses_per_label: int | None = None,
    end_class: str | None = None,
) -> list[ReadLabel]:
    """Return the labels that a model read, in order, up to the end of the sequence.

    Args:
        probabilities: Class probabilities after each glimpse.
        class_names: Names of the classes.
        glimpses_per_label: Number of glimpses after which each label is read; by default a single
            label is read after the last glimpse.
        end_class: Name of the class that ends a sequence, which is the last label then.

    Example:
        >>> probabilities = np.eye(3)[[0, 1, 2, 2, 1, 1]]
        >>> [label[:2] for label in read_labels(probabilities, ("3", "7", "end"), 2, "end")]
        [('7', 1.0), ('end', 1.0)]
    """
    step = glimpses_per_label or len(probabilities)
    labels: list[ReadLabel] = []
    for glimpse in range(step - 1, len(probabilities), step):
        best = int(probabilities[glimpse].argmax())
        labels.append(ReadLabel(class_names[best], float(probabilities[glimpse, best]), glimpse))
        if class_names[best] == end_class:
            break
    return labels


def label_text(labels: Sequence[ReadLabel], end_class: str | None = None) -> tuple[str, float]:
    """Return the names of all labels but the end, and the probability of the sequence.

    Example:
        >>> label_text([ReadLabel("3", 0.5, 2), ReadLabel("7", 0.5, 5), ReadLabel("end", 1.0, 8)])
        ('3 7 end', 0.25)
        >>> label_text([ReadLabel("3", 0.5, 2), ReadLabel("end", 1.0, 5)], "end")
        ('3', 0.5)
    """
    names = [label.name for label in labels if label.name != end_class]
    probability = math.prod(label.probability for label in labels)
    return " ".join(names) or labels[-1].name, probability


@dataclass(frozen=True, eq=False)
class ScanPathData:
    """An image and the glimpses of a recurrent attention model on it.

    Args:
        image: RGB, of any size and proportions.
        boxes: Left, top, right and bottom of each glimpse and scale in pixels of the image, the
            finest scale first; they may extend beyond the image.
        patches: Pixels of each glimpse and scale, with one or three color channels.
        probabilities: Class probabilities after each glimpse.
        class_names: Names of the classes.
        glimpses_per_label: As in `read_labels`.
        end_class: As in `read_labels`.

    Raises:
        ValueError: If there is no glimpse, the numbers of glimpses, scales or classes differ, or a
            box or a probability is not finite.

    Example:
        >>> scan = ScanPathData(
        ...     np.zeros((30, 40, 3), np.uint8), np.array([[[10.0, 10, 18, 18]]]),
        ...     np.zeros((1, 1, 1, 4, 4), np.uint8), np.array([[0.2, 0.8]]), ("cat", "dog"),
        ... )
        >>> scan.prediction
        ('dog', 0.8)
    """

    image: UInt8[np.ndarray, "y x 3"]
    boxes: Float[np.ndarray, "t s 4"]
    patches: UInt8[np.ndarray, "_ _ c g g"]
    probabilities: Float[np.ndarray, "_ k"]
    class_names: tuple[str, ...]
    glimpses_per_label: int | None = None
    end_class: str | None = None

    def __post_init__(self) -> None:
        """Check the shapes and that boxes and probabilities are finite."""
        glimpses, scales = self.boxes.shape[:2]
        shapes = (self.patches.shape[:2], self.probabilities.shape)
        if not glimpses or shapes != ((glimpses, scales), (glimpses, len(self.class_names))):
            raise ValueError(
                "a scan path needs at least one glimpse, and for each glimpse patches of all "
                f"scales and a probability for each class; got boxes {self.boxes.shape}, patches "
                f"{self.patches.shape}, probabilities {self.probabilities.shape} and "
                f"{len(self.class_names)} classes"
            )
        if not (np.isfinite(self.boxes).all() and np.isfinite(self.probabilities).all()):
            raise ValueError("boxes and probabilities must be finite, got NaN or infinity")

    @property
    def is_wide(self) -> bool:
        """Whether the mosaic is drawn below the scan path instead of beside it."""
        height, width = self.image.shape[:2]
        return width >= _WIDE * height

    @property
    def labels(self) -> list[ReadLabel]:
        """The labels that the model read; a single one unless it reads sequences."""
        return read_labels(
            self.probabilities, self.class_names, self.glimpses_per_label, self.end_class
        )

    @property
    def prediction(self) -> tuple[str, float]:
        """The labels that the model read, and their probability."""
        return label_text(self.labels, self.end_class)

    @property
    def tags(self) -> dict[int, str]:
        """The label read after a glimpse, by its index; empty if there is a single label."""
        if self.glimpses_per_label is None:
            return {}
        return {label.glimpse: label.name for label in self.labels}


def format_percent(probability: float) -> str:
    """Return a probability as a percentage; only 1.0 is formatted as 100 %.

    Example:
        >>> format_percent(0.003), format_percent(0.42), format_percent(0.9999)
        ('<1 %', '42 %', '>99 %')
    """
    if 0 < probability < 0.01:
        return "<1 %"
    return ">99 %" if 0.99 < probability < 1 else f"{100 * probability:.0f} %"
