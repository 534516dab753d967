"""Data module of digit sequences."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torchvision.transforms import v2

from visattn.data.augment import augment
from visattn.data.classification.digit_sequences import DigitCanvases, collate_sequences
from visattn.results.kinds import SPECIAL_TOKENS, Split
from visattn.training.data_module import DataModule


class SequenceData(DataModule):
    """Canvases with several digits, labeled from left to right.

    Args:
        source: Returns the canvases of a split.
        train_transforms: Random transforms of training canvases, such as `RandomInvert`; they must
            not move pixels, since boxes are not transformed.
        options: Options of `DataModule`.
    """

    eval_batch_size = 256
    collate_fn = staticmethod(collate_sequences)
    pin_memory = True
    source: DigitCanvases

    def __init__(
        self,
        source: DigitCanvases,
        *,
        train_transforms: list[v2.Transform] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(source, **options)
        self.train_transforms = train_transforms or []
        self.class_names = source.class_names

    @property
    def data_info(self) -> dict[str, Any]:
        """The class names, also as words, and the maximum number of labels."""
        return {
            "class_names": list(self.class_names),
            "words": [*SPECIAL_TOKENS, *self.class_names],
            "max_length": self.source.spec.max_length,
        }

    def prepare(self, split: Split) -> Callable[[Any, int], Any]:
        """Return the function from a canvas to an input."""
        return partial(_canvas, transforms=self.random(split))


def _canvas(sample: tuple[Tensor, ...], seed: int, *, transforms: Sequence[v2.Transform]) -> Any:
    return augment(transforms, seed, sample[0])[0], *sample[1:]
