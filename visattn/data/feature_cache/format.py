"""File format of cached features: float16 records with checksums, and a JSON header.

`features.bin` holds one record per photo and view, photo after photo: the float16 grids of all
stages, and a CRC-32 of these bytes. The file only grows, so that an interrupted run leaves complete
records and at most one partial record. `features.json` describes the records.
"""

import fcntl
import json
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np
from jaxtyping import Float16, UInt16

from visattn.io.atomic import atomic_write
from visattn.io.safe_text import decode_utf8, parse_json, printable_name, read_bytes_bounded

FORMAT = "visattn-features-1"
RECORDS, HEADER, LOCK = "features.bin", "features.json", "features.lock"
_MAX_VALUES = 2**28  # per record
_CRC_WORDS = 2  # 2-byte words that a checksum takes


@dataclass(frozen=True)
class FeatureHeader:
    """Description of the records in a cache folder.

    Args:
        source: Encoder, hash of its weights and resizing of the photos, as plain values.
        shapes: Channels, rows and columns of each stage's grid.
        views: Views of each photo: `plain`, `mirrored`.
        ids: Ids of the photos, in the order of the records.
        complete: Whether all records are written.
    """

    source: dict[str, Any]
    shapes: tuple[tuple[int, int, int], ...]
    views: tuple[str, ...]
    ids: tuple[str, ...]
    complete: bool = False

    @property
    def record_bytes(self) -> int:
        """Size of one record, the checksum included."""
        return 2 * (sum(map(prod, self.shapes)) + _CRC_WORDS)

    @property
    def photo_bytes(self) -> int:
        """Size of all records of one photo."""
        return self.record_bytes * len(self.views)

    def write(self, folder: Path) -> None:
        """Write the header to a folder atomically."""
        atomic_write(folder / HEADER, json.dumps({"format": FORMAT, **asdict(self)}))

    @classmethod
    def read(cls, folder: Path) -> Self | None:
        """Return the header of a folder; None if the folder has no cache.

        Raises:
            ValueError: If it is damaged or of another format, or if there are records without it.
        """
        try:
            content = read_bytes_bounded(folder / HEADER)
        except FileNotFoundError:
            if (folder / RECORDS).exists():
                raise ValueError(
                    f"{folder} holds {RECORDS} without {HEADER}, which describes them; remove the "
                    "folder, or name another folder"
                ) from None
            return None
        try:
            return cls._from_json(parse_json(decode_utf8(content)))
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise ValueError(
                f"{folder / HEADER} is damaged, or not in the format {FORMAT} "
                f"({printable_name(str(error))}); remove the folder, or name another one"
            ) from error

    @classmethod
    def _from_json(cls, fields: Any) -> Self:
        if not isinstance(fields, dict):
            raise TypeError("not an object")
        if fields.pop("format") != FORMAT:
            raise ValueError("another format")
        shapes = tuple((int(c), int(y), int(x)) for c, y, x in fields.pop("shapes"))
        views, ids = tuple(map(str, fields.pop("views"))), tuple(map(str, fields.pop("ids")))
        if not shapes or min(map(min, shapes)) < 1 or sum(map(prod, shapes)) > _MAX_VALUES:
            raise ValueError(f"invalid shapes {shapes}")
        if not views or len({*ids}) < len(ids) or len({*views}) < len(views):
            raise ValueError("no views, or duplicate ids or views")
        if not isinstance(fields["source"], dict):
            raise TypeError("source must be an object")
        return cls(**fields, shapes=shapes, views=views, ids=ids)


def pack_records(values: Float16[np.ndarray, "b views n"]) -> UInt16[np.ndarray, "b views n2"]:
    """Return records: the values followed by their CRC-32.

    Example:
        >>> pack_records(np.zeros((1, 1, 3), dtype=np.float16)).shape
        (1, 1, 5)
    """
    photos, views, count = values.shape
    records = np.empty((photos, views, count + _CRC_WORDS), dtype="<u2")
    records[..., :count] = values.astype("<f2", copy=False).view("<u2")
    for record in records.reshape(-1, count + _CRC_WORDS):
        record[count:] = np.array([zlib.crc32(record[:count].tobytes())], dtype="<u4").view("<u2")
    return records


def unpack_record(record: UInt16[np.ndarray, " n2"]) -> Float16[np.ndarray, " n"] | None:
    """Return a copy of the values of a record; None if its checksum is wrong.

    Example:
        >>> record = pack_records(np.ones((1, 1, 3), dtype=np.float16))[0, 0]
        >>> unpack_record(record)
        array([1., 1., 1.], dtype=float16)
        >>> unpack_record(record * 0)
    """
    content = record.tobytes()
    values, checksum = content[: -2 * _CRC_WORDS], content[-2 * _CRC_WORDS :]
    if zlib.crc32(values) != int.from_bytes(checksum, "little"):
        return None
    return np.frombuffer(bytearray(values), dtype="<f2").astype(np.float16, copy=False)


def map_records(folder: Path, header: FeatureHeader) -> UInt16[np.ndarray, "n views n2"]:
    """Return the memory-mapped records of all photos that are complete in length.

    The file is opened anew each time, so that nothing is shared between processes.
    """
    path = folder / RECORDS
    photos = path.stat().st_size // header.photo_bytes if path.exists() else 0
    shape = (min(photos, len(header.ids)), len(header.views), header.record_bytes // 2)
    if not shape[0]:
        return np.empty(shape, dtype="<u2")
    return np.memmap(path, dtype="<u2", mode="r", shape=shape)


def read_record(
    folder: Path, header: FeatureHeader, photo: int, view: int
) -> Float16[np.ndarray, " n"]:
    """Return the values of one record.

    Raises:
        ValueError: If the record is damaged.
    """
    records = map_records(folder, header)
    values = unpack_record(records[photo, view]) if photo < len(records) else None
    if values is None:
        raise ValueError(
            f"{folder / RECORDS} is damaged at the record of {header.ids[photo]}; remove {folder} "
            "to compute the features again"
        )
    return values


@contextmanager
def lock_folder(folder: Path, log: Callable[[str], object]) -> Iterator[None]:
    """Lock a folder for this process, waiting while another one holds the lock.

    The operating system releases the lock when its process ends, however it ends.

    Args:
        folder: The folder.
        log: Called with a message if it has to wait.
    """
    with (folder / LOCK).open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            owner = file.read().strip() or "unknown"
            log(f"features: waiting for process {owner}, which is writing to {folder}")
            fcntl.flock(file, fcntl.LOCK_EX)
        file.truncate(0)
        file.write(str(os.getpid()))
        file.flush()
        yield
