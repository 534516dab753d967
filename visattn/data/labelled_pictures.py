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
from visattn.data.numbered_draws import mixed, numbered_uniforms
from visattn.data.pictures import Picture, find_pictures, read_picture
from visattn.data.substitutes import Substitutes

_CHANGES = 1  # sets what augmentations draw apart from what else a seed is for


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

    Numbers go on behind the last picture: with n pictures, i + n is picture i changed in another
    way, which is how every epoch changes pictures anew.

    Args:
        labels: The class of each picture.
        augmentations: Applied one after the other; training pictures have some.
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
    def __getitem__(self, numbers: list[int]) -> LabelledBatch:
        """Return the pictures with these numbers."""

    def rows(self, numbers: Sequence[int]) -> Int[Tensor, " b"]:
        """Return which pictures these numbers are of."""
        return torch.tensor(numbers, dtype=torch.long) % len(self)

    def changed(
        self, pictures: UInt8[Tensor, "b c y x"], numbers: Sequence[int]
    ) -> UInt8[Tensor, "b c y2 x2"]:
        """Return pictures after the augmentations.

        Args:
            pictures: Some of them.
            numbers: Theirs; what is drawn depends on a picture's number and the seed alone.
        """
        draws = [augmentation.draws for augmentation in self.augmentations]
        if not draws:
            return pictures
        drawn = numbered_uniforms(mixed(self.seed, _CHANGES), numbers, sum(draws))
        for augmentation, own in zip(self.augmentations, drawn.split(draws, 1), strict=True):
            pictures = augmentation(pictures, own)
        return pictures


class HeldPictures(LabelledPictures):
    """Small pictures, all of them in memory.

    Args:
        pictures: All of one size.
        labels: The class of each.
        augmentations: Applied one after the other, to a whole batch.
        seed: Another seed, other changes.

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
        *,
        seed: int = 0,
    ) -> None:
        super().__init__(labels, augmentations, seed=seed)
        self.pictures = pictures

    def __getitem__(self, numbers: list[int]) -> LabelledBatch:
        """Return the pictures with these numbers, changed where that is wanted."""
        rows = self.rows(numbers)
        return LabelledBatch(self.changed(self.pictures[rows], numbers), self.labels[rows])


class FramedPhotos(LabelledPictures):
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
        files: Sequence[Path | Picture],
        labels: Int[Tensor, " n"],
        framing: Framing,
        augmentations: Sequence[Augmentation] = (),
        *,
        seed: int = 0,
        substitutes: Substitutes | None = None,
    ) -> None:
        super().__init__(labels, augmentations, seed=seed)
        self.files, self.framing, self.substitutes = files, framing, substitutes

    def __getitem__(self, numbers: list[int]) -> LabelledBatch:
        """Return the photos with these numbers.

        Raises:
            PictureError: If one of them cannot be read, and nothing stands in for it.
        """
        rows = self.rows(numbers).tolist()
        found = [self._shown(row, number) for row, number in zip(rows, numbers, strict=True)]
        pictures, shown = zip(*found, strict=True)
        return LabelledBatch(torch.stack(pictures), self.labels[list(shown)])

    def _shown(self, row: int, number: int) -> tuple[UInt8[Tensor, "3 y x"], int]:
        """Return a photo, and which one it is."""

        def read(row: int) -> tuple[UInt8[Tensor, "3 y x"], int]:
            return self._picture(self.files[row], number), row

        return read(row) if self.substitutes is None else self.substitutes.read(row, read)

    def _picture(self, file: Path | Picture, number: int) -> UInt8[Tensor, "3 y x"]:
        picture = read_picture(file)
        if self.augmentations:
            pixels = torch.from_numpy(np.ascontiguousarray(picture.pixels.transpose(2, 0, 1)))
            (pixels,) = self.changed(pixels[None], [number])
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
