"""Atomic writing: a file or a folder appears complete or not at all; errors of full disks.

Temporary files and folders are named `.NAME.xxxxxxxx.part` and locked while their writer lives, so
that a cleaner knows those of killed writers from those of running ones.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PART_SUFFIX = ".part"
_PART = re.compile(r"\..{1,50}\.[0-9a-f]{8}\.part(\.[0-9A-Za-z]{1,12})?")
# AT_FDCWD and RENAME_EXCHANGE of Linux, RENAME_SWAP of macOS: `os` has no such rename.
_AT_CWD = -100
_LINUX_EXCHANGE = 2
_MACOS_SWAP = 2


@contextmanager
def atomic_replace(
    path: str | os.PathLike[str], *, needed_bytes: int = 0, suffix: str = ""
) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` in one rename when the block succeeds.

    The temporary file lies in the same directory, so that the rename is atomic on every file
    system. Content and rename are flushed to the disk: after a crash the path holds either all of
    the old content or all of the new. The file gets the default permissions of the process.

    Args:
        needed_bytes: Expected size, if it is known, for the message of a full disk.
        suffix: Suffix of the temporary file, for writers that choose the format by it.

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
    with explained_disk_errors(target.parent, needed_bytes):
        part, lock = _create_part(target, suffix)
    try:
        yield part
        # Content before name: else a crash could leave an empty file under the name.
        flush(part)
        part.replace(target)
    except BaseException as error:
        written_bytes = part.stat().st_size if part.exists() else 0
        number = disk_errno(error, target.parent)
        part.unlink(missing_ok=True)
        os.ftruncate(lock, 0)  # an open file keeps its room on the disk
        if number is not None:
            needed = max(needed_bytes, written_bytes)
            raise disk_error(number, target.parent, needed, intact=True) from error
        if isinstance(error, OSError) and error.filename in (part, str(part)):
            error.filename = str(target)
        raise
    finally:
        os.close(lock)
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
    if Path(path).exists() and not Path(path).is_file():  # a device would be replaced for all users
        raise OSError(f"{path} is not a regular file; choose another name")
    data = content.encode() if isinstance(content, str) else content
    with atomic_replace(path, needed_bytes=len(data)) as part:
        part.write_bytes(data)


@contextmanager
def temporary_folder(beside: Path) -> Iterator[Path]:
    """Yield an empty folder, which is removed at the end unless it was renamed.

    It lies in the directory of `beside`, its later path.

    Example:
        >>> with temporary_folder(getfixture("tmp_path") / "scenes") as part:
        ...     part.name.startswith(".scenes."), part.name.endswith(".part")
        (True, True)
    """
    remove_partial_files(beside.parent, beside.name)
    with explained_disk_errors(beside.parent):
        part, lock = _create_part(beside, folder=True)
        try:
            yield part
        finally:
            shutil.rmtree(part, ignore_errors=True)
            os.close(lock)


@contextmanager
def atomic_replace_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary folder that replaces the folder `path` in one step.

    It does so when the block succeeds. At each moment the path holds all of the old content or all
    of the new. The old content is removed: check first that nothing of it is needed.

    Raises:
        OSError: If a file cannot be written, or the file system cannot exchange two folders.

    Example:
        >>> folder = getfixture("tmp_path") / "scenes"
        >>> for number in (3, 2):
        ...     with atomic_replace_folder(folder) as part:
        ...         for index in range(number):
        ...             (part / f"{index}.png").touch()
        >>> sorted(path.name for path in folder.iterdir())
        ['0.png', '1.png']
    """
    target = Path(os.path.realpath(path))  # a link stays
    with temporary_folder(target) as part:
        yield part
        for entry in (*part.rglob("*"), part):
            flush(entry)
        if target.exists():
            part.chmod(stat.S_IMODE(target.stat().st_mode))
        if target.is_dir() and any(target.iterdir()):
            _exchange(part, target)
        else:
            part.rename(target)  # also in place of an empty folder
        flush(target.parent)


def remove_partial_files(folder: Path, name: str | None = None) -> None:
    """Remove the temporary files and folders that killed writers left in a directory.

    Those of running writers are locked, and stay; so does everything on a file system without
    locks. With `name` only those of the file or folder of this name.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> for file in (".last.ckpt.0a1b2c3d.part", "last.ckpt", ".notes.part"):
        ...     _ = (folder / file).write_text("")
        >>> remove_partial_files(folder)
        >>> sorted(path.name for path in folder.iterdir())
        ['.notes.part', 'last.ckpt']
    """
    start = "." if name is None else f".{name[:50]}."
    with contextlib.suppress(OSError):
        for path in list(folder.iterdir()):
            if _PART.fullmatch(path.name) and path.name.startswith(start):
                with contextlib.suppress(OSError):
                    _remove_if_dead(path)


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


def _create_part(target: Path, suffix: str = "", *, folder: bool = False) -> tuple[Path, int]:
    """Create a temporary file or folder; return it with a descriptor that locks it."""
    while True:
        # 50 characters are at most 200 bytes, within the limit of 255 bytes for a file name.
        name = f".{target.name[:50]}.{secrets.token_hex(4)}{_PART_SUFFIX}{suffix}"
        part = target.with_name(name)
        try:
            if folder:
                part.mkdir()
            flags = os.O_RDONLY if folder else os.O_CREAT | os.O_EXCL | os.O_WRONLY
            lock = os.open(part, flags, 0o666)
        except OSError as error:
            error.filename = str(target)  # users do not know the temporary name
            raise
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        if part.exists():
            return part, lock
        os.close(lock)  # another process took it for a dead one before it was locked


def _remove_if_dead(part: Path) -> None:
    """Remove a temporary file or folder that no process has locked."""
    lock = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        # Raises if the writer still runs, and the caller goes on to the next one.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if part.is_dir():
            shutil.rmtree(part, ignore_errors=True)
        else:
            part.unlink(missing_ok=True)
    finally:
        os.close(lock)


def _exchange(first: Path, second: Path) -> None:
    """Exchange two folders in one step, so that no moment lacks either."""
    library = ctypes.CDLL(None, use_errno=True)
    paths = os.fsencode(first), os.fsencode(second)
    if sys.platform == "darwin":
        failed = library.renamex_np(*paths, _MACOS_SWAP)
    else:
        failed = library.renameat2(_AT_CWD, paths[0], _AT_CWD, paths[1], _LINUX_EXCHANGE)
    if failed:
        number = ctypes.get_errno()
        raise OSError(
            number,
            f"it cannot be replaced in one step ({os.strerror(number)}); choose a new folder",
            str(second),
        )


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

    torch raises a bare RuntimeError.

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
    # torch.save writes in C++ and raises a RuntimeError that does not say why it failed.
    full = isinstance(error, RuntimeError) and is_disk_full(folder)
    return errno.ENOSPC if full else None


def disk_error(
    number: int, folder: str | os.PathLike[str], needed_bytes: int = 0, *, intact: bool = False
) -> OSError:
    """Return the error that says what to do about a full or read-only disk.

    Args:
        intact: Whether the files that were to be replaced are as before.

    Example:
        >>> disk_error(errno.EDQUOT, "runs/1").strerror
        'the disk quota is exceeded; remove files of your own, or choose a folder on another...
    """
    message = _message(number, Path(folder), needed_bytes)
    return OSError(number, message + "; the old content is intact" * intact, str(folder))


def is_disk_full(folder: str | os.PathLike[str]) -> bool:
    """Return whether the disk of a folder has no room left, even for a small file.

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
