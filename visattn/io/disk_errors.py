"""Errors of full and read-only disks: the folder, the room that is missing, and what to do."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PROBLEMS = {
    errno.ENOSPC: "no space left",
    errno.EDQUOT: "the disk quota is exceeded",
    errno.EROFS: "the disk is read-only",
}
DISK_ERRNOS = frozenset(_PROBLEMS)
"""Numbers of the errors that are explained."""
_MIN_FREE_BYTES = 2**16  # below this a writer that failed without an errno had no space


@contextmanager
def explained_disk_errors(folder: str | os.PathLike[str], needed_bytes: int = 0) -> Iterator[None]:
    """Explain errors of a full or read-only disk; other errors pass unchanged.

    Args:
        folder: Folder that the block writes into.
        needed_bytes: Number of bytes that it writes, if it is known.

    Raises:
        OSError: With the same errno; the message names the folder, the free space and what to do.

    Example:
        >>> with explained_disk_errors("runs/1"):
        ...     raise OSError(errno.EROFS, "Read-only file system")
        Traceback (most recent call last):
        OSError: [Errno 30] the disk is read-only; choose another folder...: 'runs/1'
    """
    try:
        yield
    except OSError as error:
        number = disk_errno(error, folder)
        if number is None:
            raise
        raise disk_error(number, folder, needed_bytes) from error


def disk_errno(error: BaseException, folder: str | os.PathLike[str]) -> int | None:
    """Return the errno of an error of a full or read-only disk; None for any other error.

    Args:
        error: What was raised while files were written; torch raises a bare RuntimeError.
        folder: Folder of the files.

    Example:
        >>> disk_errno(OSError(errno.EROFS, "Read-only file system"), "runs/1")
        30
        >>> disk_errno(ValueError("another"), "runs/1") is None
        True
    """
    if isinstance(error, OSError):
        # Any other text was written by this package, and says what to do already.
        explained = error.strerror != os.strerror(error.errno or 0)
        return None if explained or error.errno not in _PROBLEMS else error.errno
    full = isinstance(error, RuntimeError) and is_disk_full(folder)
    return errno.ENOSPC if full else None


def disk_error(
    number: int, folder: str | os.PathLike[str], needed_bytes: int = 0, *, intact: bool = False
) -> OSError:
    """Return the error that says what to do about a full or read-only disk.

    Args:
        number: As `disk_errno` returned it.
        folder: Folder of the files.
        needed_bytes: Their size, if it is known.
        intact: Whether the files that were to be replaced are as before.

    Example:
        >>> disk_error(errno.EDQUOT, "runs/1").strerror
        'the disk quota is exceeded; remove files of your own, or choose a folder on another...
    """
    message = _message(number, Path(folder), needed_bytes)
    return OSError(number, message + "; the old content is intact" * intact, str(folder))


def is_disk_full(folder: str | os.PathLike[str]) -> bool:
    """Return whether the disk of a folder has no room left, even for a small file.

    Args:
        folder: The folder; it may be missing.

    Example:
        >>> is_disk_full(".")
        False
    """
    return _free_bytes(Path(folder)) < _MIN_FREE_BYTES


def _message(number: int, folder: Path, needed_bytes: int) -> str:
    if number == errno.EROFS:
        advice = "choose another folder, or mount the disk for writing"
    elif number == errno.EDQUOT:
        advice = "remove files of your own, or choose a folder on another disk"
    else:
        needed = f"{_format_size(needed_bytes)} are needed and " if needed_bytes else ""
        advice = (
            f"{needed}{_format_size(_free_bytes(folder))} are free; make room or choose another "
            "directory"
        )
    separator = ": " if number == errno.ENOSPC else "; "
    return f"{_PROBLEMS[number]}{separator}{advice}"


def _free_bytes(folder: Path) -> int:
    absolute = folder.absolute()
    return shutil.disk_usage(next(p for p in (absolute, *absolute.parents) if p.exists())).free


def _format_size(count: int) -> str:
    return f"{count / 1e3:.0f} kB" if count < 1e6 else f"{count / 1e6:,.1f} MB"
