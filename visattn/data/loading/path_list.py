"""A list of paths in one array of bytes."""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from os import fsdecode, fsencode
from pathlib import Path
from typing import overload

import numpy as np


class PathList(Sequence[Path]):
    """An immutable list of paths that takes the bytes of their names and 8 more for each.

    A `Path` takes about 400 bytes, and a worker process copies each one that it touches, since
    reading an object changes its reference count. Arrays are shared with workers.

    Args:
        paths: The paths.

    Example:
        >>> files = PathList([Path("a/1.png"), Path("b/2.png"), Path("b/3.png")])
        >>> files[1].as_posix(), len(files), [path.name for path in files[::2]]
        ('b/2.png', 3, ['1.png', '3.png'])
    """

    def __init__(self, paths: Iterable[Path]) -> None:
        names = [fsencode(path) for path in paths]
        self._ends = np.array([0, *accumulate(map(len, names))], np.int64)
        self._bytes = np.frombuffer(b"".join(names), np.uint8)

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> Path: ...
    @overload
    def __getitem__(self, index: slice) -> "PathList": ...
    def __getitem__(self, index: int | slice) -> "Path | PathList":
        """Return a path, or a list of some."""
        if isinstance(index, slice):
            return PathList(self[each] for each in range(*index.indices(len(self))))
        position = range(len(self))[index]  # negative ones count from the end
        start, end = self._ends[position : position + 2]
        return Path(fsdecode(self._bytes[start:end].tobytes()))
