"""Computing the features that are kept: photo after photo, into a file that only grows."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float16, UInt8, UInt16
from torch import Tensor

from visattn.data.feature_cache.format import RECORDS, FeatureHeader, packed, read_record, unpacked
from visattn.models.encoder import ImageEncoder

LoadedImage = Callable[[str], UInt8[Tensor, "3 y x"]]
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda images: images,
    "mirrored": lambda images: images.flip(-1),
}
_ALIKE = 0.1  # share by which features may differ when they are computed again
_PAUSE = 10.0  # seconds between two words on how far it is


def write_features(
    folder: Path,
    header: FeatureHeader,
    encoder: ImageEncoder,
    image: LoadedImage,
    *,
    batch: int,
    told: Callable[[str], object],
) -> None:
    """Compute what is missing in a folder, after the whole records that are there.

    The encoder sees the photos in the same batches, whatever was there before: a file that was
    written in several goes equals one that was written at once, as long as the encoder computes
    alike (the same batch, device, threads and version of torch).

    Args:
        folder: Where the records are; nobody else may write there.
        header: What the records are.
        encoder: What finds the features.
        image: Gives what the encoder is shown of a photo; called from other threads.
        batch: Photos that the encoder sees at once.
        told: Is told now and then how far it is.

    Raises:
        OSError: If the disk takes no more; what is written stays, and is gone on from.
        ValueError: If a photo's features are no numbers that float16 can hold.
    """
    with (folder / RECORDS).open("a+b", buffering=0) as file:
        done = _whole_photos(file, header)
        file.truncate(done * header.photo_bytes)
        if done:
            told(f"features: {done:,} of {len(header.ids):,} photos are there already")
            check_alike(folder, header, encoder, image, header.ids[:done])
        report = _Report(told, done, len(header.ids))
        there = done % batch  # of the first batch, which is seen whole: kernels differ by its size
        for ids, images in _batches(header.ids[done - there :], image, batch):
            values = features_of(encoder, images, header.views)
            good = _first_bad(values)
            _append(file, packed(values[there:good]), report.done)
            if good < len(ids):
                raise ValueError(_bad(ids[good], values[good], header.views))
            report.more(len(ids) - there)
            there = 0
        os.fsync(file.fileno())


def check_alike(
    folder: Path,
    header: FeatureHeader,
    encoder: ImageEncoder,
    image: LoadedImage,
    ids: Sequence[str],
) -> None:
    """Look at a few photos again: what is kept must be what the encoder finds in them today.

    This notices what a header cannot say, such as photos that were changed on disk. A tenth of
    difference is let pass; other decoders, threads and devices make less.

    Args:
        folder: Where the records are.
        header: What they are.
        encoder: What finds the features.
        image: Gives what the encoder is shown of a photo.
        ids: Photos that are kept there; the first, the middle and the last are looked at.

    Raises:
        ValueError: If a photo has other features now.
    """
    names = list(dict.fromkeys((ids[0], ids[len(ids) // 2], ids[-1])))
    fresh = features_of(encoder, torch.stack([image(name) for name in names]), header.views[:1])
    for name, values in zip(names, fresh[:, 0].astype(np.float32), strict=True):
        kept = read_record(folder, header, header.ids.index(name), 0).astype(np.float32)
        change = float(np.linalg.norm(values - kept) / max(np.linalg.norm(kept), 1e-9))
        if not change <= _ALIKE:
            raise ValueError(
                f"{folder} holds other features of {name} than the encoder finds in it now (they "
                f"differ by {change:.0%}): the photo, or the way it is read, has changed since; "
                "remove it, or name another folder"
            )


@contextmanager
def placed(encoder: ImageEncoder, device: torch.device | str | None) -> Iterator[None]:
    """Keep an encoder on another device for a while."""
    home = encoder.shift.device
    encoder.to(device or home)
    try:
        yield
    finally:
        encoder.to(home)


@torch.inference_mode()
def features_of(
    encoder: ImageEncoder, images: UInt8[Tensor, "b 3 y x"], views: Sequence[str]
) -> Float16[np.ndarray, "b views n"]:
    """Return the grids of all stages of each view of each image, one behind the other."""
    # Channels last: with these, convolutions on a CPU are about twice as fast.
    images = images.to(encoder.shift.device, memory_format=torch.channels_last)
    every = [encoder.grids(VIEWS[view](images)) for view in views]
    flat = [torch.cat([grid.flatten(1).half() for grid in grids], 1) for grids in every]
    return torch.stack(flat, 1).cpu().numpy()


def _batches(
    ids: Sequence[str], image: LoadedImage, batch: int
) -> Iterator[tuple[Sequence[str], Tensor]]:
    """Give the photos in batches; the next one is read while one is at work with this one."""
    parts = [ids[first : first + batch] for first in range(0, len(ids), batch)]
    with ThreadPoolExecutor(2) as readers:
        ahead = [readers.submit(image, one) for part in parts[:1] for one in part]
        try:
            for number, part in enumerate(parts):
                read, ahead = ahead, []
                ahead += [readers.submit(image, one) for p in parts[number + 1 :][:1] for one in p]
                yield part, torch.stack([one.result() for one in read])
        finally:
            readers.shutdown(wait=False, cancel_futures=True)


def _whole_photos(file: FileIO, header: FeatureHeader) -> int:
    """Return how many photos, from the first on, have all their records undamaged."""
    file.seek(0)
    record = bytearray(header.record_bytes)
    for photo in range(len(header.ids)):
        for _ in header.views:
            if file.readinto(record) < len(record) or unpacked(record) is None:
                return photo
    return len(header.ids)


def _append(file: FileIO, records: UInt16[np.ndarray, "b views n"], done: int) -> None:
    left = memoryview(records.tobytes())
    try:
        while left:
            left = left[file.write(left) :]
    except OSError as error:
        raise OSError(
            error.errno,
            f"{error.strerror} after the features of {done:,} photos; make room and do the same "
            "again: what is there stays",
            file.name,
        ) from error


def _first_bad(values: Float16[np.ndarray, "b views n"]) -> int:
    """Return the first photo that has a value which is no finite number, or how many there are."""
    fine = np.isfinite(values).reshape(len(values), -1).all(1)
    return int(fine.argmin()) if not fine.all() else len(values)


def _bad(name: str, values: Float16[np.ndarray, "views n"], views: Sequence[str]) -> str:
    view = int(np.isfinite(values).all(1).argmin())
    counted = int(np.isnan(values[view]).sum()), int(np.isinf(values[view]).sum())
    return (
        f"{name} ({views[view]}): {counted[0]} of its features are NaN and {counted[1]} are beyond "
        "±65,504, the largest that float16 holds; look at the photo and at the encoder's weights"
    )


class _Report:
    """Says how far it is, not too often."""

    def __init__(self, told: Callable[[str], object], done: int, total: int) -> None:
        self.told, self.first, self.done, self.total = told, done, done, total
        self.began = self.last = time.monotonic()

    def more(self, photos: int) -> None:
        self.done += photos
        now = time.monotonic()
        if now - self.last < _PAUSE and self.done < self.total:
            return
        self.last = now
        speed = (self.done - self.first) / max(now - self.began, 1e-9)
        left = f", {(self.total - self.done) / speed:.0f} s left" if self.done < self.total else ""
        self.told(f"features: {self.done:,} of {self.total:,} photos, {speed:.1f} photos/s{left}")
