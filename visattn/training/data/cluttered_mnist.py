"""Data module of translated and cluttered MNIST."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from visattn.data.classification.cluttered_mnist import BlendMode, ClutteredMNIST, ClutterSpec
from visattn.results.kinds import Split
from visattn.training.data.canvases import CanvasDataModule
from visattn.training.targets import TargetCounts


class ClutteredMNISTDataModule(CanvasDataModule):
    """MNIST digits at random places of a larger canvas, with distractors cut from other digits.

    `train_transforms` are applied to training digits before they are placed; they must keep the
    size of a digit.

    Args:
        canvas_size: Height and width of a canvas in pixels.
        num_distractors: Distractors per canvas; 0 gives translated MNIST.
        distractor_size: Height and width of a distractor in pixels.
        blend: Value of a pixel that a distractor covers: the `sum`, at most 255; the brighter of
            both (`max`); the distractor, also where it is black (`overwrite`); or white with the
            distractor as its opacity (`blend`).
        options: Options of `CanvasDataModule`.
    """

    draw = ClutteredMNIST

    def __init__(
        self,
        *,
        canvas_size: tuple[int, int] = (60, 60),
        num_distractors: int = 0,
        distractor_size: int = 8,
        blend: BlendMode = "sum",
        **options: Any,
    ) -> None:
        height, width = canvas_size
        spec = ClutterSpec((height, width), num_distractors, distractor_size, blend)
        super().__init__(spec, **options)

    def centers(self, split: Split = "test") -> Float[Tensor, "n 2"]:
        """Return the center of each digit, x and y, from -1 to 1 across the canvas."""
        return self.get_dataset(split).centers

    def count_targets(self, split: Split) -> TargetCounts:
        """Return the number of digits of each class."""
        return TargetCounts.of_labels(self.datasets[split].labels, self.class_names)
