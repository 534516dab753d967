"""Data module of MNIST digit sequences."""

from typing import Any

from torch.utils.data import BatchSampler, DataLoader

from visattn.data.classification.cluttered_mnist import BlendMode, ClutterSpec
from visattn.data.classification.digit_sequences import (
    DigitLayout,
    DigitSequenceBatch,
    DigitSequences,
    DigitSequenceSpec,
    DigitTarget,
)
from visattn.data.images.augment import AugmentationSpec, build_augmentation
from visattn.data.loading.samplers import DistributedEvalSampler, EpochIndexSampler
from visattn.data.loading.stateful_loader import StatefulDataLoader
from visattn.results.kinds import SPECIAL_TOKENS, Split
from visattn.training.data.torchvision import TorchvisionDataModule
from visattn.training.data_module import DataModule

Loader = DataLoader[DigitSequenceBatch]
_EVAL_BATCH_SIZE = 256


class DigitSequenceDataModule(DataModule):
    """Several MNIST digits on one canvas, in a row or scattered, labeled from left to right.

    Each split has as many canvases as digits. Training canvases are new in each epoch; validation
    and test canvases are always the same. The distractors of all splits are cut from training
    digits. The test results have the SHA-256 of the test canvases, so that one can check whether
    two scores belong to the same images.

    Args:
        root: The folder of the files, as torchvision expects it.
        layout: `row`: from left to right, each at a random height. `scattered`: anywhere without
            overlap of the digits' boxes.
        target: The labels: the digits from left to right (`sequence`) or their sum (`addition`).
        canvas_size: Height and width of a canvas in pixels.
        min_digits: Smallest number of digits on a canvas.
        max_digits: Largest number of digits on a canvas; all numbers are equally likely.
        scale: Smallest and largest factor by which a digit is resized; drawn for each digit.
        gap: Smallest and largest gap between the digits of a row, in pixels.
        min_offset: Smallest horizontal distance between the centers of scattered digits, in pixels,
            so that their order from left to right is visible.
        num_distractors: Distractors per canvas.
        distractor_size: Height and width of a distractor in pixels.
        blend: Value of a pixel that a distractor covers, as in `ClutteredMNISTDataModule`.
        download: Download the files if they are missing.
        val: Number of training digits that are used for validation.
        train_transforms: Augmentations of training canvases, as in `TorchvisionDataModule`, such
            as `RandomInvert`. They must not move pixels, since the boxes would not follow.
        batch_size: Canvases per training batch and process.
        num_workers: Worker processes that draw training canvases; 0 draws them in this process.
        split_seed: Seed of the choice of validation digits, and of the canvases of validation and
            test.
        seed: Seed of the order and of the training canvases; at least 0.
    """

    def __init__(
        self,
        *,
        root: str,
        layout: DigitLayout = "row",
        target: DigitTarget = "sequence",
        canvas_size: tuple[int, int] = (48, 160),
        min_digits: int = 1,
        max_digits: int = 5,
        scale: tuple[float, float] = (1.0, 1.0),
        gap: tuple[int, int] = (1, 6),
        min_offset: int = 4,
        num_distractors: int = 0,
        distractor_size: int = 8,
        blend: BlendMode = "sum",
        download: bool = False,
        val: int = 5000,
        train_transforms: list[AugmentationSpec] | None = None,
        batch_size: int = 128,
        num_workers: int = 0,
        split_seed: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        height, width = canvas_size
        self.spec = DigitSequenceSpec(
            layout,
            ClutterSpec((height, width), num_distractors, distractor_size, blend),
            min_digits=min_digits,
            max_digits=max_digits,
            scale=(scale[0], scale[1]),
            gap=(gap[0], gap[1]),
            min_offset=min_offset,
            target=target,
        )
        self.digits = TorchvisionDataModule(
            "MNIST",
            root=root,
            download=download,
            val=val,
            batch_size=batch_size,
            split_seed=split_seed,
        )
        self.train_transforms = tuple(map(build_augmentation, train_transforms or []))
        self.batch_size, self.num_workers = batch_size, num_workers
        self.split_seed, self.seed = split_seed, seed
        self.datasets: dict[Split, DigitSequences] = {}
        self.open_dataset("train")  # checks the sizes now

    @property
    def data_info(self) -> dict[str, Any]:
        """The names of the classes, as words too, and the largest number of labels."""
        names = [str(number) for number in range(self.spec.num_classes)]
        return {
            "class_names": names,
            "words": [*SPECIAL_TOKENS, *names],
            "max_length": self.spec.max_length,
        }

    def open_dataset(self, split: Split) -> DigitSequences:
        """Return the canvases of a split."""
        train_digits, train_labels = self.digits.split_images("train")
        if split == "train":
            return DigitSequences(
                train_digits,
                train_labels,
                self.spec,
                seed=3 * self.seed,
                augmentations=self.train_transforms,
            )
        digits, labels = self.digits.split_images(split)
        seed = 3 * self.split_seed + (1 if split == "validation" else 2)
        return DigitSequences(digits, labels, self.spec, seed=seed, distractor_source=train_digits)

    def setup(self, stage: str) -> None:
        """Open the splits of a stage."""
        stages: dict[str, tuple[Split, ...]] = {"fit": ("train", "validation"), "test": ("test",)}
        for split in stages.get(stage, ("validation",)):
            if split not in self.datasets:
                self.datasets[split] = self.open_dataset(split)

    def train_dataloader(self) -> Loader:
        """Return random batches of training canvases."""
        canvases = self.datasets["train"]
        sampler = EpochIndexSampler(self.train_batch_sampler(len(canvases)))
        return StatefulDataLoader(
            canvases, sampler, num_workers=self.num_workers_for(len(canvases))
        )

    def val_dataloader(self) -> Loader:
        """Return the validation canvases, each once."""
        return self._eval_dataloader("validation")

    def test_dataloader(self) -> Loader:
        """Return the test canvases, each once."""
        return self._eval_dataloader("test")

    def examples(self, count: int) -> list[Any]:
        """Return the first validation canvases, as RGB arrays."""
        self.setup("validate")
        canvases = self.datasets["validation"]
        images = canvases[list(range(min(count, len(canvases))))].images
        return list(images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).numpy())

    def test_notes(self) -> dict[str, Any]:
        """Return the SHA-256 of the test canvases."""
        dataset = self.datasets.get("test")
        return {"test_canvases": f"sha256 {dataset.digest()}"} if dataset else {}

    def _eval_dataloader(self, split: Split) -> Loader:
        dataset = self.datasets[split]
        sampler = DistributedEvalSampler(len(dataset), rank=self.rank, num_replicas=self.world_size)
        batches = BatchSampler(sampler, _EVAL_BATCH_SIZE, drop_last=False)
        return DataLoader(dataset, batch_size=None, sampler=batches)
