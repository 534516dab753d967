"""Data module of images with one class each."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torchvision.transforms import v2

from visattn.data.classification.datasets import collate_labeled, labeled_input
from visattn.data.source import AnySource
from visattn.results.kinds import Split
from visattn.training.data_module import DataModule


class ClassificationData(DataModule):
    """Images with one class each: samples are a photo and its class, by number or name.

    Args:
        source: Returns the samples of a split, such as `ClassFolders`.
        train_transforms: Random transforms of training images, in this order, by the names of
            `torchvision.transforms.v2`. Photos are resized afterwards.
        transforms: Random transforms of the images of all splits, before the others; those of
            validation and test images are the same in every run.
        balanced: Whether all classes are sampled equally often in training.
        options: Options of `DataModule`.

    Example:
        >>> def gray(split):
        ...     photos = torch.tensor([3, 200]).byte()[:, None, None, None].expand(-1, 3, 8, 8)
        ...     return list(zip(photos, ("dark", "bright"), strict=True))
        >>> data = ClassificationData(gray, batch_size=2)
        >>> data.class_names
        ('bright', 'dark')
        >>> [batch.labels.sum() for batch in data.train_dataloader()]
        [tensor(1)]
    """

    eval_batch_size = 256
    collate_fn = staticmethod(collate_labeled)
    pin_memory = True
    needed_task = "that trains a classifier, such as ClassificationTask"

    def __init__(
        self,
        source: AnySource,
        *,
        train_transforms: list[v2.Transform] | None = None,
        transforms: list[v2.Transform] | None = None,
        balanced: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(source, **options)
        self.transforms = transforms or []
        self.train_transforms = train_transforms or []
        self.balanced = balanced
        names = getattr(source, "class_names", ()) or sorted(
            {str(label) for _, label in self.samples("train")}
        )
        self.class_names = tuple(names)
        self._numbers = {name: number for number, name in enumerate(self.class_names)}

    def prepare(self, split: Split) -> Callable[[Any, int], Any]:
        """Return the function from a sample to an image."""
        return partial(
            labeled_input,
            numbers=self._numbers,
            # A script may read in-memory images without a task, which are not resized.
            resize=self.resize if self.input_spec else None,
            transforms=[*self.transforms, *self.random(split)],
            value_range=self.value_range,
        )

    def labels(self, split: Split) -> list[int] | None:
        """Return the class of each image; None if it is only known when the image is generated."""
        samples = self.samples(split)
        if isinstance(known := getattr(samples, "labels", None), Tensor):
            return known.tolist()
        if not isinstance(samples, list):
            return None
        return [label if isinstance(label, int) else self._numbers.get(str(label), -1)
                for _, label in samples]  # fmt: skip

    def weights(self) -> Float[Tensor, " n"] | None:
        """Return sampling weights, higher for images of rare classes."""
        labels = self.labels("train")
        if not self.balanced or labels is None:
            return None
        numbers = torch.tensor(labels)
        return 1 / numbers.bincount()[numbers].float()

    def count_targets(self, split: Split) -> tuple[str, Counter[str]] | None:
        """Return the number of images of each class."""
        if (labels := self.labels(split)) is None:
            return None
        counts = Counter(dict.fromkeys(self.class_names, 0) if split == "train" else {})
        counts.update(
            self.class_names[number] if number >= 0 else "another class" for number in labels
        )
        return "images", counts
