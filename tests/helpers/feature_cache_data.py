"""Photos and a small encoder for tests of cached features."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset

from visattn.data.captions.batch import CaptionSample
from visattn.data.feature_cache import FeatureCache, FeatureHeader
from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.models.base import ImageEncoder

SIZE = (97, 61)
VIEWS = ("plain", "mirrored")


class Photos(Dataset[CaptionSample]):
    """Noise images with names; records which were read."""

    def __init__(self, count: int = 7, *, size: tuple[int, int] = SIZE, seed: int = 0) -> None:
        random = torch.Generator().manual_seed(seed)
        pixels = torch.randint(256, (count, 3, *size), dtype=torch.uint8, generator=random)
        self.samples = [CaptionSample(f"{n}.jpg", pixels[n], ()) for n in range(count)]
        self.read: list[str] = []

    @property
    def ids(self) -> list[str]:
        return [sample.id for sample in self.samples]

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, index: int) -> CaptionSample:
        self.read.append(self.samples[index].id)
        return self.samples[index]


def small_encoder(seed: int = 0) -> TimmEncoder:
    torch.manual_seed(seed)
    return TimmEncoder("test_resnet", img_size=SIZE, stage=[3, None])


def prepare(folder: Path, encoder: ImageEncoder, photos: Photos, **options: Any) -> FeatureCache:
    arguments = {"ids": photos.ids, "views": VIEWS, "batch_size": 3, **options}
    return FeatureCache.prepare(folder, encoder, photos, **arguments)


def fresh(encoder: ImageEncoder, sample: CaptionSample, view: str) -> tuple[torch.Tensor, ...]:
    assert sample.image is not None
    image = sample.image.flip(-1) if view == "mirrored" else sample.image
    with torch.no_grad():
        return tuple(grid[0] for grid in encoder.stage_features(image[None]))


def assert_right(cache: FeatureCache, encoder: ImageEncoder, photos: Photos) -> None:
    """The cache has the features of each photo and view, to float16 precision."""
    samples = {sample.id: sample for sample in photos.samples}
    for number, name in enumerate(cache.ids):
        for column, view in enumerate(cache.views):
            for kept, computed in zip(
                cache.read(number, column), fresh(encoder, samples[name], view), strict=True
            ):
                assert kept.dtype == torch.float16
                torch.testing.assert_close(kept.float(), computed, rtol=1e-3, atol=1e-4)


def unfinished(folder: Path) -> FeatureHeader:
    header = FeatureHeader.read(folder)
    assert header is not None
    header = replace(header, complete=False)
    header.write(folder)
    return header
