"""What is drawn of one scan: an image, and what a network saw and thought of it, by glimpses."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, UInt8


@dataclass(frozen=True, eq=False)
class ShownScan:
    """An image that was looked at piece by piece.

    Args:
        image: RGB, of any size and proportions.
        boxes: Of each glimpse and scale left, top, right and bottom in pixels of the image, the
            finest scale first; they may reach out of it.
        patches: What the network saw there, in one color channel or three.
        probabilities: Of each class after each glimpse.
        classes: Their names.

    Raises:
        ValueError: If there is no glimpse, the numbers of glimpses, scales or classes differ, or a
            box or a probability is not finite.

    Example:
        >>> one = ShownScan(
        ...     np.zeros((30, 40, 3), np.uint8), np.array([[[10.0, 10, 18, 18]]]),
        ...     np.zeros((1, 1, 1, 4, 4), np.uint8), np.array([[0.2, 0.8]]), ("cat", "dog"),
        ... )
        >>> one.answer
        ('dog', 0.8)
    """

    image: UInt8[np.ndarray, "y x 3"]
    boxes: Float[np.ndarray, "t s 4"]
    patches: UInt8[np.ndarray, "_ _ c g g"]
    probabilities: Float[np.ndarray, "_ k"]
    classes: tuple[str, ...]

    def __post_init__(self) -> None:
        """Check that everything belongs to the same glimpses."""
        glimpses, scales = self.boxes.shape[:2]
        found = (self.patches.shape[:2], self.probabilities.shape)
        if not glimpses or found != ((glimpses, scales), (glimpses, len(self.classes))):
            raise ValueError(
                "a scan needs at least one glimpse, and for each glimpse patches of all scales and "
                f"a probability for each class; got boxes {self.boxes.shape}, patches "
                f"{self.patches.shape}, probabilities {self.probabilities.shape} and "
                f"{len(self.classes)} classes"
            )
        if not (np.isfinite(self.boxes).all() and np.isfinite(self.probabilities).all()):
            raise ValueError("boxes and probabilities must be finite, got NaN or infinity")

    @property
    def answer(self) -> tuple[str, float]:
        """The likeliest class after the last glimpse, and its probability."""
        best = int(self.probabilities[-1].argmax())
        return self.classes[best], float(self.probabilities[-1, best])


def per_cent(share: float) -> str:
    """Return a probability as people read it; only certainty is 100 %.

    Example:
        >>> per_cent(0.003), per_cent(0.42), per_cent(0.9999)
        ('<1 %', '42 %', '>99 %')
    """
    if 0 < share < 0.01:
        return "<1 %"
    return ">99 %" if 0.99 < share < 1 else f"{100 * share:.0f} %"
