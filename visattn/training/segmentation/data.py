"""Data module of images with a class for each pixel."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from torchvision.transforms import v2

from visattn.data.augment import fill_outside
from visattn.data.regions.annotations import AnnotatedImage
from visattn.data.regions.segmentation import SegmentationInput, collate_segmentation
from visattn.data.source import AnySource
from visattn.images.reader import ImageError, read_label_image
from visattn.results.kinds import BACKGROUND, IGNORE_CLASS, Split
from visattn.training.data_module import DataModule

_NUM_EXAMPLES = 16


class SegmentationData(DataModule):
    """Images with a class for each pixel: samples are a photo and a mask, or an `AnnotatedImage`.

    Args:
        source: Returns the samples of a split, such as `MaskFolders` or `CocoInstances`.
        class_names: Names of the classes; by default the background and the categories of the
            source.
        class_map: Class of each value in a mask; 255 is ignored in losses and metrics. By default
            the values are the classes.
        train_transforms: Random transforms of training images with their masks, in this order, by
            the names of `torchvision.transforms.v2`. Photos are resized afterwards.
        options: Options of `DataModule`.
    """

    eval_batch_size = None
    collate_fn = staticmethod(collate_segmentation)
    pin_memory = True
    default_resize = "pad"
    needed_task = "that trains a dense model, such as SegmentationTask"

    def __init__(
        self,
        source: AnySource,
        *,
        class_names: list[str] | None = None,
        class_map: dict[int, int] | None = None,
        train_transforms: list[v2.Transform] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(source, **options)
        known = getattr(source, "class_names", ())
        self.class_names = tuple(class_names or (BACKGROUND, *known))
        self.class_map = class_map
        self.train_transforms = fill_outside(train_transforms or [])

    def prepare(self, split: Split) -> Callable[[Any, int], Any]:
        """Return the function from a sample to an image and its label map."""
        return SegmentationInput(
            {name: number for number, name in enumerate(self.class_names)},
            self.resize,
            self.random(split),
            self.class_map,
            self.value_range,
        )

    def count_targets(self, split: Split) -> tuple[str, Counter[str]] | None:
        """Return the number of objects of each category that have a mask, without crowds."""
        samples = self.samples(split)
        if not isinstance(samples, list) or not isinstance(samples[0], AnnotatedImage):
            return None
        counts = Counter(dict.fromkeys(self.class_names[1:], 0))
        for image in samples:
            counts.update(
                annotated.category
                for annotated in image.objects
                if annotated.category in counts
                and annotated.segmentation is not None
                and not annotated.crowd
            )
        return "objects with a mask", counts

    def remarks(self) -> Iterator[str]:
        """Check that masks have a class that is not ignored.

        Raises:
            ValueError: If all values are 0 or 255.
        """
        yield from super().remarks()
        samples = self.samples("train")
        if self.class_map is not None or not isinstance(samples[0], tuple):
            return
        numbers: set[int] = set()
        for _, mask in samples[:: max(1, len(samples) // _NUM_EXAMPLES)]:
            with suppress(ImageError):
                numbers.update(np.unique(read_label_image(mask)).tolist())
        if numbers == {0, IGNORE_CLASS}:
            raise ValueError(
                "the masks have only the values 0 and 255, and 255 is ignored by default: set "
                "class_map: {0: 0, 255: 1}"
            )
