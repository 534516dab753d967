"""Datasets of images with captions, read on access; missing files are reported in advance."""

import os
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path

from jaxtyping import UInt8
from torch import Tensor
from torch.utils.data import Dataset

from visattn.data.captions.batch import CaptionSample
from visattn.data.captions.files import CaptionEntry
from visattn.geometry.affine import Geometry
from visattn.images.reader import LoadedImage, PathLike, read_image, read_size
from visattn.images.resize import ResizeSpec, resize_geometry, resize_to_input
from visattn.io.safe_paths import SafeDirectory


class CaptionedImages(Dataset[CaptionSample]):
    """Images, each with all of its captions, from any storage.

    Args:
        entries: Captions of each image.
        resize: Resizing to the network's input.
    """

    def __init__(self, entries: Sequence[CaptionEntry], resize: ResizeSpec) -> None:
        self.entries, self.resize = entries, resize

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> CaptionSample:
        entry = self._entry(index)
        pixels, _ = self.load_input(index)
        return CaptionSample(entry.id, pixels, entry.captions, references=entry.captions)

    def load_input(self, index: int) -> tuple[UInt8[Tensor, "3 y x"], Geometry]:
        """Return the network's input for an image, and its geometry.

        Raises:
            ImageError: If the image cannot be read; the message names its location.
        """
        return resize_to_input(self.load_image(index), self.resize)

    @abstractmethod
    def load_image(self, index: int) -> LoadedImage:
        """Return an image at its own size."""

    @abstractmethod
    def geometry(self, index: int) -> Geometry:
        """Return the geometry of an image; only its header is read."""

    def _entry(self, index: int) -> CaptionEntry:
        if not 0 <= index < len(self.entries):
            raise IndexError(f"index must lie in [0, {len(self.entries)}), got {index}")
        return self.entries[index]


class CaptionedPhotos(CaptionedImages):
    """Photos in a folder, each with all of its captions.

    Args:
        entries: As `read_captions` and `select_listed` return them.
        folder: Folder that the files of the entries are relative to.
        resize: Resizing to the network's input.

    Raises:
        FileNotFoundError: If the folder, or any photo in it, is missing or empty.
        ValueError: If the path of a photo, or a link, leads outside of the folder.

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
        self, entries: Sequence[CaptionEntry], folder: PathLike, resize: ResizeSpec
    ) -> None:
        super().__init__(tuple(entries), resize)
        self.folder = Path(folder)
        if missing := missing_photos(entries, folder):
            examples = ", ".join(missing[:3]) + (", ..." if len(missing) > 3 else "")
            raise FileNotFoundError(
                f"{len(missing):,} of {len(entries):,} photos are missing or empty in "
                f"{folder}: {examples}{_folder_hint(self.folder, missing[0])}"
            )

    def load_image(self, index: int) -> LoadedImage:
        """Return a photo at its own size.

        Raises:
            ImageError: If it cannot be read; the message names its file.
        """
        return read_image(self.folder / self._entry(index).file)

    def geometry(self, index: int) -> Geometry:
        """Return the geometry of a photo; only the header of its file is read.

        Raises:
            ImageError: If it cannot be read; the message names the file.
        """
        size, orientation = read_size(self.folder / self._entry(index).file)
        return resize_geometry(size, self.resize, orientation)


def missing_photos(entries: Sequence[CaptionEntry], folder: PathLike) -> list[str]:
    """Return the files that are missing in the folder or empty; no photo is decoded.

    Raises:
        FileNotFoundError: If the folder itself is missing.
        ValueError: If the path of a file, or a link, leads outside of the folder.

    Example:
        >>> missing_photos([CaptionEntry("a", "a.png", ("A cat .",))], getfixture("tmp_path"))
        ['a.png']
    """
    if not Path(folder).is_dir():
        raise FileNotFoundError(f"{folder} is not a folder; give the folder of the photos")
    directory = SafeDirectory(folder)
    return [entry.file for entry in entries if not _is_nonempty(directory.path(entry.file))]


def _is_nonempty(path: Path) -> bool:
    return path.is_file() and path.stat().st_size > 0


def _folder_hint(folder: Path, file: str) -> str:
    """Return a hint if the photo is in a subfolder or a sibling of this folder."""
    parents = [path for path in (folder, folder.absolute().parent) if os.access(path, os.R_OK)]
    candidates = [
        Path(candidate)
        for parent in parents
        for candidate in sorted(os.scandir(parent), key=lambda candidate: candidate.name)
        if candidate.is_dir() and os.access(candidate, os.X_OK)
    ]
    match = next((path for path in candidates if _is_nonempty(path / file)), None)
    if match is None:
        return "; add them, or remove their captions"
    return f"; {match} contains the first one: is it the folder?"
