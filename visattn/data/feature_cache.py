"""On-disk cache of the features of a frozen encoder.

    photo path, file size and mtime ────┐
    encoder with weights, resizing ─────┴─ digest ── FOLDER/3f/3f9a...npy    float16, all stages

One file per photo: new and changed photos are computed alone, a killed run continues where it
stopped, and several processes can write at once.
"""

import errno
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float16, UInt8
from torch import Tensor

from visattn.data.loading import available_cores
from visattn.images.resize import ResizeSpec
from visattn.io.safe_text import reading
from visattn.io.sources import Location, Source
from visattn.models.base import ImageEncoder
from visattn.models.config import model_config

Photo = str | Source
_LOG_SECONDS = 10.0  # between two progress messages


class FeatureCache:
    """Features of a frozen encoder for many photos, stored as float16 in a folder.

    Args:
        folder: Created if missing; several encoders and resize settings can share it.
        encoder: Must be frozen.
        resize: How photos are resized.
        mirrored: Also store the features of the mirrored photos.

    Raises:
        ValueError: If the encoder is trainable.
    """

    def __init__(
        self,
        folder: str | Path,
        encoder: ImageEncoder,
        resize: ResizeSpec,
        *,
        mirrored: bool = False,
    ) -> None:
        if not encoder.frozen:
            raise ValueError(
                f"features can only be cached for a frozen encoder, but this "
                f"{type(encoder).__name__} is trainable: freeze it (unfreeze_from_stage: null), or "
                "set feature_cache_dir to null"
            )
        self.folder = Path(folder)
        self.shapes = encoder.stage_shapes
        self.views = (False, True) if mirrored else (False,)
        made = hashlib.sha256(
            json.dumps([model_config(encoder), asdict(resize)], default=str).encode()
        )
        for name, tensor in sorted(encoder.stage_feature_weights().items()):
            made.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
            # As bytes, since NumPy has no bfloat16.
            made.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        self._maker = made.hexdigest()

    def file(self, photo: Photo, *, mirrored: bool) -> Path:
        """Return the cache file of a photo in its current state."""
        if isinstance(photo, Location):
            version: object = photo.digest()
        else:
            status = os.stat(photo)  # noqa: PTH116 (takes strings too)
            version = (status.st_size, status.st_mtime_ns)
        content = repr((self._maker, str(photo), version, mirrored))
        name = hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        return self.folder / name[:2] / f"{name}.npy"

    def read(self, photo: Photo, *, mirrored: bool = False) -> tuple[Float16[Tensor, "_ _ _"], ...]:
        """Return the cached feature maps of a photo, one per stage.

        Raises:
            FileNotFoundError: If the photo is not in the cache.
            ValueError: If the file is damaged.
        """
        file = self.file(photo, mirrored=mirrored)
        with reading(file, "remove it to recompute the features"):
            values = torch.from_numpy(np.load(file, allow_pickle=False))
            parts = values.split([prod(shape) for shape in self.shapes])
            return tuple(part.view(shape) for part, shape in zip(parts, self.shapes, strict=True))

    def compute(
        self,
        photos: Sequence[Photo],
        encoder: ImageEncoder,
        load: Callable[[Photo], UInt8[Tensor, "3 y x"]],
        *,
        batch_size: int = 16,
        rank: int = 0,
        num_replicas: int = 1,
        log: Callable[[str], object] = lambda _: None,
    ) -> None:
        """Compute the missing features; each process takes its share.

        Raises:
            OSError: If there is not enough disk space.
            ValueError: If a feature is not finite in float16.
        """
        starts = range(rank * batch_size, len(photos), num_replicas * batch_size)
        batches = [photos[start : start + batch_size] for start in starts]
        # Recompute whole batches: the last bits of a feature depend on the rest of its batch.
        todo = [batch for batch in batches if not all(map(self._is_done, batch))]
        size = 2 * sum(map(prod, self.shapes)) * len(self.views)
        needed = size * sum(map(len, todo))
        log(
            f"features of {len(photos):,} photos, {size / 1e3:,.1f} kB each, in {self.folder}: "
            f"{needed / 1e9:.2f} GB to compute"
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        if needed > shutil.disk_usage(self.folder).free:
            reason = f"needs {needed / 1e9:.2f} GB; free disk space"
            raise OSError(errno.ENOSPC, reason, str(self.folder))
        last = time.monotonic()
        with ThreadPoolExecutor(min(16, max(2, available_cores()))) as threads:
            loading = [threads.submit(load, photo) for photo in (todo or [()])[0]]
            for number, batch in enumerate(todo, 1):
                images = torch.stack([image.result() for image in loading])
                loading = [threads.submit(load, p) for p in (todo[number:] or [()])[0]]
                for mirrored in self.views:
                    values = _features(encoder, images.flip(-1) if mirrored else images)
                    for photo, row in zip(batch, values, strict=True):
                        self._write(photo, row, mirrored=mirrored)
                if time.monotonic() - last >= _LOG_SECONDS:
                    last = time.monotonic()
                    log(f"features: {number:,} of {len(todo):,} batches")

    def _is_done(self, photo: Photo) -> bool:
        return all(self.file(photo, mirrored=mirrored).is_file() for mirrored in self.views)

    def _write(self, photo: Photo, values: Float16[np.ndarray, " n"], *, mirrored: bool) -> None:
        if not np.isfinite(values).all():
            raise ValueError(
                f"{photo}: features must be finite and within ±65,504, the range of float16; "
                "check the photo and the encoder's weights"
            )
        file = self.file(photo, mirrored=mirrored)
        file.parent.mkdir(exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}.part")
        with part.open("wb") as opened:
            np.save(opened, values)
        part.replace(file)


@torch.inference_mode()
def _features(encoder: ImageEncoder, images: UInt8[Tensor, "b 3 y x"]) -> Any:
    """Return the features of all stages, one row per image."""
    # Convolutions on CPU are about twice as fast in channels-last memory format.
    grids = encoder.stage_features(
        images.to(encoder.shift.device, memory_format=torch.channels_last)
    )
    return torch.cat([grid.flatten(1).half() for grid in grids], 1).cpu().numpy()
