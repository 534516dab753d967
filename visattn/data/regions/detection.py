"""Samples and batches for object detection, from rendered scenes and annotated photos."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from jaxtyping import Bool, Float, Int, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from visattn.data.augment.joint import JointTransforms
from visattn.data.loading.loader import ReadFallback
from visattn.data.loading.samplers import mix_seed
from visattn.data.regions.annotations import AnnotatedImage
from visattn.data.regions.sample import RegionSample
from visattn.data.scenes.dataset import Scenes
from visattn.functional.boxes import corners_to_center
from visattn.geometry.affine import Geometry
from visattn.images.resize import ResizeSpec
from visattn.results.kinds import NO_OBJECT

_SEED_STREAM = 5  # separates these random numbers from others with the same seed


@dataclass(frozen=True, eq=False)
class DetectionSample:
    """An image at the input size of a detector, with its objects.

    Args:
        region: Image, boxes, and masks if they are needed, at the input size.
        labels: Class of each object.
        crowd: Whether each is a group of objects.
        true_boxes: Left, top, right, bottom of each in pixels of the original image.
        areas: Area of each in pixels of the original image.
    """

    id: str
    region: RegionSample
    labels: Int[Tensor, " n"]
    crowd: Bool[Tensor, " n"]
    true_boxes: Float[Tensor, "n 4"]
    areas: Float[Tensor, " n"]

    def prepared(
        self, transforms: JointTransforms | None, resize: ResizeSpec | None, seed: int
    ) -> Self:
        """Return the sample after random transforms, if any, and resizing."""
        region = self.region
        if transforms is not None:
            region = transforms.move_sample(region, seed)
        return replace(self, region=region if resize is None else region.resize(resize))


class DetectionBatch(NamedTuple):
    """A batch of images, and the objects that a detector shall find, padded."""

    samples: tuple[DetectionSample, ...]
    images: UInt8[Tensor, "b 3 y x"]
    labels: Int[Tensor, "b m"]
    """Classes; `NO_OBJECT` for padding."""
    boxes: Float[Tensor, "b m 4"]
    """Center x, center y, width, height, relative to the input."""
    objects: Int[Tensor, "b m"]
    """Index of each object among those of its sample."""

    def to(self, device: torch.device | str) -> Self:
        """Return the batch with its tensors on another device; samples stay."""
        moved = (tensor.to(device, non_blocking=True) for tensor in self[1:])
        return type(self)(self.samples, *moved)


def collate_detections(samples: Sequence[DetectionSample]) -> DetectionBatch:
    """Collate samples of one size; crowds and objects outside of the image are no targets.

    Example:
        >>> region = RegionSample(
        ...     torch.zeros(3, 4, 8, dtype=torch.uint8),
        ...     torch.ones(1, 4, 8, dtype=torch.bool),
        ...     torch.tensor([[0.0, 0.0, 4.0, 4.0]]),
        ...     Geometry.identity((4, 8)),
        ... )
        >>> label, crowd = torch.tensor([7]), torch.tensor([False])
        >>> sample = DetectionSample("a", region, label, crowd, region.boxes, torch.tensor([16.0]))
        >>> batch = collate_detections([sample])
        >>> batch.labels, batch.boxes
        (tensor([[7]]), tensor([[[0.2500, 0.5000, 0.5000, 1.0000]]]))
    """
    targets: list[tuple[Tensor, Tensor, Tensor]] = []
    for sample in samples:
        height, width = sample.region.geometry.input_size
        boxes = sample.region.boxes / torch.tensor([width, height] * 2)
        visible = (boxes[:, 2:] > boxes[:, :2]).all(1) & ~sample.crowd
        (kept,) = visible.nonzero(as_tuple=True)
        targets.append((sample.labels[kept], corners_to_center(boxes[kept]).float(), kept))
    length = max(len(kept) for _, _, kept in targets)
    labels = torch.full((len(samples), length), NO_OBJECT)
    centers = torch.zeros(len(samples), length, 4)
    objects = torch.zeros_like(labels)
    for row, (classes, boxes, kept) in enumerate(targets):
        labels[row, : len(kept)] = classes
        centers[row, : len(kept)] = boxes
        objects[row, : len(kept)] = kept
    images = torch.stack([sample.region.image for sample in samples])
    return DetectionBatch(tuple(samples), images, labels, centers, objects)


class DetectionDataset(Dataset[DetectionSample], ABC):
    """Base class of data sets for object detection.

    An index may exceed the number of images, as `EpochIndexSampler` yields them: it then selects
    the image modulo their number, and other random transforms.

    Args:
        class_names: Names of the classes, in the order of the labels.
        transforms: Random transforms of image and masks, with `mask_fill` 0.
        resize: Size and mode of the input; None if images have that size.
        seed: Seed of the random transforms.
    """

    def __init__(
        self,
        class_names: Sequence[str],
        *,
        transforms: JointTransforms | None = None,
        resize: ResizeSpec | None = None,
        seed: int = 0,
    ) -> None:
        self.class_names = tuple(class_names)
        self.transforms = transforms
        self.resize = resize
        self.seed = seed

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of images."""

    @abstractmethod
    def load(self, index: int) -> DetectionSample:
        """Return an image at its original size."""

    def __getitem__(self, index: int) -> DetectionSample:
        seed = mix_seed(self.seed, index, _SEED_STREAM)
        return self.load(index % len(self)).prepared(self.transforms, self.resize, seed)


class SceneObjects(DetectionDataset):
    """Rendered scenes, with the shapes as classes and the boxes of the objects' pixels.

    Example:
        >>> sample = SceneObjects(Scenes(3, size=48))[1]
        >>> sample.region.boxes.shape == (len(sample.labels), 4)
        True
    """

    def __init__(
        self, scenes: Scenes, *, transforms: JointTransforms | None = None, seed: int = 0
    ) -> None:
        super().__init__(scenes.config.shapes, transforms=transforms, seed=seed)
        self.scenes = scenes

    def __len__(self) -> int:
        return len(self.scenes)

    def load(self, index: int) -> DetectionSample:
        """Return a scene; its size is that of the input."""
        masks = self.scenes.masks(index)
        geometry = Geometry.identity((self.scenes.size, self.scenes.size))
        empty = torch.zeros(len(masks), 4)
        region = RegionSample(self.scenes.image(index), masks, empty, geometry).with_mask_boxes()
        shapes = [self.class_names.index(obj.shape) for obj in self.scenes.world(index).objects]
        return DetectionSample(
            f"{self.scenes.split}-{index}",
            region,
            torch.tensor(shapes),
            torch.zeros(len(shapes), dtype=torch.bool),
            region.boxes,
            masks.sum((1, 2)).float(),
        )


class AnnotatedObjects(DetectionDataset):
    """Annotated photos, such as those of COCO, resized to the input of a detector.

    Their masks are not needed for training; samples have them if `masks` is set.

    Raises:
        ValueError: If a category is not among the classes.
    """

    def __init__(
        self,
        images: Sequence[AnnotatedImage],
        class_names: Sequence[str],
        resize: ResizeSpec,
        *,
        transforms: JointTransforms | None = None,
        masks: bool = False,
        seed: int = 0,
        fallback: ReadFallback | None = None,
    ) -> None:
        later = None if transforms is None else resize  # without transforms, photos load resized
        super().__init__(class_names, transforms=transforms, resize=later, seed=seed)
        self.images = tuple(images)
        self.input_size = resize
        self.masks = masks
        self.fallback = fallback
        names = {name for image in images for name in image.categories}
        if unknown := sorted(names - set(class_names)):
            raise ValueError(
                f"the categories must be among the {len(class_names)} classes of the training "
                f"data, but {', '.join(unknown[:5])} are not"
            )

    def __len__(self) -> int:
        return len(self.images)

    def load(self, index: int) -> DetectionSample:
        """Return a photo or its replacement; raises what `AnnotatedImage.load` raises.

        It has its own size if it is transformed, else that of the input.
        """
        return self._load(index) if self.fallback is None else self.fallback.read(index, self._load)

    def _load(self, index: int) -> DetectionSample:
        image = self.images[index]
        return DetectionSample(
            image.name,
            image.load(self.input_size if self.transforms is None else None, masks=self.masks),
            torch.tensor(
                [self.class_names.index(obj.category) for obj in image.objects],
                dtype=torch.int64,
            ),
            torch.tensor([obj.crowd for obj in image.objects], dtype=torch.bool),
            image.boxes(),
            torch.tensor(image.areas(), dtype=torch.float32),
        )
