"""Photos with captions as a data set: read when they are asked for, missing ones found before."""

import os
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from jaxtyping import UInt8
from torch import Tensor
from torch.utils.data import Dataset

from visattn.data.batches import CaptionSample
from visattn.data.caption_files import CaptionEntry
from visattn.data.framings import Framing, frame, framed_geometry
from visattn.data.paths import ClosedFolder
from visattn.data.pictures import PathLike, Picture, read_picture, read_size
from visattn.maps.geometries import Geometry


class CaptionedPictures(Dataset[CaptionSample]):
    """Pictures, each with all of its captions, wherever they lie.

    Args:
        entries: What is said of each.
        framing: How a picture comes into the network's input.
    """

    def __init__(self, entries: Sequence[CaptionEntry], framing: Framing) -> None:
        self.entries, self.framing = entries, framing

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> CaptionSample:
        entry = self._entry(index)
        pixels, _ = self.framed(index)
        return CaptionSample(entry.id, pixels, entry.captions, references=entry.captions)

    def framed(self, index: int) -> tuple[UInt8[Tensor, "3 y x"], Geometry]:
        """Return what the network sees of a picture, and the way back to the picture.

        Raises:
            PictureError: If the picture cannot be read; the message says where it lies.
        """
        return frame(self.picture(index), self.framing)

    @abstractmethod
    def picture(self, index: int) -> Picture:
        """Return a picture as it is."""

    @abstractmethod
    def geometry(self, index: int) -> Geometry:
        """Return the way back to a picture, of which only the head is read."""

    def _entry(self, index: int) -> CaptionEntry:
        if not 0 <= index < len(self.entries):
            raise IndexError(f"index must lie in [0, {len(self.entries)}), got {index}")
        return self.entries[index]


class CaptionedPhotos(CaptionedPictures):
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
        >>> photos = CaptionedPhotos(entries, folder, Framing((3, 3)))
        >>> photos[0].picture.shape, photos[0].captions
        (torch.Size([3, 3, 3]), ('A dark room .',))
    """

    def __init__(self, entries: Sequence[CaptionEntry], folder: PathLike, framing: Framing) -> None:
        super().__init__(tuple(entries), framing)
        self.folder = Path(folder)
        if missing := missing_photos(entries, folder):
            some = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            raise FileNotFoundError(
                f"{len(missing):,} of {len(entries):,} photos are missing or empty in "
                f"{folder}: {some}{_elsewhere(self.folder, missing[0])}"
            )

    def picture(self, index: int) -> Picture:
        """Return a photo.

        Raises:
            PictureError: If it cannot be read; the message names its file.
        """
        return read_picture(self.folder / self._entry(index).file)

    def geometry(self, index: int) -> Geometry:
        """Return the way back to a photo, of which only the head of the file is read.

        Raises:
            PictureError: If it cannot be read; the message names the file.
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
    inside = ClosedFolder(folder)
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
