"""Which features are asked for, and whether those that a folder holds are these."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from jaxtyping import UInt8
from torch import Tensor
from torch.utils.data import Dataset

from visattn.data.captions.batch import CaptionSample
from visattn.data.feature_cache.format import RECORDS, FeatureHeader, differences, some
from visattn.data.feature_cache.writer import VIEWS
from visattn.data.images.resize import ResizeSpec
from visattn.models.encoder import ImageEncoder
from visattn.models.serialization.config import describe

Photos = Dataset[CaptionSample] | Sequence[CaptionSample]
_INSTEAD = "remove it, or name another folder"


class Images:
    """What an encoder is shown of photos, by their names.

    Args:
        photos: The photos, framed for the encoder.
        ids: The name of each.
        size: Height and width that the encoder takes.
    """

    def __init__(self, photos: Photos, ids: Sequence[str], size: tuple[int, int]) -> None:
        self.photos, self.size = photos, size
        self.places = {name: place for place, name in enumerate(ids)}

    def __call__(self, name: str) -> UInt8[Tensor, "3 y x"]:
        """Return the image of a photo.

        Raises:
            ValueError: If the photo has another name, or its image another form.
        """
        place = self.places[name]
        sample = self.photos[place]
        if sample.id != name:
            raise ValueError(
                f"ids must be those of the photos, in their order; photo {place} is {sample.id} "
                f"and not {name}"
            )
        image = sample.image
        if image is None or image.dtype != torch.uint8 or image.shape != (3, *self.size):
            given = None if image is None else f"{image.dtype} {tuple(image.shape)}"
            raise ValueError(f"{name}: its image must be uint8 {(3, *self.size)}, got {given}")
        return image


def requested(
    encoder: ImageEncoder, ids: Sequence[str], framing: ResizeSpec | None, views: Sequence[str]
) -> FeatureHeader:
    """Return the header of features that are asked for.

    Raises:
        ValueError: If the encoder is trained, if ids are not all different, or a view is unknown.
    """
    if not encoder.frozen:
        raise ValueError(
            f"only what a frozen encoder finds may be kept, and this {type(encoder).__name__} is "
            "trained: freeze it (train_from=None of a TimmEncoder) or its beginning "
            "(train_from=STAGE, of backbones that run stage by stage), or keep nothing"
        )
    if not views or len(set(views)) < len(views) or not set(views) <= set(VIEWS):
        raise ValueError(f"views must be some of {', '.join(VIEWS)}, each once, got {list(views)}")
    if not ids:
        raise ValueError("there are no photos to keep features of; give at least one")
    if double := [name for name, count in Counter(ids).items() if count > 1]:
        raise ValueError(f"the ids of photos must be all different; more than once: {some(double)}")
    made_of = {
        "encoder": describe(encoder),
        "weights": _hash(encoder),
        "framing": framing and asdict(framing),
    }
    plain = json.loads(json.dumps(made_of))  # as it will be read again: lists, no tuples
    return FeatureHeader(plain, encoder.stage_shapes, tuple(views), tuple(ids))


def found(folder: Path, wanted: FeatureHeader) -> FeatureHeader | None:
    """Return the header of what a folder holds; None if it holds nothing.

    Raises:
        ValueError: If it holds something else, or something damaged; it says what differs.
    """
    header = FeatureHeader.read(folder)
    if header is None:
        return None
    if differ := differences(header.made_of, wanted.made_of):
        raise ValueError(f"{folder} holds other features: {'; '.join(differ)}; {_INSTEAD}")
    check_there(folder, header, wanted.ids, wanted.views)
    return header


def check_there(
    folder: Path, header: FeatureHeader, ids: Sequence[str], views: Sequence[str]
) -> None:
    """Refuse photos and views that a folder does not hold.

    Raises:
        ValueError: If there are any.
    """
    kept = set(header.ids)
    absent = [name for name in ids if name not in kept]
    absent_views = [view for view in views if view not in header.views]
    if absent or absent_views:
        raise ValueError(
            f"{folder} holds the features of {len(kept):,} photos, {' and '.join(header.views)}, "
            f"but not those of {some(absent_views or absent)}; {_INSTEAD}"
        )


def check_given(folder: Path, header: FeatureHeader, ids: Sequence[str]) -> None:
    """Refuse to go on with unfinished features without all of their photos.

    Raises:
        ValueError: If a photo is not given.
    """
    given = set(ids)
    if absent := [name for name in header.ids if name not in given]:
        raise ValueError(
            f"{folder} holds unfinished features of {len(header.ids):,} photos, and of these "
            f"{some(absent)} are not given; give all of them, {_INSTEAD}"
        )


def check_size(folder: Path, header: FeatureHeader) -> None:
    """Refuse records that are too few or too many.

    Raises:
        ValueError: If they are.
    """
    file, due = folder / RECORDS, len(header.ids) * header.photo_bytes
    size = file.stat().st_size if file.exists() else 0
    if size != due:
        raise ValueError(
            f"{file} is damaged: it has {size:,} bytes and must have {due:,}; remove {folder}, "
            "and the features are computed anew"
        )


def _hash(encoder: ImageEncoder) -> str:
    digest = hashlib.sha256()
    for name, tensor in sorted(encoder.kept_weights().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
