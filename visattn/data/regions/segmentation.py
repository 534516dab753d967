"""Segmentation data sets: images with the class of each pixel, as batches."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Bool, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from visattn.data.augment.joint import JointTransforms
from visattn.data.loading.loader import ReadFallback
from visattn.data.loading.samplers import mix_seed, per_sample_uniforms
from visattn.data.regions.annotations import AnnotatedImage, AnnotatedObject
from visattn.data.regions.sample import sample_nearest
from visattn.data.scenes.dataset import Scenes
from visattn.images.reader import (
    LoadedImage,
    read_image,
    read_label_image,
)
from visattn.images.resize import ResizeSpec, resize_to_input
from visattn.results.kinds import IGNORE_CLASS

_SEED_STREAM = 5  # separates these random numbers from others with the same seed


class SegmentationSample(NamedTuple):
    """An image of any size with the class of each pixel."""

    image: UInt8[Tensor, "3 y x"]
    labels: UInt8[Tensor, "y x"]
    """Class numbers; 255 is ignored."""


class SegmentationBatch(NamedTuple):
    """Images of one size with the class of each pixel."""

    images: UInt8[Tensor, "b 3 y x"]
    labels: UInt8[Tensor, "b y x"]
    """Class numbers; 255 is ignored."""

    def to(self, device: torch.device | str) -> Self:
        """Return the batch on another device."""
        return type(self)(*(tensor.to(device, non_blocking=True) for tensor in self))


class SegmentationImages(Dataset[SegmentationBatch]):
    """Base class of images with label maps; an item is a whole batch.

    Indices may exceed the length: with n images, i + n is image i with new random transforms.

    Args:
        resize: Resizing to the input of the network; padding is ignored.
        transforms: Random transforms of image and label map before that.
        seed: Seed of the transforms.
        fallback: Replaces images that cannot be read; None raises.
    """

    def __init__(
        self,
        resize: ResizeSpec,
        transforms: JointTransforms | None = None,
        *,
        seed: int = 0,
        fallback: ReadFallback | None = None,
    ) -> None:
        self.resize = resize
        self.transforms = transforms
        self.seed = seed
        self.fallback = fallback

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of images."""

    @abstractmethod
    def load(self, index: int) -> SegmentationSample:
        """Return an image at its own size with its label map.

        Raises:
            ImageError: If the image or its mask cannot be read.
            ValueError: If they do not fit each other.
        """

    def __getitem__(self, indices: list[int]) -> SegmentationBatch:
        """Return the batch of images with these indices, transformed and resized."""
        samples = [self._input(index) for index in indices]
        images, labels = zip(*samples, strict=True)
        return SegmentationBatch(torch.stack(images), torch.stack(labels))

    def _input(self, index: int) -> SegmentationSample:
        row = index % len(self)
        sample = self.load(row) if self.fallback is None else self.fallback.read(row, self.load)
        if self.transforms is not None:
            seed = mix_seed(self.seed, _SEED_STREAM)
            uniform = float(per_sample_uniforms(seed, [index], 1))
            sample = SegmentationSample(*self.transforms(*sample, int(uniform * 2**53)))
        return resize_sample(sample, self.resize)


def resize_sample(sample: SegmentationSample, resize: ResizeSpec) -> SegmentationSample:
    """Return an image and its label map at the input size of a network; padding is 255.

    Example:
        >>> image = torch.zeros(3, 2, 4, dtype=torch.uint8)
        >>> labels = torch.tensor([[0, 1, 2, 3]] * 2, dtype=torch.uint8)
        >>> resize_sample(SegmentationSample(image, labels), ResizeSpec((4, 4), "pad")).labels[:, 0]
        tensor([255,   0,   0, 255], dtype=torch.uint8)
    """
    size = (sample.labels.shape[0], sample.labels.shape[1])
    if size == resize.size:
        return sample
    pixels = np.ascontiguousarray(sample.image.permute(1, 2, 0).numpy())
    image, geometry = resize_to_input(LoadedImage(pixels), resize)
    return SegmentationSample(image, sample_nearest(sample.labels, geometry, fill=IGNORE_CLASS))


class SceneSegmentation(SegmentationImages):
    """Rendered scenes; the class of a pixel is the shape of its object, 0 the background.

    Example:
        >>> batch = SceneSegmentation(Scenes(3, size=48))[[0, 2]]
        >>> batch.images.shape, batch.labels.unique().tolist()
        (torch.Size([2, 3, 48, 48]), [0, 2, 3, 6])
    """

    def __init__(
        self, scenes: Scenes, transforms: JointTransforms | None = None, *, seed: int = 0
    ) -> None:
        super().__init__(ResizeSpec((scenes.size, scenes.size)), transforms, seed=seed)
        self.scenes = scenes

    def __len__(self) -> int:
        """Return the number of scenes."""
        return len(self.scenes)

    def load(self, index: int) -> SegmentationSample:
        """Return a rendered scene with its label map."""
        objects = self.scenes.world(index).objects
        numbers = [self.scenes.config.shapes.index(item.shape) + 1 for item in objects]
        shapes = zip(self.scenes.masks(index), numbers, strict=True)
        size = (self.scenes.size, self.scenes.size)
        labels = label_map(((mask, number, False) for mask, number in shapes), size)
        return SegmentationSample(self.scenes.image(index), labels)


class MaskFolder(SegmentationImages):
    """Image files with masks of class numbers.

    Args:
        files: Image files, each with the file of its mask: one channel, gray or palette.
        class_map: Class of each number in the masks, 255 for ignored; numbers that are not listed
            are refused. None: the numbers are the classes, and 255 is ignored.
    """

    def __init__(
        self,
        files: Sequence[tuple[Path, Path]],
        num_classes: int,
        resize: ResizeSpec,
        transforms: JointTransforms | None = None,
        *,
        class_map: Mapping[int, int] | None = None,
        seed: int = 0,
        fallback: ReadFallback | None = None,
    ) -> None:
        super().__init__(resize, transforms, seed=seed, fallback=fallback)
        self.files = list(files)
        classes = (*range(num_classes), IGNORE_CLASS)
        mapping = dict(zip(classes, classes, strict=True)) if class_map is None else class_map
        for number, label in mapping.items():
            if not 0 <= number <= 255 or label not in classes:
                raise ValueError(
                    f"class_map must map 0 to 255 to classes below {num_classes}, or "
                    f"{IGNORE_CLASS}; got {number}: {label}"
                )
        # -1 stands for numbers without a class, which would else be taken for class 0.
        self._table = np.full(256, -1, np.int16)
        self._table[list(mapping)] = list(mapping.values())

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.files)

    def load(self, index: int) -> SegmentationSample:
        """Return an image at its own size with its label map."""
        file, mask_file = self.files[index]
        image = read_image(file)
        numbers = read_label_image(mask_file)
        if numbers.shape != image.size:
            raise ValueError(
                f"the mask {mask_file} is {numbers.shape}, the upright image {image.size}"
            )
        pixels = torch.tensor(image.pixels).permute(2, 0, 1)
        return SegmentationSample(pixels, torch.from_numpy(self._classes(numbers, mask_file)))

    def _classes(
        self, numbers: UInt8[np.ndarray, "y x"], mask_file: Path
    ) -> UInt8[np.ndarray, "y x"]:
        """Return the classes of the numbers of a mask."""
        labels = self._table[numbers]
        if labels.min() < 0:
            unknown = sorted(set(numbers[labels < 0].tolist()))
            known = [number for number in range(256) if self._table[number] >= 0]
            raise ValueError(
                f"{mask_file} has the numbers {unknown[:5]}, which are no classes; known are "
                f"{known[:5]}{' ...' if len(known) > 5 else ''}: correct class_names or class_map"
            )
        return labels.astype(np.uint8)


class CocoSegmentation(SegmentationImages):
    """COCO images; the class of a pixel is the category of the smallest object that covers it.

    Crowds (groups that are not separated) and the boxes of objects without a mask are ignored,
    unless another object covers them.

    Args:
        categories: Names of the categories that are classes 1, 2, ...; objects of others are
            background.
    """

    def __init__(
        self,
        images: Sequence[AnnotatedImage],
        categories: Sequence[str],
        resize: ResizeSpec,
        transforms: JointTransforms | None = None,
        *,
        seed: int = 0,
        fallback: ReadFallback | None = None,
    ) -> None:
        super().__init__(resize, transforms, seed=seed, fallback=fallback)
        self.images = list(images)
        self.numbers = {name: number for number, name in enumerate(categories, 1)}

    def __len__(self) -> int:
        """Return the number of images."""
        return len(self.images)

    def load(self, index: int) -> SegmentationSample:
        """Return an image at its own size with its label map."""
        annotated = self.images[index]
        image = annotated.read()
        objects = [self._class(obj) for obj in annotated.objects]
        known = ((mask, *obj) for mask, obj in zip(annotated.masks(), objects, strict=True) if obj)
        labels = label_map(known, annotated.size)
        return SegmentationSample(torch.tensor(image.pixels).permute(2, 0, 1), labels)

    def _class(self, obj: AnnotatedObject) -> tuple[int, bool] | None:
        """Return the class of an object and whether others cover it; None if it is background."""
        if obj.category not in self.numbers:
            return None
        ignored = obj.crowd or obj.segmentation is None
        return IGNORE_CLASS if ignored else self.numbers[obj.category], ignored


def label_map(
    objects: Iterable[tuple[Bool[Tensor, "y x"], int, bool]], size: tuple[int, int]
) -> UInt8[Tensor, "y x"]:
    """Return the class number of each pixel; 0 where there is no object.

    Smaller objects cover larger ones, and a later object one of the same size. Only one mask has to
    be held at a time.

    Args:
        objects: For each the mask, the class number, 1 to 255, and whether it lies below those for
            which this is false.
        size: Height and width.

    Example:
        >>> small, large = torch.tensor([[[True, False, False]], [[True, True, False]]])
        >>> label_map([(small, 7, False), (large, 3, False)], (1, 3))
        tensor([[7, 3, 0]], dtype=torch.uint8)
    """
    labels = torch.zeros(size, dtype=torch.uint8)
    # Objects are ranked by area, so each pixel remembers the smallest one so far. What is `below`
    # ranks behind the largest possible area, and no object at all behind both.
    nothing = 2 * labels.numel() + 1
    rank = torch.full(size, nothing)  # of the object that covers a pixel; lower ones cover higher
    for mask, number, below in objects:
        own = int(mask.sum()) + (labels.numel() if below else 0)
        covered = mask & (rank >= own)
        labels[covered] = number
        rank[covered] = own
    return labels
