"""The base class of data modules."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from lightning import LightningDataModule

from visattn.data.loading.samplers import LengthBucketBatchSampler
from visattn.data.loading.stateful_loader import default_num_workers
from visattn.models.encoder import ImageEncoder
from visattn.training.targets import TargetCounts


@dataclass(frozen=True)
class InputSpec:
    """Input that a model expects; its task hands it to the data module before `setup`.

    Args:
        image_size: Height and width in pixels.
        mean: Mean of each color channel, in [0, 1].
        std: Standard deviation of each color channel, in [0, 1].
        encoder: The image encoder of a captioner, whose features a data module may cache; None
            for other models.
    """

    image_size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    encoder: ImageEncoder | None = None


class DataModule(LightningDataModule, ABC):
    """Training, validation and test data."""

    batch_size: int
    """Samples per training batch and process."""
    num_workers: int | None
    """Worker processes that load batches; None for `num_workers_for` to choose."""
    seed: int
    """Seed of the order of the training samples."""
    input_spec: InputSpec | None = None
    """The input that the model expects; the task sets it before `setup`."""

    @property
    @abstractmethod
    def data_info(self) -> dict[str, Any]:
        """Plain values from which a task builds its model, such as the names of the classes."""

    def examples(self, count: int) -> list[Any]:
        """Return the first validation images, as `read_image` accepts them."""
        raise NotImplementedError(f"{type(self).__name__} has no images to show")

    def count_targets(self, split: Any) -> TargetCounts | None:
        """Return what the loss will read of a split; None if it cannot be counted beforehand.

        Args:
            split: `train` or `validation`, after `setup("fit")`.

        Raises:
            ValueError: If annotations do not fit their images.
        """
        return None

    def test_notes(self) -> dict[str, Any]:
        """Return facts about the test images that are written beside the test results."""
        return {}

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self.trainer.global_rank if self.trainer else 0

    @property
    def world_size(self) -> int:
        """The number of processes."""
        return self.trainer.world_size if self.trainer else 1

    def num_workers_for(self, count: int) -> int:
        """Return the number of worker processes that load a dataset.

        Args:
            count: Number of its samples.
        """
        if self.num_workers is not None:
            return self.num_workers
        shared = getattr(self.trainer, "num_devices", 1)
        return default_num_workers(count, num_processes=shared)

    def train_batch_sampler(
        self, count: int, *, length: Callable[[int], int] = lambda _: 0, batches_per_pool: int = 1
    ) -> LengthBucketBatchSampler:
        """Return the batch sampler of the training samples of this process.

        Args:
            count: Number of training samples.
            length: Length of a sample; a batch has samples of similar length.
            batches_per_pool: Number of batches that are sorted by length together.
        """
        return LengthBucketBatchSampler(
            count,
            length,
            batch_size=self.batch_size,
            batches_per_pool=batches_per_pool,
            seed=self.seed,
            rank=self.rank,
            num_replicas=self.world_size,
        )

    def transfer_batch_to_device(
        self, batch: Any, device: torch.device, dataloader_idx: int
    ) -> Any:
        """Move the tensors of a batch to a device."""
        return batch.to(device)
