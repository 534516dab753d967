"""Cache of the features that a frozen encoder computes for photos.

    photo, its size and time of change ─┐
    encoder with weights, resizing ─────┴─ digest ── FOLDER/3f/3f9a...npy    float16, all stages

A file per photo, not one for all: a photo that is new or was corrected is computed alone, a killed
run goes on where it was, and several processes write side by side.
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
        folder: Is created. Files of other encoders or resizings may lie in it.
        encoder: Must be frozen.
        resize: How photos are resized.
        mirrored: Whether the features of mirrored photos are stored, too.

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
                f"features can only be cached for a frozen encoder, and this "
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
        """Return the file of the features of a photo as it is now."""
        if isinstance(photo, Location):
            version: object = photo.digest()
        else:
            status = os.stat(photo)  # noqa: PTH116 (takes strings too)
            version = (status.st_size, status.st_mtime_ns)
        content = repr((self._maker, str(photo), version, mirrored))
        name = hashlib.sha256(content.encode("utf-8", "surrogateescape")).hexdigest()[:32]
        return self.folder / name[:2] / f"{name}.npy"

    def read(self, photo: Photo, *, mirrored: bool = False) -> tuple[Float16[Tensor, "_ _ _"], ...]:
        """Return the feature grids of all stages of a photo.

        Raises:
            FileNotFoundError: If they have not been computed.
            ValueError: If the file is damaged.
        """
        file = self.file(photo, mirrored=mirrored)
        with reading(file, "remove it, to compute the features again"):
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
        """Compute the features that are missing; of several processes each takes its part.

        Raises:
            OSError: If the disk has no room for them.
            ValueError: If a feature is not a finite float16.
        """
        starts = range(rank * batch_size, len(photos), num_replicas * batch_size)
        batches = [photos[start : start + batch_size] for start in starts]
        # A batch is computed as a whole, even if a part is there: else last bits would differ.
        todo = [batch for batch in batches if not all(map(self._is_done, batch))]
        size = 2 * sum(map(prod, self.shapes)) * len(self.views)
        needed = size * sum(map(len, todo))
        log(
            f"features of {len(photos):,} photos, {size / 1e3:,.1f} kB each, in {self.folder}: "
            f"{needed / 1e9:.2f} GB to compute"
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        if needed > shutil.disk_usage(self.folder).free:
            raise OSError(errno.ENOSPC, f"{needed / 1e9:.2f} GB are needed", str(self.folder))
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
                f"{photo}: its features are not finite, or exceed ±65,504, the largest float16; "
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
    # In channels-last memory format convolutions on a CPU are about twice as fast.
    grids = encoder.stage_features(
        images.to(encoder.shift.device, memory_format=torch.channels_last)
    )
    return torch.cat([grid.flatten(1).half() for grid in grids], 1).cpu().numpy()
