"""Directory walks and file names that cannot lead out of a directory."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from visattn.io.safe_text import CONTROL_CHARACTERS, short_repr

PathLike = str | os.PathLike[str]
_MAX_COMPONENT_BYTES = 255  # limit of most file systems
_MAX_PATH_BYTES = 3000  # Linux allows 4096 bytes including the directory


def walk_files(
    folder: PathLike,
    *,
    exclude: PathLike | None = None,
    skip: Callable[[Path], bool] | None = None,
    onerror: Callable[[OSError], object] | None = None,
) -> Iterator[Path]:
    """Yield the files below a directory: its own in alphabetical order, then those below.

    Hidden files and directories are skipped. Links to directories are not followed, so that the
    walk ends and stays inside. Everything that is not a directory counts as a file, including
    dangling links, pipes, sockets and devices; readers refuse those and report them.

    Args:
        folder: Directory; it may itself be a link.
        exclude: Subdirectory to skip, under any of its names; it need not exist.
        skip: Called with each other subdirectory; returns whether to skip it.
        onerror: Called with the error of each directory that cannot be listed, as in `os.walk`. By
            default the error is raised.

    Raises:
        OSError: If a directory cannot be listed and there is no `onerror`.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> for name in ("photos", "results"):
        ...     (folder / name).mkdir()
        ...     (folder / name / "a.jpg").touch()
        >>> [path.name for path in walk_files(folder, exclude=folder / "results")]
        ['a.jpg']
    """
    excluded = _file_id(exclude) if exclude is not None else None
    pending = [Path(folder)]
    while pending:
        parent = pending.pop()
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
        folders = [parent / entry.name for entry in entries if _is_directory(entry)]
        yield from (parent / entry.name for entry in entries if not _is_directory(entry))
        pending += [
            path
            for path in reversed(folders)
            if not path.is_symlink()
            and (excluded is None or _file_id(path) != excluded)
            and not (skip and skip(path))
        ]


def _is_directory(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _file_id(path: PathLike) -> tuple[int, int] | None:
    """Return device and inode of a file, or None if it does not exist."""
    try:
        status = os.stat(path)  # noqa: PTH116 (takes strings too)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def check_relative_path(name: str) -> None:
    r"""Refuse a file name that is not a relative path inside its directory, on any platform.

    Raises:
        ValueError: If the name is empty or absolute, contains `..` or control characters, or is
            longer than file systems allow.

    Example:
        >>> check_relative_path("train/a.jpg")
        >>> check_relative_path("../a.jpg")
        Traceback (most recent call last):
        ValueError: a file name must be a path inside its directory, got '../a.jpg'
    """
    # Names may come from Windows: a backslash separates folders there, and C: is a drive.
    parts = PurePosixPath(name.replace("\\", "/")).parts
    outside = not parts or parts[0].startswith("/") or ".." in parts or parts[0][1:2] == ":"
    if outside or CONTROL_CHARACTERS.search(name):
        raise ValueError(f"a file name must be a path inside its directory, got {short_repr(name)}")
    longest = max(len(component.encode()) for component in parts)
    if longest > _MAX_COMPONENT_BYTES or len(name.encode()) > _MAX_PATH_BYTES:
        raise ValueError(
            f"a path may have {_MAX_PATH_BYTES:,} bytes, and {_MAX_COMPONENT_BYTES} per component, "
            f"got {len(name.encode()):,} and {longest:,}: {short_repr(name)}"
        )


class SafeDirectory:
    """A directory from which neither a name nor a link can lead out.

    The directory itself may be a link and lie anywhere, since the user chose it.

    Example:
        >>> folder = SafeDirectory(getfixture("tmp_path"))
        >>> folder.path("train/a.jpg").relative_to(folder.folder).as_posix()
        'train/a.jpg'
        >>> folder.path("/etc/passwd")
        Traceback (most recent call last):
        ValueError: a file name must be a path inside its directory, got '/etc/passwd'
    """

    def __init__(self, folder: PathLike) -> None:
        self.folder = Path(folder)
        self._checked_parents: set[Path] = set()  # known to lie inside

    def path(self, name: str) -> Path:
        """Return the path of a file, which need not exist.

        Raises:
            ValueError: If `check_relative_path` refuses the name, or if the path leads through a
                link to outside.
        """
        check_relative_path(name)
        path = self.folder / name
        # Folders are resolved once, since data sets have many files in few of them. A file itself
        # may still be a link.
        if path.parent not in self._checked_parents:
            self._check_inside(path.parent, name)
            self._checked_parents.add(path.parent)
        if path.is_symlink():
            self._check_inside(path, name)
        return path

    def _check_inside(self, path: Path, name: str) -> None:
        target = Path(os.path.realpath(path))
        if not target.is_relative_to(os.path.realpath(self.folder)):
            raise ValueError(
                f"{name!r} is a link to {target}, outside {self.folder}; "
                "copy the file there, or pass the directory that contains it"
            )
