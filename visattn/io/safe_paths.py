"""Directory walks, and file names that cannot leave a directory."""

import os
import unicodedata
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path, PurePosixPath

from visattn.io.safe_text import CONTROL_CHARACTERS, short_repr

PathLike = str | os.PathLike[str]
_MAX_COMPONENT_BYTES = 255  # limit of most file systems
_MAX_PATH_BYTES = 3000  # Linux allows 4096 bytes including the directory
# Thumbnails and recycle bins of file servers, and metadata in macOS archives.
_NO_DATA = frozenset({"@eaDir", "__MACOSX", "#recycle", "@Recycle", "$RECYCLE.BIN"})


def is_ignored(name: str) -> bool:
    """Return whether a file or folder of this name is hidden or was made by a file server.

    Example:
        >>> is_ignored("@eaDir"), is_ignored("dogs")
        (True, False)
    """
    return name.startswith(".") or name in _NO_DATA


def walk_files(
    folder: PathLike,
    *,
    exclude: PathLike | None = None,
    skip: Callable[[Path], bool] | None = None,
    onerror: Callable[[OSError], object] | None = None,
) -> Iterator[Path]:
    """Yield the files in a directory in alphabetical order, then those in its subdirectories.

    Ignored names are skipped (`is_ignored`). Links to directories are followed unless they lead to
    a parent directory. Everything that is not a directory counts as a file, including dangling
    links, pipes, sockets and devices; reading those raises an error.

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
    known = [*Path(folder).resolve().parents, *([] if exclude is None else [exclude])]
    pending = [(Path(folder), frozenset(map(_file_id, known)))]
    while pending:
        parent, closed = pending.pop()
        try:
            with os.scandir(parent) as listing:
                entries = sorted(
                    (entry for entry in listing if not is_ignored(entry.name)),
                    key=lambda entry: entry.name,
                )
        except OSError as error:
            if onerror is None:
                raise
            onerror(error)
            continue
        closed |= {_file_id(parent)}
        folders = [parent / entry.name for entry in entries if _is_directory(entry)]
        yield from (parent / entry.name for entry in entries if not _is_directory(entry))
        pending += [
            (path, closed)
            for path in reversed(folders)
            if _file_id(path) not in closed and not (skip and skip(path))
        ]


def _is_directory(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself
        return False


def _file_id(path: PathLike) -> tuple[int, int] | None:
    try:
        status = os.stat(path)  # noqa: PTH116 (takes strings too)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def relative_path(name: str) -> str:
    r"""Return a file name from an annotation with `/`; raise if it leaves its directory.

    Raises:
        ValueError: If it is absolute, has `..` or control characters, or is too long for a file.

    Example:
        >>> relative_path("cats\\1.jpg")
        'cats/1.jpg'
        >>> relative_path("../secret")
        Traceback (most recent call last):
        ValueError: a file name must be a path inside its directory, got '../secret'
    """
    # Names may come from Windows: a backslash separates folders there, and C: is a drive.
    path = PurePosixPath(name.replace("\\", "/"))
    parts = path.parts
    outside = not parts or parts[0].startswith("/") or ".." in parts or parts[0][1:2] == ":"
    sizes = [len(part.encode("utf-8", "surrogatepass")) for part in parts]
    too_long = max(sizes, default=0) > _MAX_COMPONENT_BYTES or sum(sizes) > _MAX_PATH_BYTES
    if outside or too_long or CONTROL_CHARACTERS.search(name):
        raise ValueError(f"a file name must be a path inside its directory, got {short_repr(name)}")
    return str(path)


def file_below(folder: PathLike, name: str) -> Path:
    """Return the path of a file in a directory, which neither its name nor a link may leave.

    The file need not exist. Accented letters are found in composed and decomposed form; macOS
    archives have the latter.

    Raises:
        ValueError: If the name, or a link, leaves the directory.

    Example:
        >>> file_below("photos", "a.jpg")
        PosixPath('photos/a.jpg')
    """
    name = relative_path(name)
    spellings = (name, *(unicodedata.normalize(form, name) for form in ("NFC", "NFD")))
    paths = [Path(folder, spelling) for spelling in spellings]
    path = next(filter(os.path.lexists, paths), paths[0])
    target = Path(os.path.realpath(path)) if path.is_symlink() else _real(path.parent)
    if not target.is_relative_to(_real(Path(folder))):
        raise ValueError(
            f"{name!r} is a link to {target}, outside {folder}; copy the file there, or pass the "
            "directory that contains it"
        )
    return path


@lru_cache(4096)  # datasets have many files in few folders
def _real(folder: Path) -> Path:
    return Path(os.path.realpath(folder))
