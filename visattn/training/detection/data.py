"""Data modules for object detection: rendered scenes, COCO instances, tables."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from visattn.data.augment.images import AugmentationSpec
from visattn.data.augment.joint import JointTransforms
from visattn.data.loading.loader import OnError
from visattn.data.photo_tables import BoxFormat, TableSource, annotated_images, read_tables
from visattn.data.regions.annotations import AnnotatedImage
from visattn.data.regions.detection import (
    AnnotatedObjects,
    DetectionBatch,
    DetectionDataset,
    SceneObjects,
    collate_detections,
)
from visattn.data.regions.readers import read_coco_images
from visattn.images.resize import ResizeMode
from visattn.results.kinds import Split
from visattn.training.data_module import DenseDataModule, DrawnScenesDataModule


class DetectionDataModule(DenseDataModule):
    """Base class of images with boxes in three splits.

    Args:
        train_transforms: Transforms of training images, their masks and boxes, in this order, each
            with its options if it has any: names of `torchvision.transforms.v2`. Photos are resized
            afterwards.
        options: Options of `DataModule`.
    """

    def __init__(
        self, train_transforms: list[AugmentationSpec] | None = None, **options: Any
    ) -> None:
        transforms = JointTransforms(train_transforms, mask_fill=0) if train_transforms else None
        super().__init__(transforms, **options)

    @abstractmethod
    def open_dataset(self, split: Split) -> DetectionDataset:
        """Return the images of a split."""

    def collate_fn(self, split: Split) -> Callable[[list[Any]], DetectionBatch]:
        """Return the function that makes a batch of samples."""
        return collate_detections


class ScenesDetectionDataModule(DrawnScenesDataModule, DetectionDataModule):
    """Images of colored, textured shapes; classes are the shapes, boxes those of their pixels.

    Args:
        train: Number of training scenes.
        val: Number of validation scenes.
        test: Number of test scenes.
        options: Options of `DrawnScenesDataModule` and `DetectionDataModule`.
    """

    def __init__(
        self, *, train: int = 200_000, val: int = 500, test: int = 1000, **options: Any
    ) -> None:
        super().__init__(train=train, val=val, test=test, **options)
        self.class_names = self.config.shapes

    def open_dataset(self, split: Split) -> SceneObjects:
        """Return the scenes of a split."""
        return SceneObjects(
            self.scenes(split), transforms=self.transforms_of(split), seed=self.seed
        )


class AnnotatedDetectionDataModule(DetectionDataModule):
    """Base class of photos with annotated objects.

    Args:
        resize_mode: How a photo is resized to the input of the network: `pad` adds margins,
            `squash` ignores the aspect ratio, `crop` takes the center crop.
        on_error: Whether an unreadable training photo is an error (`raise`), or is always replaced
            by the same other photo, with a warning (`substitute`).
        batch_size: Photos per training batch and process.
        options: Options of `DetectionDataModule`.
    """

    def __init__(
        self,
        *,
        resize_mode: ResizeMode = "pad",
        on_error: OnError = "raise",
        batch_size: int = 16,
        **options: Any,
    ) -> None:
        super().__init__(batch_size=batch_size, **options)
        self.resize_mode = resize_mode
        self.on_error = on_error

    @abstractmethod
    def annotated_images(self, split: Split) -> list[AnnotatedImage]:
        """Return the photos of a split with their objects."""

    def setup(self, stage: str) -> None:
        """Open the splits of a stage; only scores of maps need masks, which `fit` does not have."""
        super().setup(stage)
        for dataset in self.datasets.values():
            dataset.masks = stage != "fit"

    def count_targets(self, split: Split) -> tuple[str, Counter[str]]:
        """Return the number of objects of each class, without crowds."""
        counts = Counter(dict.fromkeys(self.class_names, 0))
        for image in self.annotated_images(split):
            counts.update(annotated.category for annotated in image.objects if not annotated.crowd)
        return "objects", counts

    def open_dataset(self, split: Split) -> AnnotatedObjects:
        """Return the photos of a split, resized to the input of the network."""
        images = self.annotated_images(split)
        return AnnotatedObjects(
            images,
            self.class_names,
            self.resize,
            transforms=self.transforms_of(split),
            seed=self.seed,
            fallback=self.read_fallback(split, len(images), lambda index: images[index].path),
        )


class CocoDetectionDataModule(AnnotatedDetectionDataModule):
    """Photos with COCO instances; the classes are the categories of the training file.

    Boxes are enough; the masks of objects, if the file has them, score the maps of queries in
    `validate` and `test` (without a mask, the box of the object does). Crowds are no targets of the
    training, and score as COCO defines it. Images without objects are kept.

    Args:
        train: The training instances file, JSON.
        val: The validation instances file.
        test: The test instances file; by default the validation file.
        train_images: Folder of the training photos; by default the one in the name of the file,
            `train2017` for `annotations/instances_train2017.json`.
        val_images: Folder of the validation photos.
        test_images: Folder of the test photos.
        options: Options of `AnnotatedDetectionDataModule`: `resize_mode`, `on_error`, `batch_size`
            and those of `DetectionDataModule`.
    """

    def __init__(
        self,
        *,
        train: str,
        val: str,
        test: str | None = None,
        train_images: str | None = None,
        val_images: str | None = None,
        test_images: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.files: dict[Split, tuple[str, str | None]] = {
            "train": (train, train_images),
            "validation": (val, val_images),
            "test": (test, test_images) if test else (val, val_images),
        }
        self._images: dict[tuple[str, str | None], list[AnnotatedImage]] = {}
        names = {name for image in self.annotated_images("train") for name in image.categories}
        self.class_names = tuple(sorted(names))

    def annotated_images(self, split: Split) -> list[AnnotatedImage]:
        """Return the photos of a split; a file is read once."""
        source = self.files[split]
        if source not in self._images:
            self._images[source] = read_coco_images(*source, keep_empty=True)
        return self._images[source]


class HubDetectionDataModule(AnnotatedDetectionDataModule):
    """Photos with boxes in tables of Hugging Face; otherwise as `CocoDetectionDataModule`.

    Args:
        table: The data set; its columns are `image`, `boxes` and `categories`, by default the
            fields `bbox` and `category` of a column `objects`; and, if there are any, `id`,
            `crowds` and `areas`.
        box_format: The numbers of a box, in pixels of the photo: left, top, width, height
            (`xywh`), as COCO has them; or left, top, right, bottom (`xyxy`).
        options: Options of `AnnotatedDetectionDataModule`: `resize_mode`, `on_error`, `batch_size`
            and those of `DetectionDataModule`.
    """

    def __init__(self, table: TableSource, *, box_format: BoxFormat, **options: Any) -> None:
        super().__init__(**options)
        tables = table.open("boxes", "categories", "crowds", "areas", "id")
        self._images = read_tables(tables, partial(annotated_images, box_format=box_format))
        names = {name for image in self._images["train"] for name in image.categories}
        self.class_names = tuple(sorted(names))

    def annotated_images(self, split: Split) -> list[AnnotatedImage]:
        """Return the photos of a split with their objects."""
        return self._images[split]
