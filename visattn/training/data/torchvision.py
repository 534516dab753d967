"""Data module of MNIST, FashionMNIST and CIFAR from torchvision's files."""

from typing import Any, Literal

import torch

from visattn.data.augment.images import Affine, Augmentation
from visattn.data.classification.datasets import InMemoryImages, LabeledImages
from visattn.data.classification.torchvision_sets import TorchvisionSplits
from visattn.results.kinds import Split
from visattn.training.data.classification import ClassificationDataModule

TorchvisionDataset = Literal["MNIST", "FashionMNIST", "CIFAR10", "CIFAR100"]


class TorchvisionDataModule(ClassificationDataModule):
    """A small dataset of torchvision, kept in memory.

    Validation images are taken from the training images, since these datasets have none.

    Args:
        dataset: Name of the dataset.
        root: The folder of the files, as torchvision expects it.
        download: Download the files if they are missing.
        val: Number of training images that are used for validation.
        affine: Options of `Affine`: rotate, scale and translate the images of all splits; training
            images differently each time, the others always in the same way.
        batch_size: Images per training batch and process.
        num_workers: Worker processes that load batches; 0 loads them in this process.
        split_seed: Seed of the choice of validation images, and of the affine transforms of
            validation and test images.
        options: Options of `ClassificationDataModule`.
    """

    def __init__(
        self,
        dataset: TorchvisionDataset,
        *,
        root: str,
        download: bool = False,
        val: int = 5000,
        affine: dict[str, Any] | None = None,
        batch_size: int = 128,
        num_workers: int = 0,
        split_seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(batch_size=batch_size, num_workers=num_workers, **options)
        self.splits = TorchvisionSplits(
            dataset, root, val=val, split_seed=split_seed, download=download
        )
        self.class_names = self.splits.class_names
        self.affine = Affine(**affine) if affine else None
        self.split_seed = split_seed

    def open_dataset(self, split: Split) -> LabeledImages:
        """Return the images of a split with their transforms."""
        images, labels = self.splits.images(split)
        if split == "train":
            affine: tuple[Augmentation, ...] = (self.affine,) if self.affine else ()
            transforms = (*affine, *self.train_transforms)
            return InMemoryImages(images, labels, transforms, seed=self.seed)
        if self.affine:
            generator = torch.Generator().manual_seed(self.split_seed)
            images = torch.cat(
                [
                    self.affine(chunk, torch.rand(4, len(chunk), generator=generator).T)
                    for chunk in images.split(1000)
                ]
            )
        return InMemoryImages(images, labels)
