"""Small images with classes as data for training, as torchvision reads them."""

from typing import Any, Literal

import torch
from jaxtyping import Int, UInt8
from torch import Tensor

from visattn.data.classification.datasets import HeldImages, LabeledImages
from visattn.data.classification.torchvision_sets import read_torchvision
from visattn.data.images.augment import Affine, Augmentation
from visattn.training.data.classification import ClassificationDataModule, Specs, Split

Source = Literal["MNIST", "FashionMNIST", "CIFAR10", "CIFAR100"]


class TorchvisionDataModule(ClassificationDataModule):
    """Digits, clothes or small photos as torchvision reads them; all of them are kept in memory.

    Validation images are taken from the training files, which know none.

    Args:
        source: Which of them.
        root: The folder in which torchvision looks for the files.
        download: Fetch the files if they are not there.
        validation: How many training images are set aside for validation.
        augment: What happens to training images, in this order, each with its options where it
            has some: `RandomHorizontalFlip`, `RandomTranslate` and `Affine` change a whole batch
            at once; other names are those of `torchvision.transforms.v2`.
        distort: Turn, scale and move the images of all parts, as `Affine` takes it: those for
            training anew each time, the others always in the same way.
        batch: Images per training batch and process.
        workers: Processes that read ahead; 0 reads in between.
        split_seed: Decides which images are for validation, and how the others than those for
            training are distorted.
        seed: Of the order in which images come, and of how they are changed.
    """

    def __init__(
        self,
        source: Source,
        *,
        root: str,
        download: bool = False,
        validation: int = 5000,
        augment: Specs | None = None,
        distort: dict[str, Any] | None = None,
        batch: int = 128,
        workers: int = 0,
        split_seed: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(augment, batch=batch, workers=workers, seed=seed)
        self.source: Source = source
        self.root, self.download, self.validation = root, download, validation
        self.distort = Affine(**distort) if distort else None
        self.split_seed = split_seed
        images, labels, self.classes = self._read(train=True)
        if not 1 <= validation < len(images):
            raise ValueError(
                f"validation must leave something to train on: at least 1 of {len(images)} "
                f"images and not all, got {validation}"
            )
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(split_seed))
        self._held = {
            "validation": (images[order[:validation]], labels[order[:validation]]),
            "train": (images[order[validation:]], labels[order[validation:]]),
        }

    @property
    def data_info(self) -> dict[str, Any]:
        """The names of the classes."""
        return {"classes": list(self.classes)}

    def part(self, split: Split) -> LabeledImages:
        """Return the images of a split, as they are to be seen."""
        images, labels = self._held[split] if split != "test" else self._read(train=False)[:2]
        if split == "train":
            before: tuple[Augmentation, ...] = (self.distort,) if self.distort else ()
            changes = (*before, *self.augmentations)
            return HeldImages(images, labels, changes, seed=self.seed)
        if self.distort:
            random = torch.Generator().manual_seed(self.split_seed)
            images = torch.cat(
                [
                    self.distort(some, torch.rand(4, len(some), generator=random).T)
                    for some in images.split(1000)
                ]
            )
        return HeldImages(images, labels)

    def _read(
        self, *, train: bool
    ) -> tuple[UInt8[Tensor, "n c y x"], Int[Tensor, " n"], tuple[str, ...]]:
        """Return the images, their classes and the names of these."""
        return read_torchvision(self.source, self.root, train=train, download=self.download)
