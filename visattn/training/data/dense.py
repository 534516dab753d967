"""Base class of the data modules of segmentation and detection."""

from collections.abc import Sequence
from typing import Any

from visattn.data.augment.joint import JointTransforms
from visattn.results.kinds import Split
from visattn.training.data_module import DataModule


class DenseDataModule(DataModule):
    """Images with masks or boxes in splits.

    Args:
        transforms: Random transforms of training images with their masks and boxes; None for none.
        options: Options of `DataModule`.
    """

    eval_batch_size = None
    resize_mode = "pad"
    needed_task = (
        "that trains a dense model, such as SegmentationTask or DetectionTask, whose input_spec "
        "has the size of its images"
    )

    def __init__(self, transforms: JointTransforms | None, **options: Any) -> None:
        super().__init__(**options)
        self.train_transforms = transforms

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

    def transforms_of(self, split: Split) -> JointTransforms | None:
        """Return the random transforms of a split; None for all but the training split."""
        return self.train_transforms if split == "train" else None
