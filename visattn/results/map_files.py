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

    maps: Float[np.ndarray, "t y x"]
    words: list[str] = field(default_factory=list)
    geometry: Any = None


def read_saved_maps(path: Path, grid: tuple[int, int] | None = None) -> SavedMaps:
    """Read a file of maps, as float32.

    It is nested lists in a .json file, or the JSON that `visattn caption` writes, with words and
    geometry; else an array in a .npy or .npz file.

    Args:
        path: The file, with `[y, x]`, `[t, y, x]`, or `[t, n]` where n runs over a grid.
        grid: Rows and columns of that.

    Raises:
        OSError: If it cannot be opened.
        ValueError: If it has another format, is too long or damaged, or has no finite maps.

    Example:
        >>> file = getfixture("tmp_path") / "maps.npy"
        >>> np.save(file, np.zeros((2, 15)))
        >>> read_saved_maps(file, (3, 5)).maps.shape
        (2, 3, 5)
    """
    record: dict[str, Any] = {}
    try:
        if path.suffix.lower() == ".json":
            record = _read_json(path)
            values = np.array(record["maps"], dtype=np.float64)
        else:
            values = read_array(path, max_values=MAX_CELLS)
        values = values if grid is None else values.reshape(*values.shape[:-1], *grid)
        several = len(values) if values.ndim == 3 else 1
        numbers = values.dtype.kind in "biuf" and values.size > 0
        if not numbers or values.ndim not in (2, 3) or several > MAX_MAPS:
            raise ValueError(
                f"maps must be numbers [y, x], or up to {MAX_MAPS:,} maps [t, y, x], got "
                f"{values.dtype} {values.shape}"
            )
        with np.errstate(over="ignore"):  # overflow is refused below
            maps = values.reshape(-1, *values.shape[-2:]).astype(np.float32)
        if not np.isfinite(maps).all():
            raise ValueError("maps must be finite numbers, got NaN or infinity")
        words = record.get("words") or record.get("tokens") or []
        return SavedMaps(maps, list(map(str, words)), record.get("geometry"))
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        raise ValueError(f"{path}: {error}") from error


def _read_json(path: Path) -> dict[str, Any]:
    loaded = parse_json(decode_utf8(read_bytes_bounded(path, _MAX_JSON_BYTES)))
    record: dict[str, Any] = loaded if isinstance(loaded, dict) else {"maps": loaded}
    # A map has its values, geometry and labels itself; a caption has maps; files of other programs
    # have lists, and what belongs to them beside.
    maps = record if "values" in record else record.get("maps")
    if maps is None:
        raise ValueError("must be nested lists, or hold them under the key maps")
    if isinstance(maps, dict):
        return {**record, **maps, "words": maps.get("labels"), "maps": maps["values"]}
    return record


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
