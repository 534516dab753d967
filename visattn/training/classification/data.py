"""Data modules of classes: torchvision, folders, drawn scenes, cluttered digits, tables."""

import itertools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from visattn.data.augment.images import (
    Affine,
    Augmentation,
    AugmentationSpec,
    build_augmentation,
    build_batch_transform,
)
from visattn.data.classification.cluttered_mnist import BlendMode, ClutteredMNIST, ClutterSpec
from visattn.data.classification.datasets import (
    ImageFiles,
    InMemoryImages,
    LabeledImages,
    UntransformedBatch,
    WithUniforms,
    find_classes,
    list_labeled_files,
)
from visattn.data.classification.torchvision_sets import TorchvisionSplits
from visattn.data.loading.loader import OnError, PathList
from visattn.data.photo_tables import TableSource
from visattn.data.scenes.dataset import (
    SINGLE_OBJECT,
    SingleObjectScenes,
    single_object_scenes,
)
from visattn.images.reader import LoadedImage
from visattn.images.resize import ResizeMode
from visattn.io.sources import Source
from visattn.results.kinds import Split
from visattn.training.data_module import CanvasDataModule, DataModule, DrawnScenesDataModule


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
        photos: Sequence[Source | LoadedImage],
        labels: Int[Tensor, " n"],
        split: Split,
        file_name: Callable[[int], object],
    ) -> ImageFiles:
        """Return photos resized to the input of the network, with augmentation of training photos.

        `file_name` returns the file of a photo, for warnings.
        """
        return ImageFiles(
            photos,
            labels,
            self.resize,
            self.train_transforms if split == "train" else (),
            seed=self.seed,
            fallback=self.read_fallback(split, len(photos), file_name),
        )


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
            # The size of the chunks belongs to the data: each takes its numbers from the generator
            # in turn, so that another size would give other images.
            images = torch.cat(
                [
                    self.affine(chunk, torch.rand(4, len(chunk), generator=generator).T)
                    for chunk in images.split(1000)
                ]
            )
        return InMemoryImages(images, labels)


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
        self.root = Path(root)
        self.allow_missing_classes = allow_missing_classes
        self.folders = {"train": train, "validation": val, "test": test or val}
        self.resize_mode = resize_mode
        self.on_error = on_error
        self.val_fraction = val_fraction
        self.split_seed = split_seed
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


class ClutteredMNISTDataModule(CanvasDataModule):
    """MNIST digits at random places of a larger canvas, with distractors cut from other digits.

    `train_transforms` are applied to training digits before they are placed; they must keep the
    size of a digit.

    Args:
        canvas_size: Height and width of a canvas in pixels.
        num_distractors: Distractors per canvas; 0 gives translated MNIST.
        distractor_size: Height and width of a distractor in pixels.
        blend: Value of a pixel that a distractor covers: the `sum`, at most 255; the brighter of
            both (`max`); the distractor, also where it is black (`overwrite`); or white with the
            distractor as its opacity (`blend`).
        options: Options of `CanvasDataModule`.
    """

    draw = ClutteredMNIST

    def __init__(
        self,
        *,
        canvas_size: tuple[int, int] = (60, 60),
        num_distractors: int = 0,
        distractor_size: int = 8,
        blend: BlendMode = "sum",
        **options: Any,
    ) -> None:
        height, width = canvas_size
        spec = ClutterSpec((height, width), num_distractors, distractor_size, blend)
        super().__init__(spec, **options)

    def centers(self, split: Split = "test") -> Float[Tensor, "n 2"]:
        """Return the center of each digit, x and y, from -1 to 1 across the canvas."""
        return self.get_dataset(split).centers


class SingleObjectDataModule(DrawnScenesDataModule, ClassificationDataModule):
    """Images of one colored, textured object; its shape is the class.

    Scenes are rendered when a split is opened, about a millisecond each, and kept in memory.

    Args:
        train: Number of training scenes.
        val: Number of validation scenes.
        test: Number of test scenes.
        batch_size: Images per training batch and process.
        options: Options of `DrawnScenesDataModule` and `ClassificationDataModule`.
    """

    def __init__(
        self,
        *,
        train: int = 10_000,
        val: int = 1000,
        test: int = 2000,
        batch_size: int = 64,
        **options: Any,
    ) -> None:
        least, most = SINGLE_OBJECT.num_objects
        super().__init__(
            train=train,
            val=val,
            test=test,
            batch_size=batch_size,
            min_objects=least,
            max_objects=most,
            **options,
        )
        self.class_names = self.config.shapes
        self._rendered: dict[Split, SingleObjectScenes] = {}

    def open_dataset(self, split: Split) -> LabeledImages:
        """Return the images of a split."""
        objects = self.objects(split)
        transforms = self.train_transforms if split == "train" else ()
        return InMemoryImages(objects.images, objects.shapes, transforms, seed=self.seed)

    def centers(self, split: Split = "test") -> Float[Tensor, "n 2"]:
        """Return the center of each object, x and y, from -1 to 1 across the image."""
        return self.objects(split).centers

    def objects(self, split: Split) -> SingleObjectScenes:
        """Return the images and objects of a split, rendered on first use."""
        if split not in self._rendered:
            self._rendered[split] = single_object_scenes(self.scenes(split))
        return self._rendered[split]


class HubClassificationDataModule(ClassificationDataModule):
    """Photos with classes in tables of Hugging Face; otherwise as `FolderDataModule`.

    Args:
        table: The data set; its columns are `image` and `label`: a `ClassLabel`, or texts or
            numbers, of which the training split has all.
        resize_mode: How a photo is resized to the input of the network: `crop` takes the center
            crop, `squash` ignores the aspect ratio, `pad` adds margins.
        on_error: Whether an unreadable training photo is an error (`raise`), or is always replaced
            by the same other photo, with a warning (`substitute`).
        options: Options of `ClassificationDataModule`.
    """

    eval_batch_size = FolderDataModule.eval_batch_size

    def __init__(
        self,
        table: TableSource,
        *,
        resize_mode: ResizeMode = "crop",
        on_error: OnError = "raise",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.tables = table.open("label")
        self.resize_mode = resize_mode
        self.on_error = on_error
        train = self.tables["train"]
        names = train.class_names("label") or sorted(set(map(str, train.values("label"))))
        self.class_names = tuple(names)

    def open_dataset(self, split: Split) -> LabeledImages:
        """Return the photos of a split, resized to the input of the network."""
        table = self.tables[split]
        numbers = {name: number for number, name in enumerate(self.class_names)}
        labels = torch.tensor([numbers[str(name)] for name in table.values("label")])
        return self.resized_dataset(table, labels, split, lambda index: table[index].address)
