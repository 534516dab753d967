"""Output folders, unique file names, and PNG encoding."""

import contextlib
import fcntl
import io
import itertools
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.io.atomic import (
    DISK_ERRNOS,
    explained_disk_errors,
    remove_partial_files,
    temporary_folder,
)

if TYPE_CHECKING:  # imported when a command runs, not for its help
    import numpy as np


def create_folder(folder: Path) -> None:
    """Create a folder, check that files can be written, remove what killed writers left in it.

    Raises:
        OSError: If it cannot be created or written; the message names `--out`.

    Example:
        >>> create_folder(Path(__file__))
        Traceback (most recent call last):
        ...
        OSError: --out ...folders.py cannot be written: File exists; choose another folder
    """
    try:
        with explained_disk_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        remove_partial_files(folder)
        with temporary_folder(folder / "visattn"):
            pass
    except OSError as error:
        if error.errno in DISK_ERRNOS:
            raise
        raise OSError(
            f"--out {folder} cannot be written: {error.strerror}; choose another folder"
        ) from error


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Lock a folder while a file that several processes share is read and rewritten.

    Waits for another process that holds the lock. File systems without locks are not locked.

    Example:
        >>> with folder_lock(getfixture("tmp_path")):
        ...     pass
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def check_no_overwrite(folder: Path, files: Iterable[str], images: Iterable[Path]) -> None:
    """Check that no output file would replace an input image.

    Args:
        folder: Value of `--out`.
        files: Names of the output files.
        images: Input images.

    Raises:
        ValueError: If an output file would replace an image.

    Example:
        >>> check_no_overwrite(Path("out"), ["dog.png"], [Path("photos/dog.png")])
    """
    inputs = {os.path.realpath(path) for path in images}  # unlike resolve, accepts link loops
    for file in files:
        if os.path.realpath(folder / file) in inputs:
            raise ValueError(
                f"--out {folder} would overwrite the input image {file}; choose another folder"
            )


def encode_png(pixels: "np.ndarray") -> bytes:
    """Return an image as PNG: gray with 8 or 16 bits, RGB or RGBA with 8.

    Example:
        >>> encode_png(np.zeros((2, 3), np.uint16))[1:4]
        b'PNG'
    """
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png", compress_level=4)
    return buffer.getvalue()


def unique_names(paths: Sequence[Path], *, reserved: str = "index") -> dict[Path, str]:
    """Return a unique file name without suffix for each path.

    Files of the same name are distinguished by their folders, and where these do not help (a.jpg
    beside a.png, or names that differ only in case) by a number.

    Args:
        paths: Files in any folders.
        reserved: A name that no file may have, alone or with a number as in index-2.

    Example:
        >>> list(unique_names([Path("a/dog.jpg"), Path("b/dog.jpg"), Path("b/index.jpg")]).values())
        ['a_dog', 'b_dog', 'index_2']
    """
    absolute = {path: path.absolute() for path in paths}  # not resolved: links keep their names
    names = {path: _printable(full.stem) for path, full in absolute.items()}
    for depth in range(1, max(len(full.parts) for full in absolute.values())):
        for path in _duplicates(names):
            folders = [part for part in absolute[path].parts[1:-1] if part != ".."][-depth:]
            names[path] = "_".join(map(_printable, [*folders, absolute[path].stem]))
    return _numbered(names, reserved)


def mirrored_names(
    paths: Sequence[Path], roots: Sequence[Path], *, reserved: str = "index"
) -> dict[Path, str]:
    """Return a unique file name without suffix for each path, below the subfolders of its root.

    Args:
        paths: Files in any folders.
        roots: Folders that were searched for them, and files.
        reserved: A name that no file may have.

    Example:
        >>> list(mirrored_names([Path("a/b/dog.jpg"), Path("cat.jpg")], [Path("a")]).values())
        ['b/dog', 'cat']
    """
    names: dict[Path, str] = {}
    for path in paths:
        root = next((root for root in roots if path.is_relative_to(root) and path != root), None)
        folder = path.relative_to(root).parent if root is not None else Path()
        names[path] = "/".join(map(_printable, [*folder.parts, path.stem]))
    return _numbered(names, reserved)


def _numbered(names: dict[Path, str], reserved: str) -> dict[Path, str]:
    """Return names with a number where two are equal but for their case, or reserved."""
    used: set[str] = set()
    taken = re.compile(rf"(?:{re.escape(reserved)}|index)(?:-[0-9]+)?")
    for path, name in names.items():
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        names[path] = next(
            new
            for new in itertools.chain([name], numbered)
            if new.casefold() not in used and not taken.fullmatch(new.casefold())
        )
        used.add(names[path].casefold())
    return names


def _duplicates(names: dict[Path, str]) -> list[Path]:
    """Return the paths whose name is not unique, ignoring case."""
    counts = Counter(name.casefold() for name in names.values())
    return [path for path, name in names.items() if counts[name.casefold()] > 1]


def _printable(part: str) -> str:
    """Return a part of a path with unprintable characters replaced by underscores."""
    return "".join(letter if letter.isprintable() else "_" for letter in part)
