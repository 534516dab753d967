"""Photos with captions as a data set: read when they are asked for, missing ones found before."""

import os
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from jaxtyping import UInt8
from torch import Tensor
from torch.utils.data import Dataset

from visattn.data.captions.batch import CaptionSample
from visattn.data.captions.files import CaptionEntry
from visattn.data.images.reader import LoadedImage, PathLike, read_image, read_size
from visattn.data.images.resize import ResizeSpec, frame, framed_geometry
from visattn.geometry.affine import Geometry
from visattn.io.safe_paths import SafeDirectory


class CaptionedImages(Dataset[CaptionSample]):
    """Images, each with all of its captions, wherever they lie.

    Args:
        entries: What is said of each.
        framing: How an image comes into the network's input.
    """

    def __init__(self, entries: Sequence[CaptionEntry], framing: ResizeSpec) -> None:
        self.entries, self.framing = entries, framing

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> CaptionSample:
        entry = self._entry(index)
        pixels, _ = self.framed(index)
        return CaptionSample(entry.id, pixels, entry.captions, references=entry.captions)

    def framed(self, index: int) -> tuple[UInt8[Tensor, "3 y x"], Geometry]:
        """Return what the network sees of an image, and the way back to the image.

        Raises:
            ImageError: If the image cannot be read; the message says where it lies.
        """
        return frame(self.image(index), self.framing)

    @abstractmethod
    def image(self, index: int) -> LoadedImage:
        """Return an image as it is."""

    @abstractmethod
    def geometry(self, index: int) -> Geometry:
        """Return the way back to an image, of which only the head is read."""

    def _entry(self, index: int) -> CaptionEntry:
        if not 0 <= index < len(self.entries):
            raise IndexError(f"index must lie in [0, {len(self.entries)}), got {index}")
        return self.entries[index]


class CaptionedPhotos(CaptionedImages):
    """Photos of a folder, each with all of its captions.

    Args:
        entries: What `read_captions` and `of_split` return.
        folder: Below which the files of the entries lie.
        framing: How a photo comes into the network's input.

    Raises:
        FileNotFoundError: If the folder, or any photo in it, is missing or empty.
        ValueError: If a photo lies outside of the folder, by its name or by a link.

    Example:
        >>> from PIL import Image
        >>> folder = getfixture("tmp_path")
        >>> Image.new("RGB", (7, 5)).save(folder / "a.png")
        >>> entries = [CaptionEntry("a", "a.png", ("A dark room .",))]
        >>> photos = CaptionedPhotos(entries, folder, ResizeSpec((3, 3)))
        >>> photos[0].image.shape, photos[0].captions
        (torch.Size([3, 3, 3]), ('A dark room .',))
    """

    def __init__(
        self, entries: Sequence[CaptionEntry], folder: PathLike, framing: ResizeSpec
    ) -> None:
        super().__init__(tuple(entries), framing)
        self.folder = Path(folder)
        if missing := missing_photos(entries, folder):
            some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            raise FileNotFoundError(
                f"{len(missing):,} of {len(entries):,} photos are missing or empty in "
                f"{folder}: {some}{_elsewhere(self.folder, missing[0])}"
            )

    def image(self, index: int) -> LoadedImage:
        """Return a photo.

        Raises:
            ImageError: If it cannot be read; the message names its file.
        """
        return read_image(self.folder / self._entry(index).file)

    def geometry(self, index: int) -> Geometry:
        """Return the way back to a photo, of which only the head of the file is read.

        Raises:
            ImageError: If it cannot be read; the message names the file.
        """
        size, orientation = read_size(self.folder / self._entry(index).file)
        return framed_geometry(size, self.framing, orientation)


def missing_photos(entries: Sequence[CaptionEntry], folder: PathLike) -> list[str]:
    """Return the files that are not in the folder, or empty there; no photo is opened.

    Raises:
        FileNotFoundError: If the folder itself is missing.
        ValueError: If a file lies outside of it, by its name or by a link.

    Example:
        >>> missing_photos([CaptionEntry("a", "a.png", ("A cat .",))], getfixture("tmp_path"))
        ['a.png']
    """
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"{folder} is no folder; give the folder of the photos")
    inside = SafeDirectory(folder)
    return [entry.file for entry in entries if not _holds(inside.path(entry.file))]


def _holds(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _elsewhere(folder: Path, file: str) -> str:
    """Return a hint if the photo lies one folder deeper, or in a folder beside this one."""
    shelves = [shelf for shelf in (folder, folder.absolute().parent) if os.access(shelf, os.R_OK)]
    places = [
        Path(place)
        for shelf in shelves
        for place in sorted(os.scandir(shelf), key=lambda place: place.name)
        if place.is_dir() and os.access(place, os.X_OK)
    ]
    found = next((place for place in places if _holds(place / file)), None)
    return f"; {found} has the first, is it the folder?" if found else "; take them out or add them"
