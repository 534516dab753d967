"""Base class of data modules of images with classes."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader

from visattn.data.classification.datasets import (
    ImageFiles,
    LabeledBatch,
    LabeledImages,
    UntransformedBatch,
    WithUniforms,
)
from visattn.data.images.augment import AugmentationSpec, build_augmentation
from visattn.data.images.batch_augment import build_batch_transform
from visattn.data.loading.samplers import DistributedEvalSampler, EpochIndexSampler
from visattn.data.loading.stateful_loader import StatefulDataLoader, worker_options
from visattn.images.reader import LoadedImage
from visattn.images.resize import ResizeMode, ResizeSpec
from visattn.results.kinds import Split
from visattn.training.data.fallback import ReadFallbackDataModule
from visattn.training.targets import TargetCounts

Loader = DataLoader[LabeledBatch]


class ClassificationDataModule(ReadFallbackDataModule):
    """Images with classes in three splits; only the test opens the test split.

    Args:
        train_transforms: Augmentations of training images, in this order, each with its options if
            it has any: `RandomHorizontalFlip`, `RandomTranslate` and `Affine` transform a whole
            batch at once; other names are those of `torchvision.transforms.v2`.
        batch_size: Images per training batch and process.
        num_workers: Worker processes that load batches; 0 loads them in this process, null takes
            as many as the cores allow.
        seed: Seed of the order of the images and of their augmentation.
        batch_transforms: Augmentations of batches of training images after `train_transforms`, on
            the device of the model: `RandomHorizontalFlip`, `RandomTranslate`, `Affine`,
            `RandAugment` or `RandomErasing`.
    """

    eval_batch_size = 256
    resize_mode: ResizeMode = "crop"
    """How a photo is resized to the input of the network."""

    def __init__(
        self,
        train_transforms: list[AugmentationSpec] | None,
        *,
        batch_size: int,
        num_workers: int | None,
        seed: int,
        batch_transforms: list[AugmentationSpec] | None = None,
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.train_transforms = tuple(map(build_augmentation, train_transforms or []))
        self.batch_transforms = tuple(map(build_batch_transform, batch_transforms or []))
        self.batch_size, self.num_workers, self.seed = batch_size, num_workers, seed
        self.datasets: dict[Split, LabeledImages] = {}

    @abstractmethod
    def open_dataset(self, split: Split) -> LabeledImages:
        """Return the images of a split."""

    def centers(self, split: Split = "test") -> Float[Tensor, "n 2"] | None:
        """Return the centers of the objects, x and y in [-1, 1]; None if the data have none."""
        return None

    def setup(self, stage: str) -> None:
        """Open the splits of a stage."""
        stages: dict[str, tuple[Split, ...]] = {"fit": ("train", "validation"), "test": ("test",)}
        for split in stages.get(stage, ("validation",)):
            if split not in self.datasets:
                self.datasets[split] = self.open_dataset(split)

    def count_targets(self, split: Split) -> TargetCounts | None:
        """Return the number of images of each class."""
        labels, names = self.datasets[split].labels, self.data_info["class_names"]
        if labels.ndim != 1:
            return None  # sequences
        counts = labels.bincount(minlength=len(names)).tolist()
        cure = "remove the class, or add images of it"
        classes = dict(zip(names, counts, strict=True))
        return TargetCounts(len(labels), "labels", sum(counts), classes, cure=cure)

    def train_dataloader(self) -> Loader:
        """Return random batches of training images."""
        images: Any = self.datasets["train"]
        sampler = EpochIndexSampler(self.train_batch_sampler(len(images)))
        workers = self.num_workers_for(len(images))
        if self.batch_transforms:
            images = WithUniforms(images, self.batch_transforms, seed=self.seed)
        return StatefulDataLoader(images, sampler, num_workers=workers)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Apply the transforms of a batch, and warn of unreadable images."""
        batch = super().on_after_batch_transfer(batch, dataloader_idx)
        if isinstance(batch, UntransformedBatch):
            return batch.transform(self.batch_transforms)
        return batch

    def val_dataloader(self) -> Loader:
        """Return the validation images, each once."""
        return self._eval_dataloader("validation")

    def test_dataloader(self) -> Loader:
        """Return the test images, each once."""
        return self._eval_dataloader("test")

    def examples(self, count: int) -> list[Any]:
        """Return the first validation images, as RGB arrays."""
        self.setup("validate")
        dataset = self.datasets["validation"]
        images = dataset[list(range(min(count, len(dataset))))].images
        return list(images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy())

    @property
    def resize(self) -> ResizeSpec:
        """The resizing of a photo to the input of the network.

        Raises:
            TypeError: If the task does not train a classifier.
        """
        if self.input_spec is None or self.input_spec.encoder is not None:
            raise TypeError(
                f"{type(self).__name__} needs a task that trains a classifier, such as "
                "ClassificationTask, whose input_spec has the size of its images"
            )
        return ResizeSpec(self.input_spec.image_size, mode=self.resize_mode)

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
        training = split == "train"
        return ImageFiles(
            photos,
            labels,
            self.resize,
            self.train_transforms if training else (),
            seed=self.seed,
            fallback=self.train_fallback(len(photos), file_name) if training else None,
        )

    def _eval_dataloader(self, split: Split) -> Loader:
        dataset = self.datasets[split]
        sampler = DistributedEvalSampler(len(dataset), rank=self.rank, num_replicas=self.world_size)
        batches = BatchSampler(sampler, self.eval_batch_size, drop_last=False)
        options = worker_options(self.num_workers_for(len(dataset)))
        return DataLoader(dataset, batch_size=None, sampler=batches, **options)
