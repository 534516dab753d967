"""Opening of regular files only, so that no reader blocks on a pipe or a device."""

import os
import stat
from io import BufferedReader
from pathlib import Path


def open_regular_file(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a regular file for reading bytes; every reader of user data opens files with it.

    Anything else is refused at once: opening a pipe would wait for a writer, and a device may never
    end.

    Args:
        path: File to open; symbolic links are followed.

    Raises:
        ValueError: If it is a pipe, a socket, a device or a directory.
        OSError: If the file does not exist or cannot be opened.

    Example:
        >>> open_regular_file(os.devnull)
        Traceback (most recent call last):
        ValueError: /dev/null is not a regular file
    """
    file = Path(path)
    if stat.S_ISREG(file.stat().st_mode):
        # The file may have been replaced since; O_NONBLOCK keeps a pipe from blocking.
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return os.fdopen(descriptor, "rb")
        os.close(descriptor)
    raise ValueError(f"{file} is not a regular file")
