"""File names that somebody else wrote down: none may lead out of its folder."""

import os
from pathlib import Path, PurePosixPath

from visattn.data.texts import CONTROLS, shown

PathLike = str | os.PathLike[str]
_LONGEST_PART = 255  # bytes: what file systems take
_LONGEST = 3000  # bytes: with the folder, Linux takes 4096


def check_name(name: str) -> None:
    r"""Refuse a name that is no path below a folder, on this system or another.

    Args:
        name: As a file of annotations has it, with slashes between its parts.

    Raises:
        ValueError: If it is empty, absolute, climbs up, holds control characters, or is longer
            than a file system takes.

    Example:
        >>> check_name("train/a.jpg")
        >>> check_name("../a.jpg")
        Traceback (most recent call last):
        ValueError: a file must be a path below its folder, got '../a.jpg'
    """
    parts = PurePosixPath(name.replace("\\", "/")).parts
    outside = not parts or parts[0].startswith("/") or ".." in parts or parts[0][1:2] == ":"
    if outside or CONTROLS.search(name):
        raise ValueError(f"a file must be a path below its folder, got {shown(name)}")
    longest = max(len(part.encode()) for part in parts)
    if longest > _LONGEST_PART or len(name.encode()) > _LONGEST:
        raise ValueError(
            f"a path may have {_LONGEST:,} bytes, and {_LONGEST_PART} between two slashes, got "
            f"{len(name.encode()):,} and {longest:,}: {shown(name)}"
        )


class ClosedFolder:
    """A folder and what is in it: a name leads nowhere else, nor does a link.

    The folder itself may be a link, and lie anywhere: it is the user's own choice.

    Args:
        folder: It need not exist yet.

    Example:
        >>> folder = ClosedFolder(getfixture("tmp_path"))
        >>> folder.path("train/a.jpg").relative_to(folder.folder).as_posix()
        'train/a.jpg'
        >>> folder.path("/etc/passwd")
        Traceback (most recent call last):
        ValueError: a file must be a path below its folder, got '/etc/passwd'
    """

    def __init__(self, folder: PathLike) -> None:
        self.folder = Path(folder)
        self._inner: set[Path] = set()  # folders that were found to lie inside

    def path(self, name: str) -> Path:
        """Return the path of a file, which need not exist.

        Raises:
            ValueError: If it does not lie in the folder, as `check_name` sees it or because
                something on the way is a link that leads out.
        """
        check_name(name)
        path = self.folder / name
        if path.parent not in self._inner:
            self._check(path.parent, name)
            self._inner.add(path.parent)
        if path.is_symlink():
            self._check(path, name)
        return path

    def _check(self, path: Path, name: str) -> None:
        there = Path(os.path.realpath(path))
        if not there.is_relative_to(os.path.realpath(self.folder)):
            raise ValueError(
                f"{name!r} leads by a link to {there}, out of {self.folder}; "
                "put the file itself there, or name the folder in which it is"
            )
