"""Data of one scan path: boxes, patches and class probabilities of the glimpses of an image."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8

from visattn.results.values import ReadLabel, label_text, read_labels

_WIDE = 2.0  # ratio of width to height


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
