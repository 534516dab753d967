"""Pictures with classes as data for training."""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor
from torch.utils.data import BatchSampler, DataLoader

from visattn.data.augmentations import augmentation
from visattn.data.framings import Framing
from visattn.data.labelled_pictures import FramedPhotos, LabelledBatch, LabelledPictures
from visattn.data.pictures import Picture
from visattn.data.resumable_loaders import ResumableLoader
from visattn.data.samplers import EachOnce, NumberedByEpoch
from visattn.models.classifiers import ImageClassifier
from visattn.tasks.bases import Task
from visattn.tasks.substitutions import SubstitutingData

Loader = DataLoader[LabelledBatch]
Split = Literal["train", "validation", "test"]
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

    def centres(self, split: Split = "test") -> Float[Tensor, "n 2"] | None:
        """Return x and y, in [-1, 1], of what is to be named; None if the data do not know."""
        return None

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
