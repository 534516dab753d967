"""Attention maps from files: .npy, .npz or .json, read without pickle, in bounded memory."""

import base64
import io
import math
import re
import zipfile
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import numpy as np
from jaxtyping import Float, Shaped

from visattn.io.safe_text import (
    decode_utf8,
    open_regular_file,
    parse_json,
    read_bytes_bounded,
    short_repr,
)

MAX_MAPS = 1_000  # each is drawn; no model has as many words, layers and heads or queries
MAX_CELLS = 2**26  # of all maps together, as many as the largest image has pixels
MAX_BYTES = 2**30  # of an array
_DTYPE_KINDS = "biufcSU"  # numbers and strings; other kinds need pickle or hold fields
_HEADER_KEYS = {"descr", "fortran_order", "shape"}
_HEADER_LENGTHS = {1: 2, 2: 4, 3: 4}  # bytes of the header's length, per version of the format
_MAX_HEADER_BYTES = 10_000
_MAX_JSON_BYTES = 2**27  # a number takes up to eight times as much memory as text


@dataclass
class SavedMaps:
    """Contents of a file of maps: the array and its metadata.

    Args:
        words: One for each map, if they are known.
        geometry: Where they lie on the image, as `Geometry.to_dict` writes it, if it is known.
        gates: One for each map.
        log_probs: One for each map.
    """

    maps: Shaped[np.ndarray, "..."]
    words: list[str] = field(default_factory=list)
    geometry: dict[str, Any] | None = None
    gates: list[float] | None = None
    log_probs: list[float] | None = None


def read_saved_maps(path: Path) -> SavedMaps:
    """Read a file of maps.

    It is an array in a .npy or .npz file, nested lists in a .json file, or the JSON that
    `visattn caption` writes, with words and geometry.

    Args:
        path: The file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it has another format, is too long or damaged, or has no maps.

    Example:
        >>> file = getfixture("tmp_path") / "maps.npy"
        >>> np.save(file, np.zeros((2, 7, 7)))
        >>> read_saved_maps(file).maps.shape
        (2, 7, 7)
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file of maps")
    readers = {".npy": _read_numpy, ".npz": _read_numpy, ".json": _read_json}
    if path.suffix.lower() not in readers:
        raise ValueError(f"maps must be a .npy, .npz or .json file, got {path.name}")
    try:
        return readers[path.suffix.lower()](path)
    except Exception as error:  # zip and numpy raise zlib.error, struct.error, MemoryError ...
        raise ValueError(f"{path}: {error or type(error).__name__}") from error


def reshape_maps(
    maps: Shaped[np.ndarray, "..."], *, words: int = 0, grid: tuple[int, int] | None = None
) -> Float[np.ndarray, "t y x"]:
    """Return an array of maps as float32 `[t, y, x]`.

    Args:
        maps: `[y, x]`, `[t, y, x]`, or `[t, n]` where the last axis runs over a grid.
        words: Number of words; as many rows of a square number of cells are that many maps.
        grid: Grid shape of the last axis.

    Raises:
        ValueError: If it is not an array of maps, or not finite.

    Example:
        >>> reshape_maps(np.ones((2, 15)), grid=(3, 5)).shape
        (2, 3, 5)
    """
    if maps.dtype.kind not in "biuf" or not maps.size:
        raise ValueError(f"maps must be numbers, got {maps.dtype} {maps.shape}")
    if maps.size > MAX_CELLS:
        raise ValueError(f"maps must have at most {MAX_CELLS:,} cells in all, got {maps.shape}")
    # As many rows as words: each row is a map, on a square grid if its cells form one.
    if grid is None and maps.ndim == 2 and words == len(maps) > 1:
        side = math.isqrt(maps.shape[1])
        grid = (side, side) if side * side == maps.shape[1] else None
    if grid is not None:
        if maps.ndim < 1 or maps.shape[-1] != grid[0] * grid[1]:
            raise ValueError(f"a grid of {grid[0]} x {grid[1]} does not fill {maps.shape}")
        maps = maps.reshape(*maps.shape[:-1], *grid)
    if maps.ndim not in (2, 3):
        raise ValueError(
            f"maps must be [y, x], [t, y, x], or [t, n] and the grid of n, got {maps.shape}"
        )
    if maps.ndim == 3 and len(maps) > MAX_MAPS:
        raise ValueError(
            f"at most {MAX_MAPS:,} maps can be drawn, got {len(maps):,}; save fewer of them, or "
            "their mean"
        )
    with np.errstate(over="ignore"):  # overflow is refused below
        maps = maps.reshape(-1, *maps.shape[-2:]).astype(np.float32)
    if not np.isfinite(maps).all():
        raise ValueError("maps must be finite, got NaN or infinity")
    return maps


def _read_numpy(path: Path) -> SavedMaps:
    return SavedMaps(read_array(path, max_values=MAX_CELLS))


def _read_json(path: Path) -> SavedMaps:
    loaded = parse_json(decode_utf8(read_bytes_bounded(path, _MAX_JSON_BYTES)))
    if isinstance(loaded, list):
        return SavedMaps(np.array(loaded, dtype=np.float64))
    if not isinstance(loaded, dict) or "maps" not in loaded:
        raise ValueError("must be nested lists, or hold them under the key maps")
    geometry = loaded.get("geometry")
    if geometry is not None and not isinstance(geometry, dict):
        raise ValueError(f"geometry must be an object, got {short_repr(geometry)}")
    return SavedMaps(
        np.array(loaded["maps"], dtype=np.float64),
        [str(word) for word in _list_field(loaded, "words" if loaded.get("words") else "tokens")],
        geometry,
        _numbers(loaded, "gates"),
        _numbers(loaded, "log_probs"),
    )


def _list_field(loaded: dict[str, Any], key: str) -> list[Any]:
    values = loaded.get(key)
    values = [] if values is None else values
    if not isinstance(values, list) or not all(isinstance(v, (str, int, float)) for v in values):
        raise ValueError(f"{key} must be a list of strings or numbers, got {short_repr(values)}")
    return values


def _numbers(loaded: dict[str, Any], key: str) -> list[float] | None:
    values = _list_field(loaded, key)
    if not all(isinstance(v, (int, float)) and abs(v) < 1e300 for v in values):  # false for NaN
        raise ValueError(f"{key} must be finite numbers, got {short_repr(values)}")
    return None if loaded.get(key) is None else values


def read_array(
    path: Path | IO[bytes], name: str = "maps", *, max_values: int = MAX_BYTES
) -> Shaped[np.ndarray, "..."]:
    """Return the array of a .npy file, or the only or named array of a .npz file; or of one opened.

    The size in the header is compared with the size of the file before memory is allocated. A
    header of 10^12 numbers and a few kilobytes that decompress to gigabytes are both refused.

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
    with open_regular_file(path) if isinstance(path, Path) else nullcontext(path) as file:
        return _read_binary(file, name, max_values)


def _read_binary(
    file: IO[bytes] | io.BytesIO, name: str, max_values: int
) -> Shaped[np.ndarray, "..."]:
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


def pack_array(array: Shaped[np.ndarray, "..."]) -> str:
    """Return an array as text: a compressed .npz file in base 64, for images within records.

    Example:
        >>> unpack_array(pack_array(np.eye(2, dtype=np.uint8))).tolist()
        [[1, 0], [0, 1]]
    """
    return base64.b64encode(npz_bytes({"array": array})).decode()


def unpack_array(text: str) -> Shaped[np.ndarray, "..."]:
    """Return the array of a text of `pack_array`.

    Raises:
        ValueError: If it is damaged.
    """
    return _read_binary(io.BytesIO(base64.b64decode(text, validate=True)), "array", MAX_BYTES)


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
    expected = math.prod(shape) * dtype.itemsize
    available = length - file.tell()
    if min(shape, default=0) < 0 or expected != available:
        raise ValueError(
            f"damaged: an array of {shape} {dtype} takes {expected:,} bytes, got {available:,}"
        )
    if math.prod(shape) > max_values:
        raise ValueError(f"holds {math.prod(shape):,} values {shape}, more than {max_values:,}")
    content = bytearray(file.read(available))
    if len(content) != available:
        raise ValueError(f"damaged: it ends after {len(content):,} of {available:,} bytes")
    values = np.frombuffer(content, dtype)
    return values.reshape(shape[::-1]).T if fortran_order else values.reshape(shape)


# Not by numpy.lib.format: it calls ast.literal_eval, which fails at random in CPython up to 3.11.8
# where another thread parses Python too ("AST constructor recursion depth mismatch").
_HEADER_PAIR = re.compile(
    r"""\s*(?P<quote>['"])(?:
        descr(?P=quote)\s*:\s*(?P<string>['"])(?P<descr>[<>|=]?[A-Za-z?]\d*(?:\[\w+\])?)(?P=string)
        | fortran_order(?P=quote)\s*:\s*(?P<fortran_order>True|False)
        | shape(?P=quote)\s*:\s*\((?P<shape>(?:\s*\d+L?\s*,)*(?:\s*\d+L?)?)\s*\)
    )\s*(?:,|(?=\}))""",
    re.VERBOSE,
)


def _read_header(
    file: IO[bytes] | zipfile.ZipExtFile,
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, Fortran order and dtype from the header of a .npy file.

    Source: https://numpy.org/neps/nep-0001-npy-format.html
    """
    start = file.read(8)
    if len(start) < 8 or start[:6] != b"\x93NUMPY" or start[6] not in _HEADER_LENGTHS:
        raise ValueError(
            f"not a NumPy array: it must start as a .npy file of version 1, 2 or 3, got {start!r}"
        )
    size = _HEADER_LENGTHS[start[6]]
    length = int.from_bytes(file.read(size), "little")
    if length > _MAX_HEADER_BYTES:
        raise ValueError(f"not a NumPy array: a header of {length:,} bytes")
    header = file.read(length).decode("latin-1").strip()
    entries: dict[str, str] = {}
    place = 1
    while header.startswith("{") and (pair := _HEADER_PAIR.match(header, place)):
        entries |= {key: pair[key] for key in _HEADER_KEYS if pair[key] is not None}
        place = pair.end()
    if header[place:].strip() != "}" or entries.keys() != _HEADER_KEYS:
        raise ValueError(f"not a NumPy array of numbers or strings: its header is {header[:200]!r}")
    shape = tuple(int(number.rstrip("L")) for number in re.findall(r"\d+L?", entries["shape"]))
    try:
        dtype = np.dtype(entries["descr"])
    except TypeError as error:
        raise ValueError(f"not a NumPy array: {error}") from error
    return shape, entries["fortran_order"] == "True", dtype


def npz_bytes(arrays: Mapping[str, Any]) -> bytes:
    """Return arrays as the content of a compressed .npz file.

    Example:
        >>> npz_bytes({"maps": np.zeros((2, 3))})[:2]
        b'PK'
    """
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()
