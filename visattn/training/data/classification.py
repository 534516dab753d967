"""Images with classes as data for training."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader

from visattn.data.classification.datasets import FramedPhotos, LabeledBatch, LabeledImages
from visattn.data.images.augment import augmentation
from visattn.data.images.reader import LoadedImage
from visattn.data.images.resize import ResizeSpec
from visattn.data.loading.samplers import DistributedEvalSampler, EpochIndexSampler
from visattn.data.loading.stateful_loader import StatefulDataLoader
from visattn.models.classifier import ImageClassifier
from visattn.training.base import Task
from visattn.training.data.fallback import ReadFallbackDataModule

Loader = DataLoader[LabeledBatch]
Split = Literal["train", "validation", "test"]
Fit = Literal["crop", "squash", "pad"]
Specs = list[str | dict[str, dict[str, Any]]]


class ClassificationDataModule(ReadFallbackDataModule):
    """Images with classes, in three parts; the test part is opened by the test alone.

    Args:
        augment: What happens to training images, in this order, each with its options where it
            has some: `RandomHorizontalFlip`, `RandomTranslate` and `Affine` change a whole batch
            at once; other names are those of `torchvision.transforms.v2`.
        batch: Images per training batch and process.
        workers: Processes that read ahead; 0 reads in between.
        seed: Of the order in which images come, and of how they are changed.
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
        self.parts: dict[Split, LabeledImages] = {}

    @abstractmethod
    def part(self, split: Split) -> LabeledImages:
        """Return the images of a split."""

    def centers(self, split: Split = "test") -> Float[Tensor, "n 2"] | None:
        """Return x and y, in [-1, 1], of what is to be named; None if the data do not know."""
        return None

    def setup(self, stage: str) -> None:
        """Open the parts that are needed."""
        needed: tuple[Split, ...] = ("train", "validation") if stage == "fit" else ("validation",)
        for split in ("test",) if stage == "test" else needed:
            if split not in self.parts:
                self.parts[split] = self.part(split)

    def train_dataloader(self) -> Loader:
        """Return random batches of training images."""
        images = self.parts["train"]
        order = EpochIndexSampler(self.order(len(images)))
        return StatefulDataLoader(images, order, workers=self.workers)

    def val_dataloader(self) -> Loader:
        """Return the validation images, each once."""
        return self._evaluation("validation")

    def test_dataloader(self) -> Loader:
        """Return the test images, each once."""
        return self._evaluation("test")

    def examples(self, count: int) -> list[Any]:
        """Return the first validation images, as RGB arrays."""
        self.setup("validate")
        images = self.parts["validation"]
        shown = images[list(range(min(count, len(images))))].images
        return list(shown.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy())

    def framing(self) -> ResizeSpec:
        """Return how a photo comes into the size that the network takes.

        Raises:
            TypeError: If no classifier is trained.
        """
        task = self.trainer.lightning_module if self.trainer else None
        if not isinstance(task, Task) or not isinstance(task.model, ImageClassifier):
            raise TypeError("photos with classes are for a task that trains a classifier")
        return ResizeSpec(task.model.size, fit=self.fit)

    def framed(
        self,
        photos: Sequence[Path | LoadedImage],
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
        each_once = DistributedEvalSampler(len(self.parts[split]), rank=self.rank, world=self.world)
        batches = BatchSampler(each_once, self.evaluated_at_once, drop_last=False)
        return DataLoader(self.parts[split], batch_size=None, sampler=batches)
