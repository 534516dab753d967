"""Pictures with classes as data for training: small ones in memory, photos in folders."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Int, UInt8
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader

from visattn.data.augmentations import Affine, Augmentation, augmentation
from visattn.data.framings import Framing
from visattn.data.labelled_pictures import (
    FramedPhotos,
    HeldPictures,
    LabelledBatch,
    LabelledPictures,
    class_folders,
    labelled_files,
)
from visattn.data.pictures import Picture
from visattn.data.resumable_loaders import ResumableLoader
from visattn.data.samplers import EachOnce, NumberedByEpoch
from visattn.data.substitutes import OnError
from visattn.data.torchvision_files import read_torchvision
from visattn.models.classifiers import ImageClassifier
from visattn.tasks.bases import Task
from visattn.tasks.substitutions import SubstitutingData

Loader = DataLoader[LabelledBatch]
Split = Literal["train", "validation", "test"]
Source = Literal["MNIST", "FashionMNIST", "CIFAR10", "CIFAR100"]
Fit = Literal["crop", "squash", "pad"]
Specs = list[str | dict[str, dict[str, Any]]]


class ClassData(SubstitutingData):
    """Pictures with classes, in three parts; the test part is opened by the test alone.

    Args:
        augment: What happens to training pictures, in this order, each with its options where it
            has some: `Mirror`, `Shift` and `Affine` change a whole batch at once; other names are
            those of `torchvision.transforms.v2`.
        batch: Pictures per training batch and process.
        workers: Processes that read ahead; 0 reads in between.
        seed: Of the order in which pictures come, and of how they are changed.
    """

    evaluated_at_once = 256
    fit: Fit = "crop"
    """How a photo comes into the shape that the network takes."""

    def __init__(self, augment: Specs | None, *, batch: int, workers: int, seed: int) -> None:
        super().__init__()
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")
        self.augmentations = tuple(map(augmentation, augment or []))
        self.batch, self.workers, self.seed = batch, workers, seed
        self.parts: dict[Split, LabelledPictures] = {}

    @abstractmethod
    def part(self, split: Split) -> LabelledPictures:
        """Return the pictures of a split."""

    def setup(self, stage: str) -> None:
        """Open the parts that are needed."""
        needed: tuple[Split, ...] = ("train", "validation") if stage == "fit" else ("validation",)
        for split in ("test",) if stage == "test" else needed:
            if split not in self.parts:
                self.parts[split] = self.part(split)

    def train_dataloader(self) -> Loader:
        """Return random batches of training pictures."""
        pictures = self.parts["train"]
        order = NumberedByEpoch(self.order(len(pictures)))
        return ResumableLoader(pictures, order, workers=self.workers)

    def val_dataloader(self) -> Loader:
        """Return the validation pictures, each once."""
        return self._evaluation("validation")

    def test_dataloader(self) -> Loader:
        """Return the test pictures, each once."""
        return self._evaluation("test")

    def examples(self, count: int) -> list[Any]:
        """Return the first validation pictures, as RGB arrays."""
        self.setup("validate")
        pictures = self.parts["validation"]
        shown = pictures[list(range(min(count, len(pictures))))].pictures
        return list(shown.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy())

    def framing(self) -> Framing:
        """Return how a photo comes into the size that the network takes.

        Raises:
            TypeError: If no classifier is trained.
        """
        task = self.trainer.lightning_module if self.trainer else None
        if not isinstance(task, Task) or not isinstance(task.model, ImageClassifier):
            raise TypeError("photos with classes are for a task that trains a classifier")
        return Framing(task.model.size, fit=self.fit)

    def framed(
        self,
        photos: Sequence[Path | Picture],
        labels: Int[Tensor, " n"],
        split: Split,
        name: Callable[[int], object],
    ) -> FramedPhotos:
        """Return photos as the network takes them; those to train on are changed by chance.

        Args:
            photos: Of any size.
            labels: The class of each.
            split: Which part they are.
            name: Says which file a number means.
        """
        training = split == "train"
        return FramedPhotos(
            photos,
            labels,
            self.framing(),
            self.augmentations if training else (),
            seed=self.seed,
            substitutes=self.stand_ins(len(photos), name) if training else None,
        )

    def _evaluation(self, split: Split) -> Loader:
        each_once = EachOnce(len(self.parts[split]), rank=self.rank, world=self.world)
        batches = BatchSampler(each_once, self.evaluated_at_once, drop_last=False)
        return DataLoader(self.parts[split], batch_size=None, sampler=batches)


class TorchvisionData(ClassData):
    """Digits, clothes or small photos as torchvision reads them; all of them are kept in memory.

    Validation pictures are taken from the training files, which know none.

    Args:
        source: Which of them.
        root: The folder in which torchvision looks for the files.
        download: Fetch the files if they are not there.
        validation: How many training pictures are set aside for validation.
        augment: What happens to training pictures, in this order, each with its options where it
            has some: `Mirror`, `Shift` and `Affine` change a whole batch at once; other names are
            those of `torchvision.transforms.v2`.
        distort: Turn, scale and move the pictures of all parts, as `Affine` takes it: those for
            training anew each time, the others always in the same way.
        batch: Pictures per training batch and process.
        workers: Processes that read ahead; 0 reads in between.
        split_seed: Decides which pictures are for validation, and how the others than those for
            training are distorted.
        seed: Of the order in which pictures come, and of how they are changed.
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
        pictures, labels, self.classes = self._read(train=True)
        if not 1 <= validation < len(pictures):
            raise ValueError(
                f"validation must leave something to train on: at least 1 of {len(pictures)} "
                f"pictures and not all, got {validation}"
            )
        order = torch.randperm(len(pictures), generator=torch.Generator().manual_seed(split_seed))
        self._held = {
            "validation": (pictures[order[:validation]], labels[order[:validation]]),
            "train": (pictures[order[validation:]], labels[order[validation:]]),
        }

    @property
    def data_info(self) -> dict[str, Any]:
        """The names of the classes."""
        return {"classes": list(self.classes)}

    def part(self, split: Split) -> LabelledPictures:
        """Return the pictures of a split, as they are to be seen."""
        pictures, labels = self._held[split] if split != "test" else self._read(train=False)[:2]
        if split == "train":
            before: tuple[Augmentation, ...] = (self.distort,) if self.distort else ()
            changes = (*before, *self.augmentations)
            return HeldPictures(pictures, labels, changes, seed=self.seed)
        if self.distort:
            random = torch.Generator().manual_seed(self.split_seed)
            pictures = torch.cat(
                [
                    self.distort(some, torch.rand(4, len(some), generator=random).T)
                    for some in pictures.split(1000)
                ]
            )
        return HeldPictures(pictures, labels)

    def _read(
        self, *, train: bool
    ) -> tuple[UInt8[Tensor, "n c y x"], Int[Tensor, " n"], tuple[str, ...]]:
        """Return the pictures, their classes and the names of these."""
        return read_torchvision(self.source, self.root, train=train, download=self.download)


class FolderData(ClassData):
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
            some: names of `torchvision.transforms.v2`, or `Mirror`, `Shift`, `Affine`. Photos of
            another size than the network takes are framed afterwards.
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

    def part(self, split: Split) -> LabelledPictures:
        """Return the photos of a split, as the network that is trained or scored takes them."""
        folder = self.folders[split] or str(self.folders["train"])
        files, labels = labelled_files(self.root / folder, self.classes)
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
