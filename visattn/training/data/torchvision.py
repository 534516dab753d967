"""Data module of MNIST, FashionMNIST and CIFAR from torchvision's files."""

from typing import Any, Literal

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from visattn.data.classification.datasets import InMemoryImages, LabeledImages
from visattn.data.classification.torchvision_sets import load_torchvision
from visattn.data.images.augment import Affine, Augmentation, AugmentationSpec
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
        train_transforms: Augmentations of training images, in this order, each with its options if
            it has any: `RandomHorizontalFlip`, `RandomTranslate` and `Affine` transform a whole
            batch at once; other names are those of `torchvision.transforms.v2`.
        batch_transforms: Augmentations of batches of training images after `train_transforms`, on
            the device of the model: `RandomHorizontalFlip`, `RandomTranslate`, `Affine`,
            `RandAugment` or `RandomErasing`.
        affine: Options of `Affine`: rotate, scale and translate the images of all splits; training
            images differently each time, the others always in the same way.
        batch_size: Images per training batch and process.
        num_workers: Worker processes that load training batches; 0 loads them in this process.
        split_seed: Seed of the choice of validation images, and of the affine transforms of
            validation and test images.
        seed: Seed of the order of the images and of their augmentation.
    """

    def __init__(
        self,
        dataset: TorchvisionDataset,
        *,
        root: str,
        download: bool = False,
        val: int = 5000,
        train_transforms: list[AugmentationSpec] | None = None,
        batch_transforms: list[AugmentationSpec] | None = None,
        affine: dict[str, Any] | None = None,
        batch_size: int = 128,
        num_workers: int = 0,
        split_seed: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(
            train_transforms,
            batch_size=batch_size,
            num_workers=num_workers,
            seed=seed,
            batch_transforms=batch_transforms,
        )
        self.dataset: TorchvisionDataset = dataset
        self.root, self.download, self.val = root, download, val
        self.affine = Affine(**affine) if affine else None
        self.split_seed = split_seed
        images, labels, self.class_names = self._load(train=True)
        if not 1 <= val < len(images):
            raise ValueError(
                f"val must be at least 1 and below the number of training images, {len(images)}; "
                f"got {val}"
            )
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(split_seed))
        self._train_files = {
            "validation": (images[order[:val]], labels[order[:val]]),
            "train": (images[order[val:]], labels[order[val:]]),
        }

    @property
    def data_info(self) -> dict[str, Any]:
        """The names of the classes."""
        return {"class_names": list(self.class_names)}

    def split_images(self, split: Split) -> tuple[UInt8[Tensor, "n c y x"], Int[Tensor, " n"]]:
        """Return the original images of a split and their classes."""
        if split == "test":
            images, labels, _ = self._load(train=False)
            return images, labels
        return self._train_files[split]

    def open_dataset(self, split: Split) -> LabeledImages:
        """Return the images of a split with their transforms."""
        images, labels = self.split_images(split)
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

    def _load(
        self, *, train: bool
    ) -> tuple[UInt8[Tensor, "n c y x"], Int[Tensor, " n"], tuple[str, ...]]:
        """Return the images, their classes and the names of the classes."""
        return load_torchvision(self.dataset, self.root, train=train, download=self.download)
