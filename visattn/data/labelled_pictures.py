"""Pictures with the number of their class, read a batch at a time."""

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

import numpy as np
import torch
from jaxtyping import Int, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from visattn.data.augmentations import Augmentation
from visattn.data.framings import Framing, frame
from visattn.data.pictures import Picture, find_pictures, read_picture


class LabelledBatch(NamedTuple):
    """Pictures of one size, and the class of each."""

    pictures: UInt8[Tensor, "b c y x"]
    labels: Int[Tensor, " b"]

    def to(self, device: torch.device | str) -> Self:
        """Return the batch on another device."""
        return self._replace(
            pictures=self.pictures.to(device, non_blocking=True),
            labels=self.labels.to(device, non_blocking=True),
        )


class LabelledPictures(Dataset[LabelledBatch]):
    """Pictures with their classes; an item is a batch.

    Args:
        labels: The class of each picture.
        augmentations: Applied one after the other; training pictures have some.
    """

    def __init__(
        self, labels: Int[Tensor, " n"], augmentations: Sequence[Augmentation] = ()
    ) -> None:
        self.labels, self.augmentations = labels, tuple(augmentations)

    def __len__(self) -> int:
        return len(self.labels)

    @abstractmethod
    def __getitem__(self, numbers: list[int]) -> LabelledBatch:
        """Return the pictures with these numbers."""

    def changed(self, pictures: UInt8[Tensor, "b c y x"]) -> UInt8[Tensor, "b c y2 x2"]:
        """Return pictures after the augmentations."""
        for augmentation in self.augmentations:
            pictures = augmentation(pictures)
        return pictures


class HeldPictures(LabelledPictures):
    """Small pictures, all of them in memory.

    Args:
        pictures: All of one size.
        labels: The class of each.
        augmentations: Applied one after the other, to a whole batch.

    Example:
        >>> held = HeldPictures(torch.zeros(7, 1, 5, 3, dtype=torch.uint8), torch.arange(7))
        >>> held[[6, 2]].labels
        tensor([6, 2])
    """

    def __init__(
        self,
        pictures: UInt8[Tensor, "n c y x"],
        labels: Int[Tensor, " n"],
        augmentations: Sequence[Augmentation] = (),
    ) -> None:
        super().__init__(labels, augmentations)
        self.pictures = pictures

    def __getitem__(self, numbers: list[int]) -> LabelledBatch:
        """Return the pictures with these numbers, changed where that is wanted."""
        return LabelledBatch(self.changed(self.pictures[numbers]), self.labels[numbers])


class FramedPhotos(LabelledPictures):
    """Photos of any size, read when their turn comes and made to fit.

    Args:
        files: Where the photos lie.
        labels: The class of each.
        framing: How a photo comes into the size that the network takes.
        augmentations: Applied one after the other, to each photo at its own size. What comes out
            in another size than the network takes is then framed.
    """

    def __init__(
        self,
        files: Sequence[Path],
        labels: Int[Tensor, " n"],
        framing: Framing,
        augmentations: Sequence[Augmentation] = (),
    ) -> None:
        super().__init__(labels, augmentations)
        self.files, self.framing = tuple(files), framing

    def __getitem__(self, numbers: list[int]) -> LabelledBatch:
        """Return the photos with these numbers.

        Raises:
            PictureError: If one of them cannot be read.
        """
        pictures = [self._picture(self.files[number]) for number in numbers]
        return LabelledBatch(torch.stack(pictures), self.labels[numbers])

    def _picture(self, file: Path) -> UInt8[Tensor, "3 y x"]:
        picture = read_picture(file)
        if self.augmentations:
            pixels = torch.from_numpy(np.ascontiguousarray(picture.pixels.transpose(2, 0, 1)))
            (pixels,) = self.changed(pixels[None])
            if tuple(pixels.shape[1:]) == self.framing.size:
                return pixels
            picture = Picture(pixels.permute(1, 2, 0).contiguous().numpy(), name=picture.name)
        return frame(picture, self.framing)[0]


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


def labelled_files(folder: Path, classes: Sequence[str]) -> tuple[list[Path], Int[Tensor, " n"]]:
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
    found = [find_pictures(folder / name) for name in classes]
    labels = [torch.full((len(files),), number) for number, files in enumerate(found)]
    return [file for files in found for file in files], torch.cat(labels)
