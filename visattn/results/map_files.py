"""Attention maps from files: .npy, .npz or .json, read without pickle, in bounded memory."""

import zipfile
from contextlib import nullcontext
from dataclasses import dataclass, field
from io import BufferedIOBase
from pathlib import Path
from typing import Any

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
_MAX_JSON_BYTES = 2**27  # a number takes up to eight times as much memory as text


@dataclass
class SavedMaps:
    """Contents of a file of maps.

    Args:
        words: One for each map, if they are known.
        geometry: Where they lie on the image, as records have it, if it is known.
    """

    maps: Shaped[np.ndarray, "..."]
    words: list[str] = field(default_factory=list)
    geometry: Any = None


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
    suffix = path.suffix.lower()
    if suffix not in (".npy", ".npz", ".json"):
        raise ValueError(f"maps must be a .npy, .npz or .json file, got {path.name}")
    try:
        if suffix == ".json":
            return _read_json(path)
        return SavedMaps(read_array(path, max_values=MAX_CELLS))
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ValueError(f"{path}: {error}") from error


def reshape_maps(
    maps: Shaped[np.ndarray, "..."], grid: tuple[int, int] | None = None
) -> Float[np.ndarray, "t y x"]:
    """Return an array of maps as float32 `[t, y, x]`.

    Args:
        maps: `[y, x]`, `[t, y, x]`, or `[t, n]` where the last axis runs over a grid.
        grid: Grid shape of the last axis.

    Raises:
        ValueError: If it is not an array of maps, or not finite.

    Example:
        >>> reshape_maps(np.ones((2, 15)), (3, 5)).shape
        (2, 3, 5)
    """
    if maps.dtype.kind not in "biuf" or not maps.size:
        raise ValueError(f"maps must be numbers, got {maps.dtype} {maps.shape}")
    if grid is not None:
        if not maps.ndim or maps.shape[-1] != grid[0] * grid[1]:
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


def _read_json(path: Path) -> SavedMaps:
    loaded = parse_json(decode_utf8(read_bytes_bounded(path, _MAX_JSON_BYTES)))
    record: dict[str, Any] = loaded if isinstance(loaded, dict) else {"maps": loaded}
    # A map has its values, geometry and labels itself; a caption has maps; files of other programs
    # have lists, and what belongs to them beside.
    maps = record if "values" in record else record.get("maps")
    if maps is None:
        raise ValueError("must be nested lists, or hold them under the key maps")
    if isinstance(maps, dict):
        record = {**record, **maps, "words": maps.get("labels"), "maps": maps["values"]}
    words = record.get("words") or record.get("tokens") or []
    if not isinstance(words, list):
        raise TypeError(f"words must be a list of strings or numbers, got {short_repr(words)}")
    values = np.array(record["maps"], dtype=np.float64)
    return SavedMaps(values, list(map(str, words)), record.get("geometry"))


def read_array(
    file: Path | BufferedIOBase, name: str = "maps", *, max_values: int = MAX_BYTES
) -> Shaped[np.ndarray, "..."]:
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
            array = _read_zip(opened, name) if zipfile.is_zipfile(opened) else _read_npy(opened)
        except Exception as error:  # zip and NumPy raise zlib.error, EOFError, MemoryError ...
            raise ValueError(f"not a NumPy array: {error or type(error).__name__}") from error
    if array.size > max_values:
        raise ValueError(f"holds {array.size:,} values {array.shape}, more than {max_values:,}")
    return array


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
