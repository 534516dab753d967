"""How kept features lie on disk: numbers with checksums, and what they are features of.

`features.bin` holds one record per photo and view, photo after photo: the grids of all stages, as
float16, and a CRC-32 of these bytes. It only ever grows, so that whatever ends a run leaves whole
records and at most a piece of one. `features.json` says what the records are.
"""

import fcntl
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import Float16, UInt16

from visattn.io.atomic import write_whole
from visattn.io.safe_text import bounded_bytes, named, parsed_json, plain_text

FORMAT = "visattn-features-1"
RECORDS, HEADER, LOCK = "features.bin", "features.json", "features.lock"
_MOST_VALUES = 2**28  # in a record
_SUM = 2  # how many 2-byte numbers a checksum takes


@dataclass(frozen=True)
class FeatureHeader:
    """What the records of a folder are.

    Args:
        made_of: What the features depend on: encoder, weights, framing; plain values.
        shapes: Channels, rows and columns of each stage's grid.
        views: The ways in which each photo was shown.
        ids: The photos, in the order of the records.
        complete: Whether all records are there.
    """

    made_of: dict[str, Any]
    shapes: tuple[tuple[int, int, int], ...]
    views: tuple[str, ...]
    ids: tuple[str, ...]
    complete: bool = False

    @property
    def values(self) -> int:
        """Numbers in a record, its checksum left out."""
        return sum(map(prod, self.shapes))

    @property
    def record_bytes(self) -> int:
        """Length of a record."""
        return 2 * (self.values + _SUM)

    @property
    def photo_bytes(self) -> int:
        """Length of all the records of a photo."""
        return self.record_bytes * len(self.views)

    def write(self, folder: Path) -> None:
        """Put the header into a folder in one move."""
        write_whole(folder / HEADER, json.dumps({"format": FORMAT, **asdict(self)}))

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the header of a folder; None if nothing is kept there.

        Raises:
            ValueError: If it is damaged or of another format, or if there are records without one.
        """
        try:
            content = bounded_bytes(folder / HEADER)
        except FileNotFoundError:
            if (folder / RECORDS).exists():
                raise ValueError(
                    f"{folder} holds {RECORDS} without {HEADER}, which says what they are of; "
                    "remove it, or name another folder"
                ) from None
            return None
        try:
            return cls._parsed(parsed_json(plain_text(content)))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ValueError(
                f"{folder / HEADER} is damaged, or not in the format {FORMAT} "
                f"({named(str(error))}); remove the folder, or name another one"
            ) from error

    @classmethod
    def _parsed(cls, fields: Any) -> Self:
        if not isinstance(fields, dict):
            raise TypeError("no object")
        if fields.pop("format") != FORMAT:
            raise ValueError("another format")
        shapes = tuple((int(c), int(y), int(x)) for c, y, x in fields.pop("shapes"))
        views, ids = tuple(map(str, fields.pop("views"))), tuple(map(str, fields.pop("ids")))
        if not shapes or min(map(min, shapes)) < 1 or sum(map(prod, shapes)) > _MOST_VALUES:
            raise ValueError(f"grids of {shapes} make no sense")
        if not views or len({*ids}) < len(ids) or len({*views}) < len(views):
            raise ValueError("no view, or a name that stands twice")
        if not isinstance(fields["made_of"], dict):
            raise TypeError("made_of must be an object")
        return cls(**fields, shapes=shapes, views=views, ids=ids)


def packed(values: Float16[np.ndarray, "b views n"]) -> UInt16[np.ndarray, "b views n2"]:
    """Return the records that hold these numbers.

    Example:
        >>> packed(np.zeros((1, 1, 3), dtype=np.float16)).shape
        (1, 1, 5)
    """
    photos, views, count = values.shape
    records = np.empty((photos, views, count + _SUM), dtype="<u2")
    records[..., :count] = values.astype("<f2", copy=False).view("<u2")
    for record in records.reshape(-1, count + _SUM):
        record[count:] = np.array([zlib.crc32(record[:count].tobytes())], dtype="<u4").view("<u2")
    return records


def unpacked(record: bytearray) -> Float16[np.ndarray, " n"] | None:
    """Return the numbers in a record, which share its memory; None if it is damaged.

    Example:
        >>> unpacked(bytearray(packed(np.ones((1, 1, 3), dtype=np.float16)).tobytes()))
        array([1., 1., 1.], dtype=float16)
        >>> unpacked(bytearray(10))
    """
    count = len(record) - 2 * _SUM
    if zlib.crc32(memoryview(record)[:count]) != int.from_bytes(record[count:], "little"):
        return None
    return np.frombuffer(record, dtype="<f2", count=count // 2).astype(np.float16, copy=False)


def read_record(
    folder: Path, header: FeatureHeader, photo: int, view: int
) -> Float16[np.ndarray, " n"]:
    """Return the numbers in one record of a folder.

    The file is opened anew each time: there is nothing to share between processes or to forget to
    close, and it takes far less time than the reading.

    Raises:
        ValueError: If the record is damaged.
    """
    record = bytearray(header.record_bytes)
    with (folder / RECORDS).open("rb", buffering=0) as file:
        file.seek((photo * len(header.views) + view) * len(record))
        length = file.readinto(record)
    values = unpacked(record) if length == len(record) else None
    if values is None:
        raise ValueError(
            f"{folder / RECORDS} is damaged where it holds {header.ids[photo]}; remove {folder}, "
            "and the features are computed anew"
        )
    return values


def differences(one: Mapping[str, Any], other: Mapping[str, Any], name: str = "") -> list[str]:
    """Return in words in what two nested mappings differ.

    Example:
        >>> differences({"fit": "crop", "size": {"y": 3}}, {"fit": "pad", "size": {"y": 3}})
        ["fit is 'crop' there and 'pad' here"]
    """
    found: list[str] = []
    for key in sorted({*one, *other}):
        there, here, path = one.get(key), other.get(key), f"{name}{key}"
        if isinstance(there, Mapping) and isinstance(here, Mapping):
            found += differences(there, here, f"{path}.")
        elif there != here:
            found.append(f"{path} is {_shown(there)} there and {_shown(here)} here")
    return found


@contextmanager
def alone(folder: Path, told: Callable[[str], object]) -> Iterator[None]:
    """Hold a folder for oneself; wait while another process does, which ends when it ends.

    Args:
        folder: The folder.
        told: Is told that it waits, and for which process.
    """
    with (folder / LOCK).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "unknown"
            told(f"features: waiting for process {holder}, which is at work in {folder}")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield


def some(names: Sequence[str], most: int = 3) -> str:
    """Return the first names of many, and how many there are besides.

    Example:
        >>> some(["a", "b", "c", "d", "e"])
        'a, b, c and 2 more'
    """
    shown = ", ".join(names[:most])
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown


def _shown(value: object) -> str:
    return f"{str(value)[:12]}..." if isinstance(value, str) and len(value) > 40 else repr(value)
