"""Data module of images with boxes."""

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from torchvision.transforms import v2

from visattn.data.augment import fill_outside
from visattn.data.regions.annotations import AnnotatedImage
from visattn.data.regions.coco_instances import check_boxes
from visattn.data.regions.detection import collate_detections, detection_input
from visattn.data.source import AnySource
from visattn.results.kinds import Split
from visattn.training.data_module import DataModule


class DetectionData(DataModule):
    """Images with boxes: samples are a photo and (class, box) pairs, or an `AnnotatedImage`.

    Boxes are left, top, right, bottom in pixels of the photo. The classes are those of the objects
    of the training photos. Crowds are not targets, and are scored as in COCO.

    Args:
        source: Returns the samples of a split, such as `CocoInstances`.
        train_transforms: Random transforms of training images with their boxes, in this order, by
            the names of `torchvision.transforms.v2`. Photos are resized afterwards.
        options: Options of `DataModule`.
    """

    eval_batch_size = None
    sample_type = AnnotatedImage
    collate_fn = staticmethod(collate_detections)
    default_resize = "pad"
    needed_task = "that trains a dense model, such as DetectionTask"

    def __init__(
        self,
        source: AnySource,
        *,
        train_transforms: list[v2.Transform] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(source, **options)
        self.train_transforms = fill_outside(train_transforms or [], mask_fill=0)
        names = {name for image in self.listed("train") for name in image.categories}
        self.class_names = tuple(sorted(names)) or tuple(getattr(source, "class_names", ()))
        self.masks = False

    def setup(self, stage: str) -> None:
        """Open the splits of a stage; masks are read only for scores of maps, not in `fit`."""
        self.masks = stage != "fit"
        self.datasets.clear()
        super().setup(stage)

    def prepare(self, split: Split) -> Callable[[Any, int], Any]:
        """Return the function from a sample to an image with boxes."""
        return partial(
            detection_input,
            numbers={name: number for number, name in enumerate(self.class_names)},
            resize=self.resize,
            transforms=self.random(split),
            masks=self.masks,
            value_range=self.value_range,
        )

    def count_targets(self, split: Split) -> tuple[str, Counter[str]] | None:
        """Return the number of objects of each class, without crowds."""
        if not (images := self.listed(split)):
            return None
        objects = [obj for image in images for obj in image.objects if not obj.crowd]
        check_boxes([(obj.box, i.size) for i in images for obj in i.objects if obj.box])
        return "objects", Counter(obj.category for obj in objects)
