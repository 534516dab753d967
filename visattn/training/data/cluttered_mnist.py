"""Digits on larger canvases, alone or in clutter, as data for training."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from visattn.data.classification.cluttered_mnist import ClutteredMNIST, ClutterSpec, Combine
from visattn.data.classification.datasets import LabeledImages
from visattn.training.base import Task
from visattn.training.data.classification import Specs, Split
from visattn.training.data.torchvision import TorchvisionDataModule


class ClutteredMNISTDataModule(TorchvisionDataModule):
    """MNIST laid on canvases: training digits on new ones in each epoch, the others always alike.

    The digit comes first, then pieces of other training digits, in all parts; no test digit is
    ever cut up. The test notes the SHA-256 of its canvases, which says whether two scores are
    of the same images.

    Args:
        root: The folder in which torchvision looks for the files.
        canvas: Height and width of a canvas in pixels.
        pieces: Pieces of other digits on each canvas; 0 leaves the digit alone.
        piece: Height and width of a piece in pixels.
        combine: What becomes of a pixel on which a piece comes to lie: the `sum` of both, at most
            255; the brighter of both (`max`); the piece, black where it is black (`overwrite`);
            or white paint, as dense as the piece is bright, over what was there (`blend`).
        download: Fetch the files if they are not there.
        validation: How many training digits are set aside for validation.
        augment: What happens to training digits before they are laid, as `TorchvisionDataModule`
            takes it; a digit must keep its size.
        batch: Digits per training batch and process.
        workers: Processes that read ahead; 0 reads in between.
        split_seed: Decides which digits are for validation, and the canvases of validation and
            test.
        seed: Of the order in which digits come, and of the canvases for training; at least 0.
    """

    def __init__(
        self,
        *,
        root: str,
        canvas: tuple[int, int] = (60, 60),
        pieces: int = 0,
        piece: int = 8,
        combine: Combine = "sum",
        download: bool = False,
        validation: int = 5000,
        augment: Specs | None = None,
        batch: int = 128,
        workers: int = 0,
        split_seed: int = 0,
        seed: int = 0,
    ) -> None:
        self.plan = ClutterSpec((canvas[0], canvas[1]), pieces, piece, combine)
        super().__init__(
            "MNIST",
            root=root,
            download=download,
            validation=validation,
            augment=augment,
            batch=batch,
            workers=workers,
            split_seed=split_seed,
            seed=seed,
        )
        self.laid("train")  # says at once what does not fit

    def part(self, split: Split) -> LabeledImages:
        """Return the canvases of a split."""
        return self.laid(split)

    def laid(self, split: Split) -> ClutteredMNIST:
        """Return the canvases of a split; `centers` of it tells where the digits are."""
        training, labels = self._held["train"]
        if split == "train":
            return ClutteredMNIST(
                training,
                labels,
                self.plan,
                seed=3 * self.seed,
                augmentations=self.augmentations,
            )
        digits, labels = self._held[split] if split != "test" else self._read(train=False)[:2]
        seed = 3 * self.split_seed + (1 if split == "validation" else 2)
        return ClutteredMNIST(digits, labels, self.plan, seed=seed, clutter=training)

    def centers(self, split: Split = "test") -> Float[Tensor, "n 2"]:
        """Return the middle of each digit, in the order in which validation and test read them.

        Returns:
            x and y, from -1 to 1 across the canvas.
        """
        opened = self.parts.get(split)
        return (opened if isinstance(opened, ClutteredMNIST) else self.laid(split)).centers

    def setup(self, stage: str) -> None:
        """Open the parts that are needed; for the test, note which canvases they are."""
        super().setup(stage)
        task = self.trainer.lightning_module if stage == "test" and self.trainer else None
        notes: Any = getattr(task, "notes", None) if isinstance(task, Task) else None
        canvases = self.parts.get("test")
        if isinstance(notes, dict) and isinstance(canvases, ClutteredMNIST):
            notes["test_canvases"] = f"sha256 {canvases.digest()}"
