"""What a frozen encoder finds in photos, computed once and kept in a file."""

import errno
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Self

import torch
from jaxtyping import Float16
from torch import Tensor

from visattn.data.feature_cache.format import RECORDS, FeatureHeader, alone, read_record
from visattn.data.feature_cache.request import (
    Images,
    Photos,
    check_given,
    check_size,
    check_there,
    found,
    requested,
)
from visattn.data.feature_cache.writer import check_alike, placed, write_features
from visattn.data.images.resize import ResizeSpec
from visattn.models.encoder import ImageEncoder


@dataclass(frozen=True)
class CachePlan:
    """How much room kept features take.

    Args:
        folder: Where they are kept.
        photos: How many photos.
        photo_bytes: What one photo takes, in all its views.
        missing: How many of the photos are not there yet.
    """

    folder: Path
    photos: int
    photo_bytes: int
    missing: int

    def __str__(self) -> str:
        total = self.photos * self.photo_bytes / 1e9
        size = f"{self.photos:,} x {self.photo_bytes / 1e3:,.1f} kB = {total:.2f} GB"
        return f"features of {self.photos:,} photos: {size} in {self.folder}"

    def check_room(self) -> None:
        """Refuse what does not go onto the disk.

        Raises:
            OSError: If less room is free than what is missing takes.
        """
        folder = self.folder.absolute()
        place = next(parent for parent in (folder, *folder.parents) if parent.exists())
        free, due = shutil.disk_usage(place).free, self.missing * self.photo_bytes
        if free < due:
            raise OSError(
                errno.ENOSPC,
                f"{due / 1e9:.2f} GB are needed for features and {free / 1e9:.2f} GB are free; "
                "make room, name another folder, or keep fewer stages or views",
                str(self.folder),
            )


def cache_plan(
    folder: str | Path, encoder: ImageEncoder, photos: int, *, views: Sequence[str] = ("plain",)
) -> CachePlan:
    """Return how much room the features of photos take, before any is computed.

    Args:
        folder: Where they are to be kept.
        encoder: What finds the features.
        photos: How many photos.
        views: The ways in which each photo is shown, of `plain` and `mirrored`.

    Example:
        >>> from visattn.models.backbones.timm_encoder import TimmEncoder
        >>> encoder = TimmEncoder("test_resnet", size=(224, 224), stage=[3, None])
        >>> print(cache_plan("runs/features", encoder, 7000))
        features of 7,000 photos: 7,000 x 84.7 kB = 0.59 GB in runs/features
    """
    header = FeatureHeader({}, encoder.stage_shapes, tuple(views), ())
    return _plan(Path(folder), photos, header.photo_bytes)


def _plan(folder: Path, photos: int, photo_bytes: int) -> CachePlan:
    file = folder / RECORDS
    there = file.stat().st_size // photo_bytes if file.exists() else 0
    return CachePlan(folder, photos, photo_bytes, max(0, photos - there))


class FeatureCache:
    """The features that a frozen encoder finds in photos, kept as float16 in a folder.

    Only what is read comes into memory. It may be read from any process or thread at once, and be
    handed to the workers of a loader.

    Args:
        folder: Where `prepare` kept them.
        ids: Which photos are wanted, in the order in which they are numbered here; all by default.
        views: Which views, in the order in which they are numbered here; all by default.

    Raises:
        FileNotFoundError: If nothing is kept there.
        ValueError: If it is damaged or unfinished, or if photos or views are not there.

    Example:
        >>> from visattn.data.captions.batch import CaptionSample
        >>> from visattn.models.backbones.timm_encoder import TimmEncoder
        >>> encoder = TimmEncoder("test_resnet", size=(64, 64), stage=[3, 4])
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
            raise FileNotFoundError(f"no features in {folder}; FeatureCache.prepare keeps them")
        if not header.complete:
            raise ValueError(
                f"the features in {folder} are unfinished; prepare them once more with the same "
                "photos, and it goes on where it stopped"
            )
        self.header = header
        self.ids = tuple(header.ids if ids is None else ids)
        self.views = tuple(header.views if views is None else views)
        check_there(self.folder, header, self.ids, self.views)
        check_size(self.folder, header)
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
        framing: ResizeSpec | None = None,
        views: Sequence[str] = ("plain",),
        batch: int = 16,
        device: torch.device | str | None = None,
        told: Callable[[str], object] = lambda _: None,
    ) -> Self:
        """Return the features of photos, after computing those that are missing.

        However a run ends, the next one goes on where it stopped. Features of another encoder,
        other weights, another framing or other photos are left alone: the call is refused. Fewer
        photos or views than are kept, in any order, are fine. Of several processes one computes
        while the others wait.

        Args:
            folder: Where the features are kept; made if it is not there.
            encoder: What finds the features.
            photos: The photos, framed as the encoder takes them. They are read from threads.
            ids: The name of each photo; all different.
            framing: How the photos were framed, so that another framing is noticed.
            views: The ways in which each photo is shown, of `plain` and `mirrored`.
            batch: Photos that the encoder sees at once; on a CPU few are faster than many.
            device: Where the encoder works meanwhile; where it is if left out.
            told: Is told first how much room it takes, then now and then how far it is.

        Raises:
            ValueError: If the encoder is trained, if the folder holds other or damaged features,
                if ids are not all different or not those of the photos, or if a photo gives NaN.
            OSError: If there is too little room.
        """
        folder, wanted = Path(folder), requested(encoder, ids, framing, views)
        there, image = found(folder, wanted), Images(photos, ids, encoder.size)
        header = there or wanted
        plan = _plan(folder, len(header.ids), header.photo_bytes)
        told(str(plan))
        with placed(encoder, device):
            if there and there.complete:
                cache = cls(folder, ids=ids, views=views)
                check_alike(folder, there, encoder, image, ids)
                return cache
            plan.check_room()
            folder.mkdir(parents=True, exist_ok=True)
            with alone(folder, told):
                there = found(folder, wanted) or wanted
                if not there.complete:
                    check_given(folder, there, ids)
                    there.write(folder)
                    write_features(folder, there, encoder, image, batch=batch, told=told)
                    replace(there, complete=True).write(folder)
        return cls(folder, ids=ids, views=views)

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, photo: int | str, view: int = 0) -> tuple[Float16[Tensor, "_ _ _"], ...]:
        """Return the grids of all stages of a photo.

        Args:
            photo: The name of a photo, or its number among `ids`.
            view: Which of `views`.

        Raises:
            KeyError: If the photo is not among `ids`.
            ValueError: If what is on disk is damaged.
        """
        header, name = self.header, self.ids[photo] if isinstance(photo, int) else photo
        if name not in self._rows:
            raise KeyError(f"{self.folder} was not asked for the features of {name}")
        column = header.views.index(self.views[view])
        values = read_record(self.folder, header, self._rows[name], column)
        parts = torch.from_numpy(values).split([prod(shape) for shape in header.shapes])
        return tuple(part.view(shape) for part, shape in zip(parts, header.shapes, strict=True))
