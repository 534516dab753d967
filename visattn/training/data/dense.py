"""Base class of the data modules of segmentation and detection."""

from abc import abstractmethod
from collections.abc import Callable, Sequence, Sized
from typing import Any

from torch.utils.data import BatchSampler, DataLoader

from visattn.data.images.joint_transforms import JointTransforms
from visattn.data.loading.samplers import DistributedEvalSampler, EpochIndexSampler
from visattn.data.loading.stateful_loader import StatefulDataLoader
from visattn.data.scenes.dataset import Split
from visattn.images.resize import ResizeMode, ResizeSpec
from visattn.training.data.fallback import ReadFallbackDataModule


class DenseDataModule(ReadFallbackDataModule):
    """Images with masks or boxes in splits; only the test opens the test split.

    Args:
        train_transforms: Random transforms of training images with their masks and boxes; None for
            none.
        batch_size: Images per batch and process.
        num_workers: Worker processes that load batches; 0 loads them in this process, null takes
            as many as the cores allow.
        seed: Seed of the order of the images and of their transforms.

    Raises:
        ValueError: If the batch size is below 1.
    """

    class_names: tuple[str, ...]
    """Names of the classes, in the order of their numbers."""
    resize_mode: ResizeMode = "pad"
    """How an image is resized to the input of the network."""
    collate: Callable[[list[Any]], Any] | None = None
    """Makes a batch of samples; None if a dataset is indexed with whole batches."""

    def __init__(
        self,
        train_transforms: JointTransforms | None,
        *,
        batch_size: int,
        num_workers: int | None,
        seed: int,
    ) -> None:
        super().__init__()
        if batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {batch_size}")
        self.train_transforms = train_transforms
        self.batch_size, self.num_workers, self.seed = batch_size, num_workers, seed
        self.datasets: dict[Split, Any] = {}

    @property
    def data_info(self) -> dict[str, Any]:
        """The names of the classes."""
        return {"class_names": list(self.class_names)}

    @abstractmethod
    def open_dataset(self, split: Split) -> Sized:
        """Return the images of a split."""

    def count_in_samples(self, split: Split, indices: list[int]) -> int:
        """Return the number of targets that the loss reads of some images, transformed."""
        raise NotImplementedError

    def check_samples(self, split: Split, indices: Sequence[int]) -> None:
        """Refuse transforms after which nothing is left of the targets of images.

        Args:
            split: A split that is open.
            indices: Images with targets.

        Raises:
            ValueError: If none of them has a target when the loss reads it.
        """
        if indices and not self.count_in_samples(split, list(indices)):
            options = "train_transforms and resize_mode" if split == "train" else "resize_mode"
            raise ValueError(
                f"no target is left in {len(indices)} images of the {split} split that have some: "
                f"{options} move them out of the image"
            )

    @property
    def test_splits(self) -> tuple[Split, ...]:
        """The splits that the test reads."""
        return ("test",)

    @property
    def resize(self) -> ResizeSpec:
        """The resizing of an image to the input of the network.

        Raises:
            TypeError: If the task does not train a dense model.
        """
        if self.input_spec is None or self.input_spec.encoder is not None:
            raise TypeError(
                f"{type(self).__name__} needs a task that trains a dense model, such as "
                "SegmentationTask or DetectionTask, whose input_spec has the size of its images"
            )
        return ResizeSpec(self.input_spec.image_size, mode=self.resize_mode)

    def setup(self, stage: str) -> None:
        """Open the splits of a stage."""
        stages = {"fit": ("train", "validation"), "test": self.test_splits}
        for split in stages.get(stage, ("validation",)):
            if split not in self.datasets:
                self.datasets[split] = self.open_dataset(split)

    def train_dataloader(self) -> DataLoader[Any]:
        """Return random batches of training images."""
        images = self.datasets["train"]
        sampler = EpochIndexSampler(self.train_batch_sampler(len(images)))
        return StatefulDataLoader(
            images,
            sampler,
            collate_fn=self._collate,
            num_workers=self.num_workers_for(len(images)),
        )

    def val_dataloader(self) -> DataLoader[Any]:
        """Return the validation images, each once."""
        return self._eval_dataloader("validation")

    def test_dataloader(self) -> list[DataLoader[Any]]:
        """Return the images of the test splits, each once."""
        return [self._eval_dataloader(split) for split in self.test_splits]

    def transforms_of(self, split: Split) -> JointTransforms | None:
        """Return the random transforms of a split; None for all but the training split."""
        return self.train_transforms if split == "train" else None

    @property
    def _collate(self) -> Callable[[list[Any]], Any] | None:
        return type(self).collate  # not bound to the data module

    def _eval_dataloader(self, split: Split) -> DataLoader[Any]:
        dataset = self.datasets[split]
        sampler = DistributedEvalSampler(len(dataset), rank=self.rank, num_replicas=self.world_size)
        batches = BatchSampler(sampler, self.batch_size, drop_last=False)
        if (collate := self._collate) is None:
            return DataLoader(dataset, batch_size=None, sampler=batches)
        return DataLoader(dataset, batch_sampler=batches, collate_fn=collate)
