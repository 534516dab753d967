"""Atomic file writing: a file appears complete or not at all."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PART_SUFFIX = ".part"
_DISK_FULL_ERRNOS = {errno.ENOSPC, errno.EDQUOT}
_MIN_FREE_BYTES = 2**16  # below this a writer that failed without an errno had no space


@contextmanager
def atomic_replace(path: str | os.PathLike[str], *, needed_bytes: int = 0) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` in one rename when the block succeeds.

    The temporary file lies in the same directory, so that the rename is atomic on every file
    system. Content and rename are flushed to the disk: after a crash the path holds either all of
    the old content or all of the new. The file gets the default permissions of the process.

    Args:
        path: File to replace or create.
        needed_bytes: Expected size, if it is known, for the message of a full disk.

    Raises:
        OSError: If the file cannot be written. If the disk is full, the message names the directory
            and the free space.

    Example:
        >>> file = getfixture("tmp_path") / "numbers.txt"
        >>> with atomic_replace(file) as part:
        ...     _ = part.write_text("1 2 3")
        >>> file.read_text(), [path.name for path in file.parent.iterdir()]
        ('1 2 3', ['numbers.txt'])
    """
    target = Path(path)
    # 50 characters are at most 200 bytes, within the limit of 255 bytes for a file name.
    part = target.with_name(f".{target.name[:50]}.{secrets.token_hex(4)}{_PART_SUFFIX}")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield part
        _flush(part)
        part.replace(target)
    except BaseException as error:
        disk_full = _is_disk_full(error, part)
        written_bytes = part.stat().st_size if part.exists() else 0
        part.unlink(missing_ok=True)
        if disk_full:
            raise _disk_full_error(target.parent, max(needed_bytes, written_bytes)) from error
        if isinstance(error, OSError) and error.filename in (part, str(part)):
            error.filename = str(target)  # users do not know the temporary name
        raise
    _flush(target.parent)


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
    if Path(path).exists() and not Path(path).is_file():  # a device would be replaced for all users
        raise OSError(f"{path} is not a regular file; choose another name")
    data = content.encode() if isinstance(content, str) else content
    with atomic_replace(path, needed_bytes=len(data)) as part:
        part.write_bytes(data)


def remove_partial_files(folder: Path) -> None:
    """Remove the temporary files that killed writers left in a directory without active writers.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> for name in (".last.ckpt.0a1b2c3d.part", "last.ckpt"):
        ...     _ = (folder / name).write_text("")
        >>> remove_partial_files(folder)
        >>> [path.name for path in folder.iterdir()]
        ['last.ckpt']
    """
    for part in folder.glob(f".*{_PART_SUFFIX}"):
        part.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Flush a file or a directory entry to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if (
            error.errno != errno.EINVAL or not path.is_dir()
        ):  # some file systems cannot sync a directory
            raise
    finally:
        os.close(descriptor)


def _is_disk_full(error: BaseException, part: Path) -> bool:
    """Return whether a write failed for lack of space; torch raises a bare RuntimeError."""
    if isinstance(error, OSError):
        return error.errno in _DISK_FULL_ERRNOS
    return isinstance(error, RuntimeError) and shutil.disk_usage(part.parent).free < _MIN_FREE_BYTES


def _disk_full_error(folder: Path, needed_bytes: int) -> OSError:
    free = shutil.disk_usage(folder).free
    return OSError(
        errno.ENOSPC,
        f"no space left: {_format_size(needed_bytes)} are needed and {_format_size(free)} are "
        "free; make room or choose another directory; the old content is intact",
        str(folder),
    )


def _format_size(count: int) -> str:
    return f"{count / 1e3:.0f} kB" if count < 1e6 else f"{count / 1e6:,.1f} MB"
