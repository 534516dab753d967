"""Reading of .npy and .npz files from untrusted sources: no pickle, bounded memory."""

import tokenize
import zipfile
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
from jaxtyping import Shaped

from visattn.io.safe_text import open_regular_file

MAX_BYTES = 2**30  # of an array
_DTYPE_KINDS = "biufcSU"  # numbers and strings; other kinds need pickle or hold fields
_HEADER_ERRORS = (
    SyntaxError,
    TypeError,
    ValueError,
    OverflowError,
    RecursionError,
    tokenize.TokenError,
)


def read_array(
    path: Path, name: str = "maps", *, max_values: int = MAX_BYTES
) -> Shaped[np.ndarray, "..."]:
    """Return the array of a .npy file, or the only or named array of a .npz file.

    The size in the header is compared with the size of the file before memory is allocated. A
    header of 10^12 numbers and a few kilobytes that decompress to gigabytes are both refused.

    Args:
        path: File; its content decides the format, not its suffix.
        name: Name of the array, if a .npz file holds several.
        max_values: Largest number of values.

    Raises:
        ValueError: If the file is damaged, holds several arrays and none of this name, holds
            something other than numbers and strings, or more than `max_values` or `MAX_BYTES`.
        OSError: If the file cannot be read.

    Example:
        >>> file = getfixture("tmp_path") / "maps.npz"
        >>> np.savez(file, maps=np.zeros((2, 7, 7)), gates=np.zeros(2))
        >>> read_array(file).shape
        (2, 7, 7)
    """
    with open_regular_file(path) as file:
        zipped = file.read(2) == b"PK"
        length = file.seek(0, 2)
        file.seek(0)
        if not zipped:
            return _read_npy(file, length, max_values)
        try:
            with zipfile.ZipFile(file) as archive:
                member = _select_member(archive, name)
                with archive.open(member) as inside:
                    return _read_npy(inside, member.file_size, max_values)
        except (zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
            raise ValueError(f"damaged: {error}") from error


def _select_member(archive: zipfile.ZipFile, name: str) -> zipfile.ZipInfo:
    members = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
    if len(members) != 1 and name not in members:
        raise ValueError(f"must hold one array or an array named {name}, got {list(members)[:10]}")
    return members[name] if name in members else next(iter(members.values()))


def _read_npy(
    file: IO[bytes] | zipfile.ZipExtFile, length: int, max_values: int
) -> Shaped[np.ndarray, "..."]:
    """Return the array in the next `length` bytes of a .npy file."""
    if length > MAX_BYTES:
        raise ValueError(f"holds {length:,} bytes, more than {MAX_BYTES:,}")
    shape, fortran_order, dtype = _read_header(file)
    if dtype.kind not in _DTYPE_KINDS or not dtype.itemsize:
        raise ValueError(f"holds {dtype}; arrays must hold numbers or strings, without pickle")
    expected, available = prod(shape) * dtype.itemsize, length - file.tell()
    if min(shape, default=0) < 0 or expected != available:
        raise ValueError(
            f"damaged: an array of {shape} {dtype} takes {expected:,} bytes, got {available:,}"
        )
    if prod(shape) > max_values:
        raise ValueError(f"holds {prod(shape):,} values {shape}, more than {max_values:,}")
    content = bytearray(file.read(available))
    if len(content) != available:
        raise ValueError(f"damaged: it ends after {len(content):,} of {available:,} bytes")
    values = np.frombuffer(content, dtype)
    return values.reshape(shape[::-1]).T if fortran_order else values.reshape(shape)


def _read_header(
    file: IO[bytes] | zipfile.ZipExtFile,
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, Fortran order and dtype from the header of a .npy file."""
    npy_format = np.lib.format
    readers: dict[tuple[int, int], Any] = {
        (1, 0): npy_format.read_array_header_1_0,
        (2, 0): npy_format.read_array_header_2_0,
    }
    try:
        version = npy_format.read_magic(file)
        if version not in readers:
            raise ValueError(f"version {version}")
        return readers[version](file)
    except _HEADER_ERRORS as error:
        raise ValueError(f"not a NumPy array: {error}") from error
