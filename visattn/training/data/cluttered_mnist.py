"""Data module of translated and cluttered MNIST."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from visattn.data.classification.cluttered_mnist import BlendMode, ClutteredMNIST, ClutterSpec
from visattn.data.images.augment import AugmentationSpec
from visattn.results.kinds import Split
from visattn.training.data.torchvision import TorchvisionDataModule


class ClutteredMNISTDataModule(TorchvisionDataModule):
    """MNIST digits at random places of a larger canvas, with distractors cut from other digits.

    Training canvases are new in each epoch; validation and test canvases are always the same. The
    distractors of all splits are cut from training digits. The test results have the SHA-256 of
    the test canvases, so that one can check whether two scores belong to the same images.

    Args:
        root: The folder of the files, as torchvision expects it.
        canvas_size: Height and width of a canvas in pixels.
        num_distractors: Distractors per canvas; 0 gives translated MNIST.
        distractor_size: Height and width of a distractor in pixels.
        blend: Value of a pixel that a distractor covers: the `sum`, at most 255; the brighter of
            both (`max`); the distractor, also where it is black (`overwrite`); or white with the
            distractor as its opacity (`blend`).
        download: Download the files if they are missing.
        val: Number of training digits that are used for validation.
        train_transforms: Augmentations of training digits before they are placed, as in
            `TorchvisionDataModule`; they must keep the size of a digit.
        batch_size: Digits per training batch and process.
        num_workers: Worker processes that load training batches; 0 loads them in this process.
        split_seed: Seed of the choice of validation digits, and of the canvases of validation and
            test.
        seed: Seed of the order of the digits and of the training canvases; at least 0.
    """

    def __init__(
        self,
        *,
        root: str,
        canvas_size: tuple[int, int] = (60, 60),
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
        height, width = canvas_size
        self.clutter = ClutterSpec((height, width), num_distractors, distractor_size, blend)
        super().__init__(
            "MNIST",
            root=root,
            download=download,
            val=val,
            train_transforms=train_transforms,
            batch_size=batch_size,
            num_workers=num_workers,
            split_seed=split_seed,
            seed=seed,
        )
        self.open_dataset("train")  # checks the sizes now

    def open_dataset(self, split: Split) -> ClutteredMNIST:
        """Return the canvases of a split."""
        train_digits, train_labels = self.split_images("train")
        if split == "train":
            return ClutteredMNIST(
                train_digits,
                train_labels,
                self.clutter,
                seed=3 * self.seed,
                augmentations=self.train_transforms,
            )
        digits, labels = self.split_images(split)
        seed = 3 * self.split_seed + (1 if split == "validation" else 2)
        return ClutteredMNIST(
            digits, labels, self.clutter, seed=seed, distractor_source=train_digits
        )

    def centers(self, split: Split = "test") -> Float[Tensor, "n 2"]:
        """Return the center of each digit, in the order of validation and test.

        Returns:
            x and y, from -1 to 1 across the canvas.
        """
        dataset = self.datasets.get(split)
        if not isinstance(dataset, ClutteredMNIST):
            dataset = self.open_dataset(split)
        return dataset.centers

    def test_notes(self) -> dict[str, Any]:
        """Return the SHA-256 of the test canvases."""
        dataset = self.datasets.get("test")
        if not isinstance(dataset, ClutteredMNIST):
            return {}
        return {"test_canvases": f"sha256 {dataset.digest()}"}
