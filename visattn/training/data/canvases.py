"""Base class of data modules of MNIST digits that are drawn on canvases."""

from abc import abstractmethod
from typing import Any

from visattn.data.augment.images import AugmentationSpec, build_augmentation
from visattn.data.classification.torchvision_sets import TorchvisionSplits
from visattn.results.kinds import Split
from visattn.training.data_module import DataModule


class CanvasDataModule(DataModule):
    """MNIST digits on canvases, which are drawn when they are read.

    Training canvases are new in each epoch; validation and test canvases are always the same. The
    distractors of all splits are cut from training digits. The test results have the SHA-256 of
    the test canvases, so that one can check whether two scores belong to the same images.

    Args:
        spec: What is drawn.
        root: The folder of the files, as torchvision expects it.
        download: Download the files if they are missing.
        val: Number of training digits that are used for validation.
        train_transforms: Augmentations in the training, in this order, each with its options if it
            has any, as in `ClassificationDataModule`.
        batch_size: Canvases per training batch and process.
        num_workers: Worker processes that draw canvases; 0 draws them in this process.
        split_seed: Seed of the choice of validation digits, and of the canvases of validation and
            test.
        seed: Seed of the order and of the training canvases; at least 0.
    """

    eval_batch_size = 256

    def __init__(
        self,
        spec: Any,
        *,
        root: str,
        download: bool = False,
        val: int = 5000,
        train_transforms: list[AugmentationSpec] | None = None,
        batch_size: int = 128,
        num_workers: int = 0,
        split_seed: int = 0,
        seed: int = 0,
    ) -> None:
        super().__init__(batch_size=batch_size, num_workers=num_workers, seed=seed)
        self.spec, self.split_seed = spec, split_seed
        self.splits = TorchvisionSplits(
            "MNIST", root, val=val, split_seed=split_seed, download=download
        )
        self.class_names = self.splits.class_names
        self.train_transforms = tuple(map(build_augmentation, train_transforms or []))
        self.open_dataset("train")  # checks the sizes now

    @staticmethod
    @abstractmethod
    def draw(*arguments: Any, **options: Any) -> Any:
        """Return the data set of canvases; a subclass names its class."""

    def open_dataset(self, split: Split) -> Any:
        """Return the canvases of a split."""
        train_digits, train_labels = self.splits.images("train")
        if split == "train":
            return self.draw(
                train_digits,
                train_labels,
                self.spec,
                seed=3 * self.seed,
                augmentations=self.train_transforms,
            )
        seed = 3 * self.split_seed + (1 if split == "validation" else 2)
        return self.draw(
            *self.splits.images(split), self.spec, seed=seed, distractor_source=train_digits
        )

    def test_notes(self) -> dict[str, Any]:
        """Return the SHA-256 of the test canvases."""
        dataset = self.datasets.get("test")
        return {"test_canvases": f"sha256 {dataset.digest()}"} if dataset else {}
