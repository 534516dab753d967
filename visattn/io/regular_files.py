"""Files that are opened for reading: regular ones only, so that no reader waits for ever."""

import os
import stat
from io import BufferedReader
from pathlib import Path


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file for reading its bytes; every reader of data opens files so.

    Whatever else has a file's name is refused at once: opening a pipe would wait for a writer, and
    a device may never end.

    Args:
        path: Links are followed.

    Raises:
        ValueError: If it is a pipe, a socket, a device or a folder.
        OSError: If there is no such file, or it cannot be opened.

    Example:
        >>> open_regular(os.devnull)
        Traceback (most recent call last):
        ValueError: /dev/null is not a regular file
    """
    file = Path(path)
    if stat.S_ISREG(file.stat().st_mode):
        # It may be another file by now: one that is opened so does not wait either.
        opened = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if stat.S_ISREG(os.fstat(opened).st_mode):
            return os.fdopen(opened, "rb")
        os.close(opened)
    raise ValueError(f"{file} is not a regular file")
