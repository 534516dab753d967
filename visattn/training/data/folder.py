"""Photos in folders, one for each class, as data for training."""

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from visattn.data.classification.datasets import LabeledImages, class_folders, labeled_files
from visattn.data.loading.fallback import OnError
from visattn.training.data.classification import ClassificationDataModule, Fit, Specs, Split


class FolderDataModule(ClassificationDataModule):
    """Photos in folders: one folder per split, in it one per class.

    Args:
        root: The folder that holds the splits.
        train: Its folder for training; the names of the classes are those of the folders in it.
        validation: The folder for validation; None sets some of the training photos aside.
        held_out: Share of the training photos that is set aside then, the same of every class.
        test: The folder for the test; the validation photos if left out.
        fit: How a photo comes into the shape that the network takes: its middle (`crop`), all of
            it out of shape (`squash`), or all of it with margins (`pad`).
        augment: What happens to training photos, in this order, each with its options where it has
            some: names of `torchvision.transforms.v2`, or `RandomHorizontalFlip`,
            `RandomTranslate`, `Affine`. Photos of another size than the network takes are framed
            afterwards.
        on_error: A training photo that cannot be read stops the run (`raise`), or another one
            stands in for it, always the same, which is counted and said (`substitute`).
        batch: Photos per training batch and process.
        workers: Processes that read ahead; 0 reads in between.
        split_seed: Decides which training photos are set aside.
        seed: Of the order in which photos come, and of how they are changed.
    """

    evaluated_at_once = 50

    def __init__(
        self,
        root: str,
        *,
        train: str = "train",
        validation: str | None = "val",
        held_out: float = 0.1,
        test: str | None = None,
        fit: Fit = "crop",
        augment: Specs | None = None,
        on_error: OnError = "raise",
        batch: int = 32,
        workers: int = 0,
        split_seed: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(augment, batch=batch, workers=workers, seed=seed)
        self.on_error: OnError = on_error
        if not 0 < held_out < 1:
            raise ValueError(f"held_out must lie between 0 and 1, got {held_out}")
        self.root = Path(root)
        self.folders: dict[Split, str | None] = {
            "train": train,
            "validation": validation,
            "test": test or validation,
        }
        self.fit: Fit = fit
        self.held_out, self.split_seed = held_out, split_seed
        self.classes = tuple(class_folders(self.root / train))

    @property
    def data_info(self) -> dict[str, Any]:
        """The names of the classes."""
        return {"classes": list(self.classes)}

    def part(self, split: Split) -> LabeledImages:
        """Return the photos of a split, as the network that is trained or scored takes them."""
        folder = self.folders[split] or str(self.folders["train"])
        files, labels = labeled_files(self.root / folder, self.classes)
        if self.folders["validation"] is None and folder == self.folders["train"]:
            kept = self._set_aside(labels) ^ (split == "train")
            files = [file for file, keep in zip(files, kept.tolist(), strict=True) if keep]
            labels = labels[kept]
        return self.framed(files, labels, split, files.__getitem__)

    def _set_aside(self, labels: Int[Tensor, " n"]) -> Tensor:
        """Return which of the training photos are for validation: at least one of each class."""
        random = torch.Generator().manual_seed(self.split_seed)
        aside = torch.zeros(len(labels), dtype=torch.bool)
        for number in range(len(self.classes)):
            (own,) = (labels == number).nonzero(as_tuple=True)
            count = max(1, round(self.held_out * len(own)))
            aside[own[torch.randperm(len(own), generator=random)[:count]]] = True
        return aside
