"""Images with the number of their class, read a batch at a time."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from visattn.data.images.augment import Augmentation
from visattn.data.images.reader import LoadedImage, find_images, read_image
from visattn.data.images.resize import ResizeSpec, frame
from visattn.data.loading.fallback import ReadFallback
from visattn.data.loading.sample_seed import mixed, numbered_uniforms

_CHANGES = 1  # sets what augmentations draw apart from what else a seed is for


class LabeledBatch(NamedTuple):
    """Images of one size, and the class of each."""

    images: UInt8[Tensor, "b c y x"]
    labels: Int[Tensor, " b"]

    def to(self, device: torch.device | str) -> Self:
        """Return the batch on another device."""
        return self._replace(
            images=self.images.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
        )


class LabeledImages(Dataset[LabeledBatch]):
    """Images with their classes; an item is a batch.

    Numbers go on behind the last image: with n images, i + n is image i changed in another
    way, which is how every epoch changes images anew.

    Args:
        labels: The class of each image.
        augmentations: Applied one after the other; training images have some.
        seed: Another seed, other changes.
    """

    def __init__(
        self,
        labels: Int[Tensor, " n"],
        augmentations: Sequence[Augmentation] = (),
        *,
        seed: int = 0,
    ) -> None:
        self.labels, self.augmentations, self.seed = labels, tuple(augmentations), seed

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def __getitem__(self, numbers: list[int]) -> LabeledBatch:
        """Return the images with these numbers."""

    def rows(self, numbers: Sequence[int]) -> Int[Tensor, " b"]:
        """Return which images these numbers are of."""
        return torch.tensor(numbers, dtype=torch.long) % len(self)

    def changed(
        self, images: UInt8[Tensor, "b c y x"], numbers: Sequence[int]
    ) -> UInt8[Tensor, "b c y2 x2"]:
        """Return images after the augmentations.

        Args:
            images: Some of them.
            numbers: Theirs; what is drawn depends on an image's number and the seed alone.
        """
        draws = [augmentation.draws for augmentation in self.augmentations]
        if not draws:
            return images
        drawn = numbered_uniforms(mixed(self.seed, _CHANGES), numbers, sum(draws))
        for augmentation, own in zip(self.augmentations, drawn.split(draws, 1), strict=True):
            images = augmentation(images, own)
        return images


class HeldImages(LabeledImages):
    """Small images, all of them in memory.

    Args:
        images: All of one size.
        labels: The class of each.
        augmentations: Applied one after the other, to a whole batch.
        seed: Another seed, other changes.

    Example:
        >>> held = HeldImages(torch.zeros(7, 1, 5, 3, dtype=torch.uint8), torch.arange(7))
        >>> held[[6, 2]].labels
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

    def __getitem__(self, numbers: list[int]) -> LabeledBatch:
        """Return the images with these numbers, changed where that is wanted."""
        rows = self.rows(numbers)
        return LabeledBatch(self.changed(self.images[rows], numbers), self.labels[rows])


class FramedPhotos(LabeledImages):
    """Photos of any size, read when their turn comes and made to fit.

    Args:
        files: Where the photos lie, or the photos themselves, read when they are asked for.
        labels: The class of each.
        framing: How a photo comes into the size that the network takes.
        augmentations: Applied one after the other, to each photo at its own size. What comes out
            in another size than the network takes is then framed.
        seed: Another seed, other changes.
        substitutes: What stands in, with its class, for a photo that cannot be read; none if left
            out.
    """

    def __init__(
        self,
        files: Sequence[Path | LoadedImage],
        labels: Int[Tensor, " n"],
        framing: ResizeSpec,
        augmentations: Sequence[Augmentation] = (),
        *,
        seed: int = 0,
        substitutes: ReadFallback | None = None,
    ) -> None:
        super().__init__(labels, augmentations, seed=seed)
        self.files, self.framing, self.substitutes = files, framing, substitutes

    def __getitem__(self, numbers: list[int]) -> LabeledBatch:
        """Return the photos with these numbers.

        Raises:
            ImageError: If one of them cannot be read, and nothing stands in for it.
        """
        rows = self.rows(numbers).tolist()
        found = [self._shown(row, number) for row, number in zip(rows, numbers, strict=True)]
        images, shown = zip(*found, strict=True)
        return LabeledBatch(torch.stack(images), self.labels[list(shown)])

    def _shown(self, row: int, number: int) -> tuple[UInt8[Tensor, "3 y x"], int]:
        """Return a photo, and which one it is."""

        def read(row: int) -> tuple[UInt8[Tensor, "3 y x"], int]:
            return self._image(self.files[row], number), row

        return read(row) if self.substitutes is None else self.substitutes.read(row, read)

    def _image(self, file: Path | LoadedImage, number: int) -> UInt8[Tensor, "3 y x"]:
        image = read_image(file)
        if self.augmentations:
            pixels = torch.from_numpy(np.ascontiguousarray(image.pixels.transpose(2, 0, 1)))
            (pixels,) = self.changed(pixels[None], [number])
            if tuple(pixels.shape[1:]) == self.framing.size:
                return pixels
            image = LoadedImage(pixels.permute(1, 2, 0).contiguous().numpy(), name=image.name)
        return frame(image, self.framing)[0]


def class_folders(folder: Path) -> list[str]:
    """Return the names of the classes of a folder that holds a folder of photos for each.

    Raises:
        FileNotFoundError: If there is no such folder, or nothing in it that could be a class.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> for name in ("tulip", "rose"):
        ...     (folder / name).mkdir()
        >>> class_folders(folder)
        ['rose', 'tulip']
    """
    inner = sorted(folder.iterdir()) if folder.is_dir() else []
    found = [path.name for path in inner if path.is_dir() and not path.name.startswith(".")]
    if not found:
        raise FileNotFoundError(
            f"{folder} holds no folders; photos are expected as {folder}/CLASS/PHOTO"
        )
    return found


def labeled_files(folder: Path, classes: Sequence[str]) -> tuple[list[Path], Int[Tensor, " n"]]:
    """Return the photos of a folder with a folder for each class, and the class of each photo.

    Args:
        folder: That of a split.
        classes: Names of the classes, in the order of their numbers.

    Raises:
        FileNotFoundError: If there is no folder or no photo of a class.
        ValueError: If there is a folder of a class that is not among these.
    """
    if unknown := sorted(set(class_folders(folder)) - set(classes)):
        raise ValueError(f"{folder} has classes that training has not: {', '.join(unknown[:5])}")
    found = [find_images(folder / name) for name in classes]
    labels = [torch.full((len(files),), number) for number, files in enumerate(found)]
    return [file for files in found for file in files], torch.cat(labels)
