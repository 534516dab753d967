"""Base class of data modules of images with classes."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxtyping import Int
from torch import Tensor

from visattn.data.augment.images import AugmentationSpec, build_augmentation, build_batch_transform
from visattn.data.classification.datasets import (
    ImageFiles,
    LabeledImages,
    UntransformedBatch,
    WithUniforms,
)
from visattn.images.reader import LoadedImage
from visattn.results.kinds import Split
from visattn.training.data_module import DataModule
from visattn.training.targets import TargetCounts


class ClassificationDataModule(DataModule):
    """Images with classes in three splits.

    Args:
        train_transforms: Augmentations of training images, in this order, each with its options if
            it has any: `RandomHorizontalFlip`, `RandomTranslate` and `Affine` transform a whole
            batch at once; other names are those of `torchvision.transforms.v2`.
        batch_transforms: Augmentations of batches of training images after `train_transforms`, on
            the device of the model: `RandomHorizontalFlip`, `RandomTranslate`, `Affine`,
            `RandAugment` or `RandomErasing`.
        options: Options of `DataModule`.
    """

    eval_batch_size = 256
    needed_task = (
        "that trains a classifier, such as ClassificationTask, whose input_spec has the size of "
        "its images"
    )

    def __init__(
        self,
        train_transforms: list[AugmentationSpec] | None = None,
        *,
        batch_transforms: list[AugmentationSpec] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.train_transforms = tuple(map(build_augmentation, train_transforms or []))
        self.batch_transforms = tuple(map(build_batch_transform, batch_transforms or []))

    @abstractmethod
    def open_dataset(self, split: Split) -> LabeledImages:
        """Return the images of a split."""

    def count_targets(self, split: Split) -> TargetCounts | None:
        """Return the number of images of each class."""
        labels = self.datasets[split].labels
        if labels.ndim != 1:
            return None  # sequences
        return TargetCounts.of_labels(labels, self.data_info["class_names"])

    def train_samples(self) -> LabeledImages | WithUniforms:
        """Return the training images, with random numbers for the transforms of a batch."""
        images = super().train_samples()
        if not self.batch_transforms:
            return images
        return WithUniforms(images, self.batch_transforms, seed=self.seed)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Apply the transforms of a batch, and warn of unreadable images."""
        batch = super().on_after_batch_transfer(batch, dataloader_idx)
        if isinstance(batch, UntransformedBatch):
            return batch.transform(self.batch_transforms)
        return batch

    def resized_dataset(
        self,
        photos: Sequence[Path | LoadedImage],
        labels: Int[Tensor, " n"],
        split: Split,
        file_name: Callable[[int], object],
    ) -> ImageFiles:
        """Return photos resized to the input of the network, with augmentation of training photos.

        Args:
            photos: Photos of any size.
            labels: Class of each photo.
            split: Their split.
            file_name: Returns the file of a photo, for warnings.
        """
        return ImageFiles(
            photos,
            labels,
            self.resize,
            self.train_transforms if split == "train" else (),
            seed=self.seed,
            fallback=self.read_fallback(split, len(photos), file_name),
        )
