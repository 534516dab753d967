"""Data module of photos in one folder per class."""

import itertools
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from visattn.data.classification.datasets import (
    LabeledImages,
    find_classes,
    list_labeled_files,
)
from visattn.data.loading.loader import OnError, PathList
from visattn.images.resize import ResizeMode
from visattn.results.kinds import Split
from visattn.training.data.classification import ClassificationDataModule


class FolderDataModule(ClassificationDataModule):
    """Photos in `root/SPLIT/CLASS/`, as torchvision's `ImageFolder` reads them.

    Training photos that have another size than the input of the network after `train_transforms`
    are resized.

    Args:
        root: The folder that has one folder per split.
        train: The training folder; its folders are the names of the classes.
        val: The validation folder; null takes the validation photos from the training folder.
        val_fraction: The fraction of the training photos that is taken then, the same in every
            class.
        test: The test folder; by default the validation photos.
        allow_missing_classes: Whether validation and test may lack photos of classes of the
            training; scores then leave these classes out.
        resize_mode: How a photo is resized to the input of the network: `crop` takes the center
            crop, `squash` ignores the aspect ratio, `pad` adds margins.
        on_error: Whether an unreadable training photo is an error (`raise`), or is always replaced
            by the same other photo, with a warning (`substitute`).
        split_seed: Seed of the choice of validation photos.
        options: Options of `ClassificationDataModule`.
    """

    eval_batch_size = 50

    def __init__(
        self,
        root: str,
        *,
        train: str = "train",
        val: str | None = "val",
        val_fraction: float = 0.1,
        test: str | None = None,
        allow_missing_classes: bool = False,
        resize_mode: ResizeMode = "crop",
        on_error: OnError = "raise",
        split_seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if not 0 < val_fraction < 1:
            raise ValueError(f"val_fraction must lie between 0 and 1, got {val_fraction}")
        self.root, self.allow_missing_classes = Path(root), allow_missing_classes
        self.folders = {"train": train, "validation": val, "test": test or val}
        self.resize_mode, self.on_error = resize_mode, on_error
        self.val_fraction, self.split_seed = val_fraction, split_seed
        self.class_names = tuple(find_classes(self.root / train))

    def open_dataset(self, split: Split) -> LabeledImages:
        """Return the photos of a split, resized to the input of the network."""
        folder = self.folders[split] or str(self.folders["train"])
        allowed = self.allow_missing_classes and folder != self.folders["train"]
        files, labels = list_labeled_files(
            self.root / folder, self.class_names, allow_missing=allowed
        )
        if self.folders["validation"] is None and folder == self.folders["train"]:
            keep = self._validation_mask(labels) ^ (split == "train")
            files = PathList(itertools.compress(files, keep.tolist()))
            labels = labels[keep]
        return self.resized_dataset(files, labels, split, files.__getitem__)

    def _validation_mask(self, labels: Int[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """Return which training photos are for validation: at least one of each class."""
        generator = torch.Generator().manual_seed(self.split_seed)
        mask = torch.zeros(len(labels), dtype=torch.bool)
        for label in range(len(self.class_names)):
            (indices,) = (labels == label).nonzero(as_tuple=True)
            count = max(1, round(self.val_fraction * len(indices)))
            mask[indices[torch.randperm(len(indices), generator=generator)[:count]]] = True
        return mask
