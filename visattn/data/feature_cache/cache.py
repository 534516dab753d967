"""Cache of the features that a frozen encoder computes for photos."""

import errno
import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from math import prod
from pathlib import Path
from typing import Any, Self

import torch
from jaxtyping import Float16, UInt8
from torch import Tensor
from torch.utils.data import Dataset

from visattn.data.captions.batch import CaptionSample
from visattn.data.feature_cache.compute import VIEWS, check_features, write_features
from visattn.data.feature_cache.format import RECORDS, FeatureHeader, lock_folder, read_record
from visattn.images.resize import ResizeSpec
from visattn.io.messages import format_names
from visattn.models.encoder import ImageEncoder
from visattn.models.serialization.config import model_config

Photos = Dataset[CaptionSample] | Sequence[CaptionSample]
_REMEDY = "remove the folder, or name another folder"


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
        path, expected = self.folder / RECORDS, len(header.ids) * header.photo_bytes
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
        existing, load = _open_matching(folder, requested), _InputLoader(photos, ids, encoder)
        log(_describe_size(folder, existing or requested))
        if existing and existing.complete:
            cache = cls(folder, ids=ids, views=views)
            check_features(folder, existing, encoder, load, ids)
            return cache
        _check_disk_space(folder, existing or requested)
        folder.mkdir(parents=True, exist_ok=True)
        with lock_folder(folder, log):
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
        header, name = self.header, self.ids[photo] if isinstance(photo, int) else photo
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
        self.photos, self.shape = photos, (3, *encoder.img_size)
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
    count, size = len(header.ids), header.photo_bytes
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
        old, new, path = cached.get(key), requested.get(key), f"{prefix}{key}"
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
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
