"""Atomic writing: a file appears complete or not at all.

Temporary files and folders are named `.NAME.xxxxxxxx.part`.
"""

import contextlib
import errno
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PART = re.compile(r"\..{1,50}\.[0-9a-f]{8}\.part")
_DAY = 86_400.0  # seconds; longer than any write
_MIN_FREE_BYTES = 2**16  # with less, a write that failed without an errno had no space


@contextmanager
def atomic_replace(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield the path of a temporary file, which replaces `path` in one rename after the block.

    It is in the same directory, so the rename is atomic on every file system. Content and rename
    are flushed to disk: after a crash the path has either the complete old content or the complete
    new content.

    Raises:
        OSError: If the file cannot be written; the old content is intact.

    Example:
        >>> file = getfixture("tmp_path") / "numbers.txt"
        >>> with atomic_replace(file) as part:
        ...     _ = part.write_text("1 2 3")
        >>> file.read_text(), [path.name for path in file.parent.iterdir()]
        ('1 2 3', ['numbers.txt'])
    """
    target = Path(path)
    part = _part_of(target)
    try:
        yield part
        flush(part)  # before the rename: a crash could otherwise leave an empty file
        part.replace(target)
    except BaseException as error:
        full = isinstance(error, RuntimeError) and is_disk_full(target.parent)
        part.unlink(missing_ok=True)
        if full:  # torch.save does not say why it failed
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target)) from error
        if isinstance(error, OSError) and error.errno and error.filename in (None, part, str(part)):
            error.filename = str(target)  # users do not know the temporary name
        raise
    flush(target.parent)


def atomic_write(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Write a file atomically; text is encoded as UTF-8.

    Raises:
        OSError: If the file cannot be written; the old content stays.

    Example:
        >>> file = getfixture("tmp_path") / "words.txt"
        >>> atomic_write(file, "café")
        >>> len(file.read_bytes())
        5
    """
    if Path(path).exists() and not Path(path).is_file():  # the rename would replace a device
        raise OSError(f"{path} is not a regular file; choose another name")
    with atomic_replace(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def temporary_folder(beside: Path) -> Iterator[Path]:
    """Yield an empty folder next to a path; it is removed afterwards.

    Example:
        >>> with temporary_folder(getfixture("tmp_path") / "scenes") as part:
        ...     part.name.startswith(".scenes."), part.name.endswith(".part")
        (True, True)
    """
    part = _part_of(beside)
    part.mkdir()
    try:
        yield part
    finally:
        shutil.rmtree(part, ignore_errors=True)


def remove_partial_files(folder: Path, older_than: float = _DAY) -> None:
    """Remove the temporary files and folders that killed writers left in a directory.

    Args:
        folder: The directory.
        older_than: Minimum age in seconds, to keep the files of running writers.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> for file in (".last.ckpt.0a1b2c3d.part", "last.ckpt", ".notes.part"):
        ...     _ = (folder / file).write_text("")
        >>> remove_partial_files(folder, older_than=0)
        >>> sorted(path.name for path in folder.iterdir())
        ['.notes.part', 'last.ckpt']
    """
    for path in [*folder.iterdir()] if folder.is_dir() else ():
        with contextlib.suppress(OSError):  # another process removed it
            if _PART.fullmatch(path.name) and time.time() - path.lstat().st_mtime >= older_than:
                if path.is_dir():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def flush(path: Path) -> None:
    """Flush a file or the entries of a directory to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        # Some file systems cannot sync a directory.
        if error.errno != errno.EINVAL or not path.is_dir():
            raise
    finally:
        os.close(descriptor)


def is_disk_full(folder: str | os.PathLike[str]) -> bool:
    """Return whether the disk of a folder has no space left, even for a small file.

    Example:
        >>> is_disk_full(".")
        False
    """
    return shutil.disk_usage(folder).free < _MIN_FREE_BYTES


def _part_of(target: Path) -> Path:
    """Return a new name for a temporary file or folder."""
    # 50 characters are at most 200 bytes, within the limit of 255 bytes for a file name.
    return target.with_name(f".{target.name[:50]}.{secrets.token_hex(4)}.part")
