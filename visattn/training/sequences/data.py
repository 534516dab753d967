"""Data module of MNIST digit sequences."""

from typing import Any

from visattn.data.classification.cluttered_mnist import BlendMode, ClutterSpec
from visattn.data.classification.digit_sequences import (
    DigitLayout,
    DigitSequences,
    DigitSequenceSpec,
    DigitTarget,
)
from visattn.results.kinds import SPECIAL_TOKENS
from visattn.training.data_module import CanvasDataModule


class DigitSequenceDataModule(CanvasDataModule):
    """Several MNIST digits on one canvas, in a row or scattered, labeled from left to right.

    Each split has as many canvases as digits. `train_transforms` are applied to training canvases,
    such as `RandomInvert`; they must not move pixels, since the boxes would not follow.

    Args:
        layout: `row`: from left to right, each at a random height. `scattered`: anywhere without
            overlap of the digits' boxes.
        target: The labels: the digits from left to right (`sequence`) or their sum (`addition`).
        canvas_size: Height and width of a canvas in pixels.
        min_digits: Smallest number of digits on a canvas.
        max_digits: Largest number of digits on a canvas; all numbers are equally likely.
        scale: Smallest and largest factor by which a digit is resized; drawn for each digit.
        gap: Smallest and largest gap between the digits of a row, in pixels.
        min_offset: Smallest horizontal distance between the centers of scattered digits, in pixels,
            so that their order from left to right is visible.
        num_distractors: Distractors per canvas.
        distractor_size: Height and width of a distractor in pixels.
        blend: Value of a pixel that a distractor covers, as in `ClutteredMNISTDataModule`.
        options: Options of `CanvasDataModule`.
    """

    draw = DigitSequences
    spec: DigitSequenceSpec

    def __init__(
        self,
        *,
        layout: DigitLayout = "row",
        target: DigitTarget = "sequence",
        canvas_size: tuple[int, int] = (48, 160),
        min_digits: int = 1,
        max_digits: int = 5,
        scale: tuple[float, float] = (1.0, 1.0),
        gap: tuple[int, int] = (1, 6),
        min_offset: int = 4,
        num_distractors: int = 0,
        distractor_size: int = 8,
        blend: BlendMode = "sum",
        **options: Any,
    ) -> None:
        height, width = canvas_size
        spec = DigitSequenceSpec(
            layout,
            ClutterSpec((height, width), num_distractors, distractor_size, blend),
            min_digits=min_digits,
            max_digits=max_digits,
            scale=(scale[0], scale[1]),
            gap=(gap[0], gap[1]),
            min_offset=min_offset,
            target=target,
        )
        super().__init__(spec, **options)

    @property
    def data_info(self) -> dict[str, Any]:
        """The names of the classes, as words too, and the largest number of labels."""
        names = [str(number) for number in range(self.spec.num_classes)]
        return {
            "class_names": names,
            "words": [*SPECIAL_TOKENS, *names],
            "max_length": self.spec.max_length,
        }
