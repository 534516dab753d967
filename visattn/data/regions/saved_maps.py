"""Maps that somebody else made, in a file: nothing in it is executed."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from visattn.io.safe_arrays import read_array
from visattn.io.safe_text import LARGEST, bounded_bytes, parsed_json, plain_text, shown


@dataclass
class MapFile:
    """What a file of maps holds: the array, and what is said about it.

    Args:
        maps: As they stand there.
        words: One for each map, if they are known.
        geometry: Where they lie on the image, as `Geometry.to_dict` writes it, if it is known.
        gates: One for each map.
        log_probabilities: One for each map.
    """

    maps: Shaped[np.ndarray, "..."]
    words: list[str] = field(default_factory=list)
    geometry: dict[str, Any] | None = None
    gates: list[float] | None = None
    log_probabilities: list[float] | None = None


def read_maps(path: Path) -> MapFile:
    """Return what a file of maps holds.

    It is an array in a .npy or .npz file, or nested lists in a .json file; or the JSON that
    `visattn caption` writes, where words and place are known.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is of another kind, too long, damaged, or without maps.

    Example:
        >>> file = getfixture("tmp_path") / "maps.npy"
        >>> np.save(file, np.zeros((2, 7, 7)))
        >>> read_maps(file).maps.shape
        (2, 7, 7)
    """
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file of maps")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path} is longer than {LARGEST:,} bytes")
    readers = {".npy": _read_numpy, ".npz": _read_numpy, ".json": _read_json}
    if path.suffix.lower() not in readers:
        raise ValueError(f"maps must be a .npy, .npz or .json file, got {path.name}")
    try:
        return readers[path.suffix.lower()](path)
    except Exception as error:  # zip and numpy leak zlib.error, struct.error, MemoryError ...
        raise ValueError(f"{path}: {error or type(error).__name__}") from error


def shaped_maps(
    maps: Shaped[np.ndarray, "..."], *, words: int = 0, grid: tuple[int, int] | None = None
) -> Float[np.ndarray, "t y x"]:
    """Return an array of maps in 32 bits, whatever its shape was.

    Args:
        maps: `[y, x]`, `[t, y, x]`, or `[t, n]` where the last axis runs over a grid.
        words: How many words there are; as many rows of a square number of cells are so many maps.
        grid: Of the last axis.

    Raises:
        ValueError: If it is no array of maps, or not finite.

    Example:
        >>> shaped_maps(np.ones((2, 15)), grid=(3, 5)).shape
        (2, 3, 5)
    """
    if maps.dtype.kind not in "biuf" or not maps.size:
        raise ValueError(f"maps must be numbers, got {maps.dtype} {maps.shape}")
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
    with np.errstate(over="ignore"):  # what 32 bits cannot hold is refused next
        maps = maps.reshape(-1, *maps.shape[-2:]).astype(np.float32)
    if not np.isfinite(maps).all():
        raise ValueError("maps must be finite, got NaN or infinity")
    return maps


def _read_numpy(path: Path) -> MapFile:
    return MapFile(read_array(path))


def _read_json(path: Path) -> MapFile:
    loaded = parsed_json(plain_text(bounded_bytes(path)))
    if isinstance(loaded, list):
        return MapFile(np.array(loaded, dtype=np.float64))
    if not isinstance(loaded, dict) or "maps" not in loaded:
        raise ValueError("must be nested lists, or hold them under the key maps")
    geometry = loaded.get("geometry")
    if geometry is not None and not isinstance(geometry, dict):
        raise ValueError(f"geometry must be an object, got {shown(geometry)}")
    return MapFile(
        np.array(loaded["maps"], dtype=np.float64),
        [str(word) for word in _told(loaded, "words" if loaded.get("words") else "tokens")],
        geometry,
        _numbers(loaded, "gates"),
        _numbers(loaded, "log_probabilities"),
    )


def _told(loaded: dict[str, Any], key: str) -> list[Any]:
    held = loaded.get(key)
    held = [] if held is None else held
    if not isinstance(held, list) or not all(isinstance(one, (str, int, float)) for one in held):
        raise ValueError(f"{key} must be a list of texts or numbers, got {shown(held)}")
    return held


def _numbers(loaded: dict[str, Any], key: str) -> list[float] | None:
    held = _told(loaded, key)
    if not all(isinstance(one, (int, float)) and abs(one) < 1e300 for one in held):  # nor NaN
        raise ValueError(f"{key} must be finite numbers, got {shown(held)}")
    return None if loaded.get(key) is None else held
