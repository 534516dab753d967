"""Labeled image datasets that return whole batches."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Float64, Int, UInt8
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset

from visattn.data.augment.images import Augmentation, RandomResizedCrop
from visattn.data.loading.loader import PathList, ReadFallback
from visattn.data.loading.samplers import mix_seed, per_sample_uniforms
from visattn.images.reader import LoadedImage, read_rgb
from visattn.images.resize import ResizeSpec, resize_rgb
from visattn.images.sources import find_images
from visattn.io.messages import format_names
from visattn.io.sources import Source

_SEED_STREAM, _BATCH_SEED_STREAM = 1, 3  # separate random numbers with the same seed


class LabeledBatch(NamedTuple):
    """Images of one size and their class indices."""

    images: UInt8[Tensor, "b c y x"]
    labels: Int[Tensor, " b"]

    def to(self, device: torch.device | str) -> Self:
        """Return the batch on another device."""
        return type(self)(*(tensor.to(device, non_blocking=True) for tensor in self))


class LabeledImages(Dataset[LabeledBatch]):
    """Base class of labeled images; an item is a whole batch.

    Indices may exceed the length: with n images, i + n is image i with new random augmentations,
    which is how every epoch differs.

    Args:
        labels: Class index of each image.
        augmentations: Applied in order; usually for training images only.
        seed: Seed of the augmentations.
    """

    def __init__(
        self,
        labels: Int[Tensor, " n"],
        augmentations: Sequence[Augmentation] = (),
        *,
        seed: int = 0,
    ) -> None:
        self.labels = labels
        self.augmentations = tuple(augmentations)
        self.seed = seed

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def __getitem__(self, indices: list[int]) -> LabeledBatch:
        """Return the batch of images with these indices."""

    def image_indices(self, indices: Sequence[int]) -> Int[Tensor, " b"]:
        """Return the index of each image, without the epoch."""
        return torch.tensor(indices, dtype=torch.long) % len(self)

    def augment(
        self, images: UInt8[Tensor, "b c y x"], indices: Sequence[int]
    ) -> UInt8[Tensor, "b c y2 x2"]:
        """Return images of this dataset, augmented by random numbers of their indices."""
        seed = mix_seed(self.seed, _SEED_STREAM)
        return augment_images(images, indices, self.augmentations, seed=seed)


def augment_images(
    images: UInt8[Tensor, "b c y x"],
    indices: Sequence[int],
    augmentations: Sequence[Augmentation],
    *,
    seed: int,
) -> UInt8[Tensor, "b c y2 x2"]:
    """Return images after augmentations, whose random numbers depend on seed and index alone."""
    for augmentation, uniforms in zip(
        augmentations, augmentation_uniforms(indices, augmentations, seed=seed), strict=True
    ):
        images = augmentation(images, uniforms)
    return images


def augmentation_uniforms(
    indices: Sequence[int], augmentations: Sequence[Augmentation], *, seed: int
) -> Sequence[Float64[Tensor, "b _n"]]:
    """Return the random numbers of each augmentation, which depend on seed and index alone."""
    counts = [augmentation.num_uniforms for augmentation in augmentations]
    return per_sample_uniforms(seed, indices, sum(counts)).split(counts, 1) if counts else ()


class UntransformedBatch(NamedTuple):
    """A batch and the random numbers of the transforms that its device will apply."""

    batch: LabeledBatch
    uniforms: Float64[Tensor, "b n"]
    """On the CPU, so that nothing waits for a GPU."""

    def to(self, device: torch.device | str) -> Self:
        """Return the batch on another device."""
        return self._replace(batch=self.batch.to(device))

    def transform(self, transforms: Sequence[Augmentation]) -> LabeledBatch:
        """Return the batch after the transforms of its dataset, in their order."""
        images = self.batch.images
        counts = [transform.num_uniforms for transform in transforms]
        for transform, uniforms in zip(transforms, self.uniforms.split(counts, 1), strict=True):
            images = transform(images, uniforms)
        return self.batch._replace(images=images)


class WithUniforms(Dataset[UntransformedBatch]):
    """Labeled images with the random numbers of transforms that are applied to a batch later.

    Workers draw the numbers, which depend on the seed and the index of an image alone, and the
    training process transforms the batch on its device.

    Args:
        transforms: Transforms of a batch, in their order.

    Example:
        >>> from visattn.data.augment.images import RandomHorizontalFlip
        >>> dark = InMemoryImages(torch.zeros(7, 1, 5, 3, dtype=torch.uint8), torch.arange(7))
        >>> batch = WithUniforms(dark, [RandomHorizontalFlip()], seed=0)[[6, 2]]
        >>> batch.uniforms.shape, batch.transform([RandomHorizontalFlip()]).images.shape
        (torch.Size([2, 1]), torch.Size([2, 1, 5, 3]))
    """

    def __init__(
        self, images: LabeledImages, transforms: Sequence[Augmentation], *, seed: int
    ) -> None:
        self.images = images
        self.seed = seed
        self.count = sum(transform.num_uniforms for transform in transforms)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, indices: list[int]) -> UntransformedBatch:
        """Return the batch of images with these indices and their random numbers."""
        seed = mix_seed(self.seed, _BATCH_SEED_STREAM)
        uniforms = per_sample_uniforms(seed, indices, self.count)
        return UntransformedBatch(self.images[indices], uniforms)


class InMemoryImages(LabeledImages):
    """Small images of one size held in memory; arguments as for `LabeledImages`.

    Example:
        >>> dataset = InMemoryImages(torch.zeros(7, 1, 5, 3, dtype=torch.uint8), torch.arange(7))
        >>> dataset[[6, 2]].labels
        tensor([6, 2])
    """

    def __init__(
        self,
        images: UInt8[Tensor, "n c y x"],
        labels: Int[Tensor, " n"],
        augmentations: Sequence[Augmentation] = (),
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(labels, augmentations, seed=seed)
        self.images = images

    def __getitem__(self, indices: list[int]) -> LabeledBatch:
        """Return the batch of images with these indices, augmented."""
        rows = self.image_indices(indices)
        return LabeledBatch(self.augment(self.images[rows], indices), self.labels[rows])


class ImageFiles(LabeledImages):
    """Image files of any size, read on access and resized.

    Args:
        files: Paths of the images, or a sequence of images that are read on access.
        resize: Resizing to the network's input.
        augmentations: Applied in order to each image at its own size. Results of another size than
            the network's input are then resized.
        fallback: Replaces images that cannot be read, with their labels; None raises.
    """

    def __init__(
        self,
        files: Sequence[Source | LoadedImage],
        labels: Int[Tensor, " n"],
        resize: ResizeSpec,
        augmentations: Sequence[Augmentation] = (),
        *,
        seed: int = 0,
        fallback: ReadFallback | None = None,
    ) -> None:
        super().__init__(labels, augmentations, seed=seed)
        self.files = files
        self.resize = resize
        self.fallback = fallback

    def __getitem__(self, indices: list[int]) -> LabeledBatch:
        """Return the batch of images with these indices, augmented and resized.

        Raises:
            ImageError: If an image cannot be read, and there is no fallback.
        """
        rows = self.image_indices(indices).tolist()
        loaded = [self._load(row, index) for row, index in zip(rows, indices, strict=True)]
        images, loaded_rows = zip(*loaded, strict=True)
        return LabeledBatch(torch.stack(images), self.labels[list(loaded_rows)])

    def _load(self, row: int, index: int) -> tuple[UInt8[Tensor, "3 y x"], int]:
        """Return an image, or its replacement, and its row."""

        def read(row: int) -> tuple[UInt8[Tensor, "3 y x"], int]:
            return self._load_input(self.files[row], index), row

        return read(row) if self.fallback is None else self.fallback.read(row, read)

    def _load_input(self, file: Source | LoadedImage, index: int) -> UInt8[Tensor, "3 y x"]:
        if not self.augmentations:
            return resize_rgb(read_rgb(file), self.resize)
        first, *others = self.augmentations
        seed = mix_seed(self.seed, _SEED_STREAM)
        uniforms, *other_uniforms = augmentation_uniforms([index], self.augmentations, seed=seed)
        if isinstance(first, RandomResizedCrop):
            pixels = first.read(file, uniforms[0])[None]
        else:
            image = np.array(read_rgb(file)).transpose(2, 0, 1)
            pixels = first(torch.from_numpy(np.ascontiguousarray(image))[None], uniforms)
        for augmentation, own_uniforms in zip(others, other_uniforms, strict=True):
            pixels = augmentation(pixels, own_uniforms)
        if tuple(pixels.shape[2:]) == self.resize.size:
            return pixels[0]
        image = Image.fromarray(pixels[0].permute(1, 2, 0).contiguous().numpy())
        return resize_rgb(image, self.resize)


def find_classes(folder: Path) -> list[str]:
    """Return the class names of a folder with one subfolder per class.

    Raises:
        FileNotFoundError: If the folder does not exist or has no subfolders.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> for name in ("tulip", "rose"):
        ...     (folder / name).mkdir()
        >>> find_classes(folder)
        ['rose', 'tulip']
    """
    paths = sorted(folder.iterdir()) if folder.is_dir() else []
    classes = [path.name for path in paths if path.is_dir() and not path.name.startswith(".")]
    if not classes:
        raise FileNotFoundError(
            f"{folder} has no class folders; photos are expected as {folder}/CLASS/PHOTO"
        )
    return classes


def list_labeled_files(
    folder: Path, classes: Sequence[str], *, allow_missing: bool = False
) -> tuple[PathList, Int[Tensor, " n"]]:
    """Return the image files of a folder with one subfolder per class, and their class indices.

    With `allow_missing`, classes may have no folder or no photos.

    Raises:
        FileNotFoundError: If a class has no folder or no photos.
        ValueError: If there is a folder of an unknown class.
    """
    if unknown := sorted(set(find_classes(folder)) - set(classes)):
        raise ValueError(
            f"{folder} has classes that the training split lacks: {', '.join(unknown[:5])}"
        )
    per_class: list[PathList] = []
    missing: list[str] = []
    for name in classes:
        try:
            per_class.append(PathList(find_images(folder / name)))
        except FileNotFoundError:
            per_class.append(PathList(()))
            missing.append(name)
    if missing and not (allow_missing and any(per_class)):
        raise FileNotFoundError(
            f"{folder} has no photos of {format_names(missing, 5)}; photos are expected as "
            f"{folder / missing[0]}/PHOTO. For validation and test, allow_missing_classes: true "
            "leaves out such classes"
        )
    labels = [torch.full((len(files),), index) for index, files in enumerate(per_class)]
    return PathList(file for files in per_class for file in files), torch.cat(labels)
