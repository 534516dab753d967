"""Results as JSON: fields of dataclasses by name, decoded by their types.

Untrusted arrays are read without pickle, in bounded memory.
"""

import base64
import io
import json
import math
import os
import types
import zipfile
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from importlib import import_module
from io import BufferedIOBase
from pathlib import Path
from typing import Any, Self, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import torch
from jaxtyping import Shaped
from torch import Tensor

from visattn.io.atomic import atomic_write
from visattn.io.safe_text import open_regular_file

T = TypeVar("T")
UNSAVED = {"saved": False}
"""Metadata of a field that is not part of records."""
MAX_BYTES = 2**30  # maximum size of an array
_hints = cache(get_type_hints)
show = {
    "AttentionMap": "visattn.viz.html.notebook:notebook_map",
    "Caption": "visattn.viz.html.notebook:notebook_caption",
    "ScanPath": "visattn.viz.scanpaths:notebook_scanpath",
}
"""How notebooks show a result: class names with the `"module:function"` that draws them, which is
imported on demand."""


@dataclass(frozen=True)
class Result:
    """A result that can be written to a file."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON values.

        Arrays are nested lists; pixels, and arrays that JSON cannot represent because they are
        empty or not finite, are compressed .npz files in base64.
        """
        return to_dict(self)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> Self:
        """Return the result from a record; other keys are ignored."""
        return from_dict(cls, record)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the result as JSON.

        Example:
            >>> import torch
            >>> from visattn import AttentionMap
            >>> file = getfixture("tmp_path") / "map.json"
            >>> AttentionMap(torch.eye(2), "gate", "gate").save(file)
            >>> AttentionMap.from_dict(json.loads(file.read_text())).values.tolist()
            [[1.0, 0.0], [0.0, 1.0]]
        """
        atomic_write(path, json.dumps(self.to_dict(), allow_nan=False) + "\n")


def to_dict(result: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON values.

    Example:
        >>> from visattn import Geometry
        >>> to_dict(Geometry.identity((2, 3)))["image_size"]
        [2, 3]
    """
    saved = [each.name for each in fields(result) if each.metadata != UNSAVED]
    return {name: _encode(getattr(result, name)) for name in saved}


def from_dict(kind: type[T], record: Mapping[str, Any]) -> T:
    """Return a dataclass from the values of `to_dict`; other keys are ignored.

    Raises:
        TypeError, ValueError: If a value does not fit its field, or one without a default is
            missing.
    """
    hints = _hints(kind)
    names = [each.name for each in fields(kind) if each.name in record]  # pyright: ignore[reportArgumentType]
    return kind(**{name: _decode(hints[name], record[name]) for name in names})


def _encode(value: Any) -> Any:
    if isinstance(value, Tensor | np.ndarray | np.generic):
        array = np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value)
        plain = array.dtype != np.uint8 and array.size and np.isfinite(array).all()
        return array.tolist() if plain else _packed(array)
    if is_dataclass(value):
        return to_dict(value)
    if isinstance(value, Mapping):
        return {str(key): _encode(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_encode(each) for each in value]
    if isinstance(value, float):  # JSON has no NaN and no infinity
        return value if math.isfinite(value) else str(value)
    return value if isinstance(value, str | int | None) else str(value)


def _packed(array: Shaped[np.ndarray, "..."]) -> str:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, array=array)
    return base64.b64encode(buffer.getvalue()).decode()


def _decode(kind: Any, value: Any) -> Any:
    """Decode a JSON value to the type of a field."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin in (Union, types.UnionType):
        return None if value is None else _decode(_alternative(inner, value), value)
    if hasattr(kind, "array_type"):  # a type of jaxtyping
        if isinstance(value, str):
            array = read_array(io.BytesIO(base64.b64decode(value, validate=True)), "array")
        else:
            array = np.array(value, "float64" if [*kind.dtypes] == ["float64"] else "float32")
        return torch.from_numpy(array) if kind.array_type is Tensor else array
    if is_dataclass(kind):
        return from_dict(kind, value)  # pyright: ignore[reportArgumentType]
    if origin is tuple and inner[-1] is not Ellipsis:
        return tuple(_decode(*pair) for pair in zip(inner, value, strict=True))
    if isinstance(value, list) and inner:
        return tuple(_decode(inner[0], each) for each in value)
    constructor: Any = kind if kind in (str, int, float, bool) else None
    return constructor(value) if constructor else value


def _alternative(kinds: tuple[Any, ...], value: Any) -> Any:
    """Return the member of a union type that fits a JSON value."""
    plain = [kind for kind in kinds if kind in (str, int, float, bool)]
    others = [kind for kind in kinds if kind not in plain and kind is not type(None)]
    if others and (isinstance(value, list | dict) or not plain):
        return others[0]
    return next((kind for kind in plain if isinstance(value, kind)), plain[0])


def shown(result: object) -> Any:
    """Return the notebook representation of a result; None if there is none.

    Example:
        >>> shown(object()) is None
        True
    """
    address = show.get(type(result).__name__)
    if address is None:
        return None
    module, _, name = address.partition(":")
    return getattr(import_module(module), name)(result)


def read_array(file: Path | BufferedIOBase, name: str = "maps") -> Shaped[np.ndarray, "..."]:
    """Return the array of a .npy file, or the only or named array of a .npz file, without pickle.

    A few kilobytes may unpack to gigabytes, so the size is checked first.

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
