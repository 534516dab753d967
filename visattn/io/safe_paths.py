"""Folders of others: what lies in them, and names that may not lead out of them."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from visattn.io.safe_text import CONTROLS, shown

PathLike = str | os.PathLike[str]
_LONGEST_PART = 255  # bytes: what file systems take
_LONGEST = 3000  # bytes: with the folder, Linux takes 4096


def walk_files(
    folder: PathLike,
    *,
    omit: PathLike | None = None,
    onerror: Callable[[OSError], object] | None = None,
) -> Iterator[Path]:
    """Yield the files below a folder, each folder's own in alphabetical order before those below.

    Hidden files and folders are left out. Links to folders are not followed, so that the walk ends
    and stays in the folder. All that is not a folder counts as a file: dangling or looping links,
    pipes, sockets and devices too, which whoever reads them refuses and reports.

    Args:
        folder: May itself be a link.
        omit: A folder below it that is left out, whatever it is called; it need not exist.
        onerror: Takes the error of each folder that cannot be listed, as for `os.walk`; by default
            the error is raised.

    Raises:
        OSError: If a folder cannot be listed and there is no `onerror`.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> for name in ("photos", "results"):
        ...     (folder / name).mkdir()
        ...     (folder / name / "a.jpg").touch()
        >>> [path.name for path in walk_files(folder, omit=folder / "results")]
        ['a.jpg']
    """
    left_out = _identity(omit) if omit is not None else None
    waiting = [Path(folder)]
    while waiting:
        parent = waiting.pop()
        try:
            with os.scandir(parent) as listing:
                entries = sorted(
                    (entry for entry in listing if not entry.name.startswith(".")),
                    key=lambda entry: entry.name,
                )
        except OSError as error:
            if onerror is None:
                raise
            onerror(error)
            continue
        folders = [parent / entry.name for entry in entries if _is_folder(entry)]
        yield from (parent / entry.name for entry in entries if not _is_folder(entry))
        waiting += [
            path
            for path in reversed(folders)
            if not path.is_symlink() and (left_out is None or _identity(path) != left_out)
        ]


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself
        return False


def _identity(path: PathLike) -> tuple[int, int] | None:
    """Return what tells a file from all others, by whatever name; None if it is not there."""
    try:
        found = os.stat(path)  # noqa: PTH116 (takes texts too)
    except OSError:
        return None
    return found.st_dev, found.st_ino


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


class SafeDirectory:
    """A folder and what is in it: a name leads nowhere else, nor does a link.

    The folder itself may be a link, and lie anywhere: it is the user's own choice.

    Args:
        folder: It need not exist yet.

    Example:
        >>> folder = SafeDirectory(getfixture("tmp_path"))
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
