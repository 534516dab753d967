"""Cache of the features that a frozen encoder computes for photos.

`features.bin` holds one record per photo and view, photo after photo: the float16 grids of all
stages, and a CRC-32 of these bytes. The file only grows, so that an interrupted run leaves complete
records and at most one partial record. `features.json` describes the records.
"""

import errno
import fcntl
import hashlib
import json
import os
import shutil
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Float16, UInt8, UInt16
from torch import Tensor
from torch.utils.data import Dataset

from visattn.data.captions.batch import CaptionSample
from visattn.data.loading.loader import available_cores
from visattn.images.resize import ResizeSpec
from visattn.io.atomic import atomic_write
from visattn.io.messages import format_names
from visattn.io.safe_text import decode_utf8, parse_json, printable_name, read_bytes_bounded
from visattn.models.base import ImageEncoder
from visattn.models.config import model_config

FORMAT = "visattn-features-1"
RECORDS = "features.bin"
HEADER = "features.json"
LOCK = "features.lock"
_MAX_VALUES = 2**28  # per record
_CRC_WORDS = 2  # 2-byte words that a checksum takes
Photos = Dataset[CaptionSample] | Sequence[CaptionSample]
LoadInput = Callable[[str], UInt8[Tensor, "3 y x"]]
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda images: images,
    "mirrored": lambda images: images.flip(-1),
}
_TOLERANCE = 0.1  # relative difference of features that are computed again
_LOG_SECONDS = 10.0  # between two progress messages
_REMEDY = "remove the folder, or name another folder"


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
                    f"{folder} holds {RECORDS} without {HEADER}, which describes them; {_REMEDY}"
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
        views = tuple(map(str, fields.pop("views")))
        ids = tuple(map(str, fields.pop("ids")))
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
    values = content[: -2 * _CRC_WORDS]
    checksum = content[-2 * _CRC_WORDS :]
    if zlib.crc32(values) != int.from_bytes(checksum, "little"):
        return None
    # An array over bytes cannot be written to, of which torch warns.
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


def write_features(
    folder: Path,
    header: FeatureHeader,
    encoder: ImageEncoder,
    load: LoadInput,
    *,
    batch_size: int,
    log: Callable[[str], object],
) -> None:
    """Append the missing records after those that are complete and undamaged.

    The batches are the same whatever exists already: an interrupted first batch is computed as a
    whole. A file written in several runs thus equals one written in a single run, as long as the
    encoder is deterministic for the batch size, device, threads and version of torch. No other
    process may write to the folder; `load` is called from other threads.

    Raises:
        OSError: If the disk is full; complete records stay.
        ValueError: If features are not finite in float16.
    """
    done = _count_complete(folder, header)
    total = len(header.ids)
    with (folder / RECORDS).open("a+b", buffering=0) as file:
        file.truncate(done * header.photo_bytes)
        if done:
            log(f"features: {done:,} of {total:,} photos are already cached")
            check_features(folder, header, encoder, load, header.ids[:done])
        # With 6 photos done and batches of 4, the batch of photos 4 to 7 is computed again, and its
        # first two are skipped: a batch of photos 6 to 9 might give other last bits.
        cached = done
        skip = done % batch_size
        start = last = time.monotonic()
        for ids, images in _prefetch(header.ids[done - skip :], load, batch_size):
            values = compute_features(encoder, images, header.views)
            finite = np.isfinite(values).reshape(len(values), -1).all(1)
            # What comes before the first faulty photo is kept.
            end = len(ids) if finite.all() else int(finite.argmin())
            _append(file, pack_records(values[skip:end]), done)
            if end < len(ids):
                raise ValueError(_nonfinite_message(ids[end], values[end], header.views))
            done, skip, now = done + len(ids) - skip, 0, time.monotonic()
            if now - last >= _LOG_SECONDS or done == total:
                speed = (done - cached) / max(now - start, 1e-9)
                last = now
                left = f", {(total - done) / speed:.0f} s left" if done < total else ""
                log(f"features: {done:,} of {total:,} photos, {speed:.1f} photos/s{left}")
        os.fsync(file.fileno())


def check_features(
    folder: Path,
    header: FeatureHeader,
    encoder: ImageEncoder,
    load: LoadInput,
    ids: Sequence[str],
) -> None:
    """Raise if the first, middle or last photo no longer has its cached features.

    This detects changes that the header does not record, such as modified photos.

    Raises:
        ValueError: If the features of a photo differ by more than a tenth.
    """
    names = list(dict.fromkeys((ids[0], ids[len(ids) // 2], ids[-1])))
    images = torch.stack([load(name) for name in names])
    computed = compute_features(encoder, images, header.views[:1])[:, 0].astype(np.float32)
    for name, values in zip(names, computed, strict=True):
        cached = read_record(folder, header, header.ids.index(name), 0).astype(np.float32)
        change = float(np.linalg.norm(values - cached) / max(np.linalg.norm(cached), 1e-9))
        if not change <= _TOLERANCE:
            raise ValueError(
                f"{folder} holds other features of {name} than the encoder computes now (they "
                f"differ by {change:.0%}): the photo or its preprocessing has changed; remove the "
                "folder, or name another folder"
            )


@torch.inference_mode()
def compute_features(
    encoder: ImageEncoder, images: UInt8[Tensor, "b 3 y x"], views: Sequence[str]
) -> Float16[np.ndarray, "b views n"]:
    """Return the flattened grids of all stages, for each view of each image."""
    # In channels-last memory format convolutions on a CPU are about twice as fast.
    images = images.to(encoder.shift.device, memory_format=torch.channels_last)
    grids_of_views = [encoder.stage_features(VIEWS[view](images)) for view in views]
    flat = [torch.cat([grid.flatten(1).half() for grid in grids], 1) for grids in grids_of_views]
    return torch.stack(flat, 1).cpu().numpy()


def _prefetch(
    ids: Sequence[str], load: LoadInput, batch_size: int
) -> Iterator[tuple[Sequence[str], Tensor]]:
    """Yield batches of photos; the next one is loaded while the encoder computes."""
    batches = [ids[start : start + batch_size] for start in range(0, len(ids), batch_size)]
    with ThreadPoolExecutor(min(16, max(2, available_cores()))) as executor:
        pending = [executor.submit(load, name) for name in batches[0]] if batches else []
        try:
            for batch, following in zip(batches, [*batches[1:], ()], strict=True):
                loading, pending = pending, [executor.submit(load, name) for name in following]
                yield batch, torch.stack([image.result() for image in loading])
        finally:
            executor.shutdown(wait=False, cancel_futures=True)


def _count_complete(folder: Path, header: FeatureHeader) -> int:
    """Return the number of photos, from the first on, whose records are all undamaged."""
    records = map_records(folder, header)
    for photo, views in enumerate(records):
        if any(unpack_record(record) is None for record in views):
            return photo
    return len(records)


def _append(file: FileIO, records: UInt16[np.ndarray, "b views n"], done: int) -> None:
    remaining = memoryview(records.tobytes())
    try:
        while remaining:
            # An unbuffered write may take a part only, as on a disk that is nearly full.
            remaining = remaining[file.write(remaining) :]
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror} after the features of {done:,} photos; free disk space and run "
            "again: complete features are kept",
            file.name,
        ) from error


def _nonfinite_message(
    name: str, values: Float16[np.ndarray, "views n"], views: Sequence[str]
) -> str:
    view = int(np.isfinite(values).all(1).argmin())
    nans = int(np.isnan(values[view]).sum())
    infinities = int(np.isinf(values[view]).sum())
    return (
        f"{name} ({views[view]}): {nans} of its features are NaN and {infinities} exceed "
        "±65,504, the largest float16; check the photo and the encoder's weights"
    )


class FeatureCache:
    """Features of a frozen encoder for many photos, stored as float16 in a folder.

    Records are memory-mapped. The cache may be read from several processes and threads, and is
    pickled as its folder and ids.

    Args:
        folder: Where `prepare` wrote the features.
        ids: Photos to select, in the order of their indices here; all by default.
        views: Views to select, in the order of their indices here; all by default.

    Raises:
        FileNotFoundError: If the folder has no cache.
        ValueError: If it is damaged or incomplete, or lacks photos or views.

    Example:
        >>> from visattn.models.backbones.timm_encoder import TimmEncoder
        >>> encoder = TimmEncoder("test_resnet", img_size=(64, 64), stage=[3, 4])
        >>> photo = CaptionSample("red.jpg", torch.zeros(3, 64, 64, dtype=torch.uint8), ())
        >>> folder = getfixture("tmp_path")
        >>> cache = FeatureCache.prepare(folder, encoder, [photo], ids=["red.jpg"])
        >>> [tuple(grid.shape) for grid in cache.read(0)]
        [(192, 4, 4), (96, 2, 2)]
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        ids: Sequence[str] | None = None,
        views: Sequence[str] | None = None,
    ) -> None:
        self.folder = Path(folder)
        header = FeatureHeader.read(self.folder)
        if header is None:
            raise FileNotFoundError(f"no features in {folder}; FeatureCache.prepare computes them")
        if not header.complete:
            raise ValueError(
                f"the features in {folder} are incomplete; prepare them again with the same "
                "photos to resume"
            )
        self.header = header
        self.ids = tuple(header.ids if ids is None else ids)
        self.views = tuple(header.views if views is None else views)
        _check_contains(self.folder, header, self.ids, self.views)
        path = self.folder / RECORDS
        expected = len(header.ids) * header.photo_bytes
        size = path.stat().st_size if path.exists() else 0
        if size != expected:
            raise ValueError(
                f"{path} is damaged: it has {size:,} bytes and must have {expected:,}; remove "
                f"{folder} to compute the features again"
            )
        rows = {name: row for row, name in enumerate(header.ids)}
        self._rows = {name: rows[name] for name in self.ids}

    @classmethod
    def prepare(
        cls,
        folder: str | Path,
        encoder: ImageEncoder,
        photos: Photos,
        *,
        ids: Sequence[str],
        resize: ResizeSpec | None = None,
        views: Sequence[str] = ("plain",),
        batch_size: int = 16,
        log: Callable[[str], object] = lambda _: None,
    ) -> Self:
        """Return the features of photos, after computing those that are missing.

        An interrupted run is resumed by the next one. Features of another encoder, other weights,
        another resizing or other photos are refused and left as they are. A subset of the cached
        photos or views, in any order, is accepted. Of several processes one computes while the
        others wait.

        Args:
            folder: Where the features are stored; created if missing.
            encoder: Computes the features, on its device.
            photos: The photos at the encoder's input size. They are read from threads.
            ids: Unique id of each photo.
            resize: Resizing of the photos, recorded so that changes are detected.
            views: Views of each photo: `plain`, `mirrored`.
            batch_size: Photos per batch; on a CPU small batches are faster than large ones.
            log: Called with the required disk space, then with progress messages.

        Raises:
            ValueError: If the encoder is trainable, if the folder holds other or damaged features,
                if ids are not unique or not those of the photos, or if features are not finite.
            OSError: If there is too little disk space.
        """
        folder, requested = Path(folder), request_header(encoder, ids, resize, views)
        existing = _open_matching(folder, requested)
        load = _InputLoader(photos, ids, encoder)
        log(_describe_size(folder, existing or requested))
        if existing and existing.complete:
            cache = cls(folder, ids=ids, views=views)
            check_features(folder, existing, encoder, load, ids)
            return cache
        _check_disk_space(folder, existing or requested)
        folder.mkdir(parents=True, exist_ok=True)
        with lock_folder(folder, log):
            # Again, as another process may have completed the features while this one waited.
            header = _open_matching(folder, requested) or requested
            if not header.complete:
                _check_all_photos(folder, header, ids)
                header.write(folder)
                write_features(folder, header, encoder, load, batch_size=batch_size, log=log)
                replace(header, complete=True).write(folder)
        return cls(folder, ids=ids, views=views)

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, photo: int | str, view: int = 0) -> tuple[Float16[Tensor, "_ _ _"], ...]:
        """Return the feature grids of all stages of a photo.

        Args:
            photo: Id of the photo, or its index in `ids`.
            view: Index in `views`.

        Raises:
            KeyError: If the photo is not among `ids`.
            ValueError: If its record is damaged.
        """
        header = self.header
        name = self.ids[photo] if isinstance(photo, int) else photo
        if name not in self._rows:
            raise KeyError(f"{name} is not among the selected photos of {self.folder}")
        column = header.views.index(self.views[view])
        values = read_record(self.folder, header, self._rows[name], column)
        parts = torch.from_numpy(values).split([prod(shape) for shape in header.shapes])
        return tuple(part.view(shape) for part, shape in zip(parts, header.shapes, strict=True))


def request_header(
    encoder: ImageEncoder, ids: Sequence[str], resize: ResizeSpec | None, views: Sequence[str]
) -> FeatureHeader:
    """Return the header of the features that a call of `prepare` needs.

    Raises:
        ValueError: If the encoder is trainable, ids are not unique, or a view is unknown.
    """
    if not encoder.frozen:
        raise ValueError(
            f"features can only be cached for a frozen encoder, and this {type(encoder).__name__} "
            "is trainable: freeze it (unfreeze_from_stage=None of a TimmEncoder) or its first "
            "stages (unfreeze_from_stage=STAGE), or disable the cache"
        )
    if not views or len(set(views)) < len(views) or not set(views) <= set(VIEWS):
        raise ValueError(f"views must be unique and of {', '.join(VIEWS)}; got {list(views)}")
    if not ids:
        raise ValueError("there are no photos to cache; give at least one")
    if duplicates := [name for name, count in Counter(ids).items() if count > 1]:
        raise ValueError(
            f"ids of photos must be unique, got duplicates: {format_names(duplicates)}"
        )
    source = {
        "encoder": model_config(encoder),
        "weights": _hash_weights(encoder),
        "resize": resize and asdict(resize),
    }
    plain = json.loads(json.dumps(source))  # as it is read back: lists instead of tuples
    return FeatureHeader(plain, encoder.stage_shapes, tuple(views), tuple(ids))


class _InputLoader:
    """Loads the encoder's input for a photo by its id."""

    def __init__(self, photos: Photos, ids: Sequence[str], encoder: ImageEncoder) -> None:
        self.photos = photos
        self.shape = (3, *encoder.img_size)
        self.indices = {name: index for index, name in enumerate(ids)}

    def __call__(self, name: str) -> UInt8[Tensor, "3 y x"]:
        index = self.indices[name]
        sample = self.photos[index]
        if sample.id != name:
            raise ValueError(
                f"ids must be those of the photos, in their order; photo {index} is {sample.id} "
                f"and not {name}"
            )
        image = sample.image
        if image is None or image.dtype != torch.uint8 or image.shape != self.shape:
            actual = None if image is None else f"{image.dtype} {tuple(image.shape)}"
            raise ValueError(f"{name}: its image must be uint8 {self.shape}, got {actual}")
        return image


def _open_matching(folder: Path, requested: FeatureHeader) -> FeatureHeader | None:
    """Return the header of a folder after checking that it serves a request; None if empty."""
    header = FeatureHeader.read(folder)
    if header is None:
        return None
    if differences := _list_differences(header.source, requested.source):
        raise ValueError(f"{folder} holds other features: {'; '.join(differences)}; {_REMEDY}")
    _check_contains(folder, header, requested.ids, requested.views)
    return header


def _check_contains(
    folder: Path, header: FeatureHeader, ids: Sequence[str], views: Sequence[str]
) -> None:
    cached = set(header.ids)
    missing_views = [view for view in views if view not in header.views]
    if missing := missing_views or [name for name in ids if name not in cached]:
        raise ValueError(
            f"{folder} holds the features of {len(cached):,} photos, {' and '.join(header.views)}, "
            f"but not those of {format_names(missing)}; {_REMEDY}"
        )


def _check_all_photos(folder: Path, header: FeatureHeader, ids: Sequence[str]) -> None:
    available = set(ids)
    if missing := [name for name in header.ids if name not in available]:
        raise ValueError(
            f"{folder} holds incomplete features of {len(header.ids):,} photos, and resuming needs "
            f"{format_names(missing)} too; give all photos, {_REMEDY}"
        )


def _describe_size(folder: Path, header: FeatureHeader) -> str:
    count = len(header.ids)
    size = header.photo_bytes
    total = f"{count:,} x {size / 1e3:,.1f} kB = {count * size / 1e9:.2f} GB"
    return f"features of {count:,} photos: {total} in {folder}"


def _check_disk_space(folder: Path, header: FeatureHeader) -> None:
    records = folder / RECORDS
    written = records.stat().st_size if records.exists() else 0
    needed = max(0, len(header.ids) * header.photo_bytes - written)
    parents = (folder.absolute(), *folder.absolute().parents)
    free = shutil.disk_usage(next(parent for parent in parents if parent.exists())).free
    if free < needed:
        raise OSError(
            errno.ENOSPC,
            f"features need {needed / 1e9:.2f} GB and {free / 1e9:.2f} GB are free; free disk "
            "space, name another folder, or cache fewer stages or views",
            str(folder),
        )


def _list_differences(
    cached: Mapping[str, Any], requested: Mapping[str, Any], prefix: str = ""
) -> list[str]:
    """Return the differences between two nested mappings, one message each."""
    differences: list[str] = []
    for key in sorted({*cached, *requested}):
        old = cached.get(key)
        new = requested.get(key)
        path = f"{prefix}{key}"
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            differences += _list_differences(old, new, f"{path}.")
        elif old != new:
            differences.append(f"{path} is {_short_value(old)} there and {_short_value(new)} here")
    return differences


def _short_value(value: object) -> str:
    return f"{str(value)[:12]}..." if isinstance(value, str) and len(value) > 40 else repr(value)


def _hash_weights(encoder: ImageEncoder) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(encoder.stage_feature_weights().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        # As bytes, since NumPy has no bfloat16.
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
