"""Data modules of segmentation: rendered scenes, folders of masks, COCO instances."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from visattn.data.augment.images import AugmentationSpec
from visattn.data.augment.joint import JointTransforms
from visattn.data.loading.loader import OnError
from visattn.data.regions.coco_instances import read_category_names
from visattn.data.regions.readers import pair_masks, read_coco_images
from visattn.data.regions.segmentation import (
    CocoSegmentation,
    MaskFolder,
    SceneSegmentation,
    SegmentationImages,
)
from visattn.images.reader import ImageError, read_label_image
from visattn.images.resize import ResizeMode
from visattn.results.kinds import BACKGROUND, IGNORE_CLASS, Split
from visattn.training.data_module import DenseDataModule, DrawnScenesDataModule

_NUM_EXAMPLES = 16


class SegmentationDataModule(DenseDataModule):
    """Base class of images with the class of each pixel.

    Args:
        train_transforms: Random transforms of training images and their masks, in this order, each
            with its options if it has any: names of `torchvision.transforms.v2`.
        batch_size: Images per batch and process.
        options: Options of `DataModule`.
    """

    def __init__(
        self,
        train_transforms: list[AugmentationSpec] | None = None,
        *,
        batch_size: int = 16,
        **options: Any,
    ) -> None:
        super().__init__(JointTransforms(train_transforms or []), batch_size=batch_size, **options)

    @abstractmethod
    def open_dataset(self, split: Split) -> SegmentationImages:
        """Return the images of a split."""


class SceneSegmentationDataModule(DrawnScenesDataModule, SegmentationDataModule):
    """Rendered scenes of colored, textured shapes; the class of a pixel is the shape.

    The test also reads scenes with color-shape pairs that are held out of training (`novel`).

    Args:
        train: Number of training scenes.
        val: Number of validation scenes.
        test: Number of test scenes, and of test scenes with held-out pairs.
        image_size: Height and width in pixels.
        options: Options of `DrawnScenesDataModule` and `SegmentationDataModule`.
    """

    test_splits = ("test", "novel")

    def __init__(
        self,
        *,
        train: int = 3000,
        val: int = 300,
        test: int = 300,
        image_size: int = 96,
        **options: Any,
    ) -> None:
        super().__init__(train=train, val=val, test=test, image_size=image_size, **options)
        self.class_names = (BACKGROUND, *self.config.shapes)

    def open_dataset(self, split: Split) -> SegmentationImages:
        """Return the scenes of a split."""
        self.check_image_size((self.image_size, self.image_size))
        return SceneSegmentation(self.scenes(split), self.transforms_of(split), seed=self.seed)


class MaskFolderDataModule(SegmentationDataModule):
    """Photos and masks of class numbers in two folders, as PNG files of the same names.

    Paths may contain `{split}`, which becomes `train`, `val` or `test`. Without it, photos for
    validation, which are also the test photos, are taken from the one folder.

    Args:
        images: Folder of the photos.
        masks: Folder of the masks: one channel, gray or palette, the class number of each pixel.
        class_names: Names of the classes, in the order of their numbers; the first one must be
            called `background` if it is the background.
        class_map: Class of each number in the masks, 255 for ignored pixels, as in `{1: 1, 2: 0,
            3: 255}` for the trimaps of Oxford-IIIT Pet. By default the numbers are the classes,
            and 255 is ignored.
        val_fraction: The fraction of the photos for validation, without `{split}`.
        test: The folder name that replaces `{split}` in the test; by default `val`.
        resize_mode: How a photo is resized to the input of the network: `pad` adds margins, which
            are ignored, `crop` takes the center crop, `squash` ignores the aspect ratio.
        on_error: Whether an unreadable training photo is an error (`raise`), or is always replaced
            by the same other photo, with a warning (`substitute`).
        split_seed: Seed of the choice of validation photos.
        options: Options of `SegmentationDataModule`.
    """

    def __init__(
        self,
        images: str,
        masks: str,
        class_names: list[str],
        *,
        class_map: dict[int, int] | None = None,
        val_fraction: float = 0.1,
        test: str = "val",
        resize_mode: ResizeMode = "pad",
        on_error: OnError = "raise",
        split_seed: int = 0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if not 0 < val_fraction < 1 or ("{split}" in images) != ("{split}" in masks):
            raise ValueError(
                "val_fraction must lie between 0 and 1, and both images and masks have {split} or "
                f"neither; got {val_fraction}, {images} and {masks}"
            )
        self.images = images
        self.masks = masks
        self.class_names = tuple(class_names)
        self.class_map = class_map
        self.val_fraction = val_fraction
        self.test = test
        self.resize_mode = resize_mode
        self.on_error = on_error
        self.split_seed = split_seed

    def open_dataset(self, split: Split) -> SegmentationImages:
        """Return the photos of a split."""
        files = self._files(split)
        if self.class_map is None and _numbers(files) == {0, IGNORE_CLASS}:
            raise ValueError(
                "the masks have the numbers 0 and 255 only, and 255 is ignored by default: set "
                "class_map: {0: 0, 255: 1}"
            )
        return MaskFolder(
            files,
            len(self.class_names),
            self.resize,
            self.transforms_of(split),
            class_map=self.class_map,
            seed=self.seed,
            fallback=self.read_fallback(split, len(files), lambda index: files[index][0]),
        )

    def _files(self, split: Split) -> list[tuple[Path, Path]]:
        folder = {"train": "train", "validation": "val"}.get(split, self.test)
        files = pair_masks(*(Path(p.replace("{split}", folder)) for p in (self.images, self.masks)))
        if "{split}" in self.images:
            return files
        generator = torch.Generator().manual_seed(self.split_seed)
        order = torch.randperm(len(files), generator=generator).tolist()
        count = max(1, round(self.val_fraction * len(files)))
        return [
            files[index] for index in sorted(order[count:] if split == "train" else order[:count])
        ]


def _numbers(files: Sequence[tuple[Path, Path]]) -> set[int]:
    """Return the numbers in some masks, without those that cannot be read."""
    numbers: set[int] = set()
    for _, mask in files[:: max(1, len(files) // _NUM_EXAMPLES)]:
        with suppress(ImageError):
            numbers.update(np.unique(read_label_image(mask)).tolist())
    return numbers


class CocoSegmentationDataModule(SegmentationDataModule):
    """COCO instances; the class of a pixel is the category of the smallest object on it.

    Photos without objects are all background. Crowds, and the boxes of objects without a mask, are
    ignored pixels.

    Args:
        annotations: Instances file; `{split}` in it becomes `train` or `val`, as in
            `annotations/instances_{split}2017.json`. Without it, validation and test read the
            training photos.
        images: Folder of the photos, which may contain `{split}`; null for the one in the name of
            the instances file.
        categories: Categories that become classes; null for all of the training file.
        resize_mode: As in `MaskFolderDataModule`.
        on_error: Whether an unreadable training photo is an error (`raise`), or is always replaced
            by the same other photo, with a warning (`substitute`).
        options: Options of `SegmentationDataModule`.
    """

    def __init__(
        self,
        annotations: str,
        *,
        images: str | None = None,
        categories: list[str] | None = None,
        resize_mode: ResizeMode = "pad",
        on_error: OnError = "raise",
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.annotations = annotations
        self.images = images
        self.resize_mode = resize_mode
        self.on_error = on_error
        known = read_category_names(Path(annotations.replace("{split}", "train")))
        unknown = sorted(set(categories or ()) - set(known))
        if unknown:
            raise ValueError(f"{annotations} has no category {unknown[0]!r}; it has {known}")
        self.class_names = (BACKGROUND, *(categories or known))

    def open_dataset(self, split: Split) -> SegmentationImages:
        """Return the photos of a split."""
        name = "train" if split == "train" else "val"
        folder = None if self.images is None else self.images.replace("{split}", name)
        file = self.annotations.replace("{split}", name)
        images = read_coco_images(file, folder, keep_empty=True)
        return CocoSegmentation(
            images,
            self.class_names[1:],
            self.resize,
            self.transforms_of(split),
            seed=self.seed,
            fallback=self.read_fallback(split, len(images), lambda index: images[index].path),
        )

    def count_targets(self, split: Split) -> tuple[str, Counter[str]]:
        """Return the number of objects of each category that have a mask, without crowds."""
        counts = Counter(dict.fromkeys(self.class_names[1:], 0))
        for image in self.datasets[split].images:
            counts.update(
                annotated.category
                for annotated in image.objects
                if annotated.category in counts and annotated.segmentation and not annotated.crowd
            )
        return "objects with a mask", counts
