"""Computation of cached features: batch after batch, appended to a file that only grows."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from io import FileIO
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float16, UInt8, UInt16
from torch import Tensor

from visattn.data.feature_cache.format import (
    RECORDS,
    FeatureHeader,
    map_records,
    pack_records,
    read_record,
    unpack_record,
)
from visattn.data.loading.cores import available_cores
from visattn.models.encoder import ImageEncoder

LoadInput = Callable[[str], UInt8[Tensor, "3 y x"]]
VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda images: images,
    "mirrored": lambda images: images.flip(-1),
}
_TOLERANCE = 0.1  # relative difference of features that are computed again
_LOG_SECONDS = 10.0  # between two progress messages


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
    encoder is deterministic for the batch size, device, threads and version of torch.

    Args:
        folder: Where the records are; no other process may write there.
        header: Description of the records.
        encoder: Computes the features.
        load: Returns the encoder's input for a photo; called from other threads.
        batch_size: Photos per batch.
        log: Called with progress messages.

    Raises:
        OSError: If the disk is full; complete records stay.
        ValueError: If features are not finite in float16.
    """
    done, total = _count_complete(folder, header), len(header.ids)
    with (folder / RECORDS).open("a+b", buffering=0) as file:
        file.truncate(done * header.photo_bytes)
        if done:
            log(f"features: {done:,} of {total:,} photos are already cached")
            check_features(folder, header, encoder, load, header.ids[:done])
        cached, skip = done, done % batch_size
        start = last = time.monotonic()
        for ids, images in _prefetch(header.ids[done - skip :], load, batch_size):
            values = compute_features(encoder, images, header.views)
            finite = np.isfinite(values).reshape(len(values), -1).all(1)
            end = len(ids) if finite.all() else int(finite.argmin())
            _append(file, pack_records(values[skip:end]), done)
            if end < len(ids):
                raise ValueError(_nonfinite_message(ids[end], values[end], header.views))
            done, skip, now = done + len(ids) - skip, 0, time.monotonic()
            if now - last >= _LOG_SECONDS or done == total:
                speed, last = (done - cached) / max(now - start, 1e-9), now
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
    nans, infinities = int(np.isnan(values[view]).sum()), int(np.isinf(values[view]).sum())
    return (
        f"{name} ({views[view]}): {nans} of its features are NaN and {infinities} exceed "
        "±65,504, the largest float16; check the photo and the encoder's weights"
    )
