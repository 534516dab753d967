"""Arrays of .npy and .npz files, read without pickle, in bounded memory."""

import zipfile
from contextlib import nullcontext
from io import BufferedIOBase
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from visattn.io.safe_text import open_regular_file

MAX_BYTES = 2**30  # of an array


def read_array(file: Path | BufferedIOBase, name: str = "maps") -> Shaped[np.ndarray, "..."]:
    """Return the array of a .npy file, or the only or named array of a .npz file, without pickle.

    A few kilobytes may announce gigabytes: what an archive unpacks to is compared before.

    Raises:
        ValueError: If the file is damaged, holds several arrays and none of this name, or objects,
            or is too large.
        OSError: If the file cannot be opened.

    Example:
        >>> file = getfixture("tmp_path") / "maps.npz"
        >>> np.savez(file, maps=np.zeros((2, 7, 7)), gates=np.zeros(2))
        >>> read_array(file).shape
        (2, 7, 7)
    """
    with open_regular_file(file) if isinstance(file, Path) else nullcontext(file) as opened:
        try:
            return _read_zip(opened, name) if zipfile.is_zipfile(opened) else _read_npy(opened)
        except Exception as error:  # zip and NumPy raise zlib.error, EOFError, MemoryError ...
            raise ValueError(f"not a NumPy array: {error or type(error).__name__}") from error


def _read_zip(file: BufferedIOBase, name: str) -> Shaped[np.ndarray, "..."]:
    with zipfile.ZipFile(file) as archive:
        members = {entry.filename.removesuffix(".npy"): entry for entry in archive.infolist()}
        if len(members) != 1 and name not in members:
            raise ValueError(
                f"must hold one array or an array named {name}, got {list(members)[:10]}"
            )
        member = members[name] if name in members else next(iter(members.values()))
        if member.file_size > MAX_BYTES:
            raise ValueError(f"unpacks to {member.file_size:,} bytes, more than {MAX_BYTES:,}")
        with archive.open(member) as inside:
            return np.lib.format.read_array(inside, allow_pickle=False)


def _read_npy(file: BufferedIOBase) -> Shaped[np.ndarray, "..."]:
    if (length := file.seek(0, 2)) > MAX_BYTES:
        raise ValueError(f"holds {length:,} bytes, more than {MAX_BYTES:,}")
    file.seek(0)
    return np.lib.format.read_array(file, allow_pickle=False)
