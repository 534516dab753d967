"""Folders that commands write into, and files in them."""

import contextlib
import fcntl
import io
import itertools
import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from visattn.io import atomic as whole_files

if TYPE_CHECKING:  # loaded when a command runs, not for its help
    import numpy as np


def prepare_folder(folder: Path) -> None:
    """Make a folder, and find out before the work begins whether it takes files.

    Raises:
        OSError: If it cannot be made or written; the message names `--out`.

    Example:
        >>> prepare_folder(Path(__file__))
        Traceback (most recent call last):
        ...
        OSError: --out ...folders.py cannot be written: File exists; choose another folder
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        handle, probe = tempfile.mkstemp(prefix=".visattn-", dir=folder)  # ours, whoever else tries
        os.close(handle)
        Path(probe).unlink()
    except OSError as error:
        raise OSError(
            f"--out {folder} cannot be written: {error.strerror}; choose another folder"
        ) from error


@contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold a folder while a file that several commands share is read and written anew.

    It waits for another command that holds it, and lets go however it ends. On a disk that knows
    no locks nothing is held.

    Example:
        >>> with folder_lock(getfixture("tmp_path")):
        ...     pass
    """
    held = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def spare_images(folder: Path, files: Iterable[str], images: Iterable[Path]) -> None:
    """Let no file that a command will write take the place of an image that it reads.

    Args:
        folder: That of `--out`.
        files: Names of what will be written into it.
        images: That are read.

    Raises:
        ValueError: If one would.

    Example:
        >>> spare_images(Path("out"), ["dog.png"], [Path("photos/dog.png")])
    """
    kept = {os.path.realpath(path) for path in images}  # unlike resolve, bears links in a loop
    for file in files:
        if os.path.realpath(folder / file) in kept:
            raise ValueError(
                f"--out {folder} would put a file in place of the image {file}; "
                "choose another folder"
            )


def png(drawn: "np.ndarray") -> bytes:
    """Return an image as PNG: gray with 16 bits, RGB or RGBA with 8.

    Example:
        >>> png(np.zeros((2, 3), np.uint16))[1:4]
        b'PNG'
    """
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(drawn).save(buffer, "png", compress_level=4)
    return buffer.getvalue()


def write_whole(path: Path, content: bytes) -> None:
    """Write a file at once: whoever looks finds what was there before, or all of it.

    Raises:
        OSError: If it cannot be written, or is there and no file; nothing is left of it then.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> write_whole(folder / "a.txt", b"all of it")
        >>> [path.name for path in folder.iterdir()]
        ['a.txt']
    """
    if path.exists() and not path.is_file():  # a device would be replaced, for everybody
        raise OSError(f"{path} is no file; choose another name")
    whole_files.write_whole(path, content)


def file_names(paths: Sequence[Path], *, taken: str = "index") -> dict[Path, str]:
    """Return a name for each file, without suffix, that no other has.

    Files of the same name are told apart by their folders; where these do not help (a.jpg beside
    a.png, or names that only differ in capitals), by a number.

    Args:
        paths: Files, wherever they lie.
        taken: A name that none of them may have.

    Example:
        >>> list(file_names([Path("a/dog.jpg"), Path("b/dog.jpg"), Path("b/index.jpg")]).values())
        ['a_dog', 'b_dog', 'index_2']
    """
    whole = {path: path.absolute() for path in paths}  # not resolved: links keep their own names
    names = {path: _plain(place.stem) for path, place in whole.items()}
    for depth in range(1, max(len(place.parts) for place in whole.values())):
        for path in _shared(names):
            folders = [part for part in whole[path].parts[1:-1] if part != ".."][-depth:]
            names[path] = "_".join(map(_plain, [*folders, whole[path].stem]))
    used = {taken}
    for path, name in names.items():
        numbered = (f"{name}_{number}" for number in itertools.count(2))
        names[path] = next(
            new for new in itertools.chain([name], numbered) if new.casefold() not in used
        )
        used.add(names[path].casefold())
    return names


def _shared(names: dict[Path, str]) -> list[Path]:
    """Return the paths whose name is not theirs alone; capitals make no difference."""
    counts = Counter(name.casefold() for name in names.values())
    return [path for path, name in names.items() if counts[name.casefold()] > 1]


def _plain(part: str) -> str:
    """Return a part of a path as it can be printed on one line, in any terminal."""
    return "".join(letter if letter.isprintable() else "_" for letter in part)
