"""An array from a .npy or .npz file of others: no pickle, no more memory than the file fills."""

import zipfile
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from jaxtyping import Shaped

from visattn.io.regular_files import open_regular

LARGEST = 2**30  # bytes of an array
_KINDS = "biufcSU"  # numbers and texts; other kinds need pickle, or hide structure


def read_array(path: Path, name: str = "maps") -> Shaped[np.ndarray, "..."]:
    """Return the array of a .npy file; of a .npz file the only one, or the one of this name.

    What a header promises is compared with what the file holds before memory is taken: neither a
    header of 10^12 numbers nor a few kilobytes that unpack to gigabytes are believed.

    Args:
        path: The file; what it holds decides, not how it is named.
        name: Of the array, where there are several.

    Raises:
        ValueError: If the file is damaged, holds several arrays and none of this name, something
            other than numbers and texts, or more than `LARGEST` bytes.
        OSError: If it cannot be read.

    Example:
        >>> file = getfixture("tmp_path") / "maps.npz"
        >>> np.savez(file, maps=np.zeros((2, 7, 7)), gates=np.zeros(2))
        >>> read_array(file).shape
        (2, 7, 7)
    """
    with open_regular(path) as file:
        packed = file.read(2) == b"PK"
        length = file.seek(0, 2)
        file.seek(0)
        if not packed:
            return _array(file, length)
        try:
            with zipfile.ZipFile(file) as archive:
                member = _member(archive, name)
                with archive.open(member) as inside:
                    return _array(inside, member.file_size)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            raise ValueError(f"damaged: {error}") from error


def _member(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    members = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
    if len(members) != 1 and name not in members:
        raise ValueError(f"must hold one array, or one called {name}, got {list(members)[:10]}")
    return members[name] if name in members else next(iter(members.values()))


def _array(file: IO[bytes] | zipfile.ZipExtFile, length: int) -> Shaped[np.ndarray, "..."]:
    """Return the array that the next `length` bytes hold."""
    if length > LARGEST:
        raise ValueError(f"holds {length:,} bytes, more than {LARGEST:,}")
    shape, turned, kind = _header(file)
    if kind.kind not in _KINDS or not kind.itemsize:
        raise ValueError(f"holds {kind}; arrays must be of numbers or texts, and need no pickle")
    wanted, left = prod(shape) * kind.itemsize, length - file.tell()
    if min(shape, default=0) < 0 or wanted != left:
        raise ValueError(
            f"damaged: an array of {shape} {kind} takes {wanted:,} bytes, but {left:,} are there"
        )
    content = bytearray(file.read(left))
    if len(content) != left:
        raise ValueError(f"damaged: it ends after {len(content):,} of {left:,} bytes")
    values = np.frombuffer(content, kind)
    return values.reshape(shape[::-1]).T if turned else values.reshape(shape)


def _header(file: IO[bytes] | zipfile.ZipExtFile) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether columns come first, and kind, as the first bytes tell them."""
    form = np.lib.format
    readers: dict[tuple[int, int], Any] = {
        (1, 0): form.read_array_header_1_0,
        (2, 0): form.read_array_header_2_0,
    }
    try:
        version = form.read_magic(file)
        if version not in readers:
            raise ValueError(f"version {version}")
        return readers[version](file)
    except (SyntaxError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ValueError(f"no array of NumPy's: {error}") from error
