"""Files that are written whole or not at all, on whatever disk."""

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_PART = ".part"
_FULL = {errno.ENOSPC, errno.EDQUOT}
_LEAST = 2**16  # bytes; where fewer are free, a writer that failed without a reason had no room


@contextmanager
def replacing(path: str | os.PathLike[str], *, needed: int = 0) -> Iterator[Path]:
    """Give a file to write, which takes the place of another in one move when that went well.

    It lies in the same folder, so that the move is one on every disk. Its content is on the disk
    before the move, and the move itself before this ends: whatever happens, the name stands for
    all of the old or all of the new. Who may read it is what the process says of new files.

    Args:
        path: What is to be replaced, or made.
        needed: About how many bytes it takes, if that is known; said where they do not fit.

    Raises:
        OSError: If it cannot be written. Where the disk is full it names the folder, and how much
            is free.

    Example:
        >>> file = getfixture("tmp_path") / "numbers.txt"
        >>> with replacing(file) as part:
        ...     _ = part.write_text("1 2 3")
        >>> file.read_text(), [path.name for path in file.parent.iterdir()]
        ('1 2 3', ['numbers.txt'])
    """
    target = Path(path)
    # Not longer than the name itself may be: 50 characters are 200 bytes at most.
    part = target.with_name(f".{target.name[:50]}.{secrets.token_hex(4)}{_PART}")
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield part
        _flush(part)
        part.replace(target)
    except BaseException as error:
        full, written = _is_full(error, part), part.stat().st_size if part.exists() else 0
        part.unlink(missing_ok=True)
        if full:
            raise _no_room(target.parent, max(needed, written)) from error
        if isinstance(error, OSError) and error.filename in (part, str(part)):
            error.filename = str(target)  # the name that people know
        raise
    _flush(target.parent)


def write_whole(path: str | os.PathLike[str], content: bytes | str) -> None:
    """Write a file in one move; text as UTF-8.

    Raises:
        OSError: If it cannot be written; what was there before stays.

    Example:
        >>> file = getfixture("tmp_path") / "words.txt"
        >>> write_whole(file, "café")
        >>> len(file.read_bytes())
        5
    """
    said = content.encode() if isinstance(content, str) else content
    with replacing(path, needed=len(said)) as part:
        part.write_bytes(said)


def remove_parts(folder: Path) -> None:
    """Remove what writers left in a folder that were killed; nobody may be writing there.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> for name in (".last.ckpt.0a1b2c3d.part", "last.ckpt"):
        ...     _ = (folder / name).write_text("")
        >>> remove_parts(folder)
        >>> [path.name for path in folder.iterdir()]
        ['last.ckpt']
    """
    for part in folder.glob(f".*{_PART}"):
        part.unlink(missing_ok=True)


def _flush(path: Path) -> None:
    """Wait until a file, or what a folder lists, is on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL or not path.is_dir():  # some disks know no such folders
            raise
    finally:
        os.close(handle)


def _is_full(error: BaseException, part: Path) -> bool:
    """Return whether a writer failed for want of room; torch does not say so."""
    if isinstance(error, OSError):
        return error.errno in _FULL
    return isinstance(error, RuntimeError) and shutil.disk_usage(part.parent).free < _LEAST


def _no_room(folder: Path, needed: int) -> OSError:
    free = shutil.disk_usage(folder).free
    return OSError(
        errno.ENOSPC,
        f"no space left: {_size(needed)} are needed and {_size(free)} are free; make room, or name "
        "another folder; what was there before is whole",
        str(folder),
    )


def _size(count: int) -> str:
    return f"{count / 1e3:.0f} kB" if count < 1e6 else f"{count / 1e6:,.1f} MB"
