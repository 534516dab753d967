"""Cached features: equal to those of the encoder, kept over runs, computed again where changed."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from visattn.data.feature_cache import FeatureCache
from visattn.images.reader import read_image
from visattn.images.resize import ResizeSpec, resize_to_input
from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.models.base import ImageEncoder

RESIZE = ResizeSpec((64, 64))


def encoder(seed: int = 0, **options: Any) -> ImageEncoder:
    torch.manual_seed(seed)
    return TimmEncoder("test_resnet", img_size=(64, 64), **options).eval()


def load(photo: Any) -> torch.Tensor:
    return resize_to_input(read_image(photo), RESIZE)[0]


@pytest.fixture
def photos(tmp_path: Path) -> list[str]:
    random = np.random.default_rng(0)
    files = [str(tmp_path / f"{number}.png") for number in range(7)]
    for file in files:
        Image.fromarray(random.integers(0, 255, (70, 90, 3), dtype=np.uint8)).save(file)
    return files


def computed(cache: FeatureCache, photos: list[str], model: ImageEncoder, **options: Any) -> int:
    """Compute features; return how many images the encoder saw."""
    seen: list[int] = []
    plain = model.stage_features

    def counted(images: torch.Tensor) -> Any:
        seen.append(len(images))
        return plain(images)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "stage_features", counted)
        cache.compute(photos, model, load, batch_size=3, **options)
    return sum(seen)


def test_features_are_those_of_the_encoder_plain_and_mirrored(
    photos: list[str], tmp_path: Path
) -> None:
    model = encoder()
    cache = FeatureCache(tmp_path / "f", model, RESIZE, mirrored=True)
    assert computed(cache, photos, model) == 14
    for mirrored in (False, True):
        image = load(photos[4])[None]
        expected = model.stage_features(image.flip(-1) if mirrored else image)
        for grid, whole in zip(cache.read(photos[4], mirrored=mirrored), expected, strict=True):
            torch.testing.assert_close(grid.float(), whole[0], atol=2e-3, rtol=2e-3)


def test_only_what_is_new_or_changed_is_computed(photos: list[str], tmp_path: Path) -> None:
    model = encoder()
    cache = FeatureCache(tmp_path / "f", model, RESIZE)
    assert computed(cache, photos[:6], model) == 6
    assert computed(FeatureCache(tmp_path / "f", model, RESIZE), photos[:6], model) == 0
    assert computed(cache, photos, model) == 1
    before = cache.read(photos[1])
    Image.new("RGB", (70, 90), "red").save(photos[1])
    with pytest.raises(FileNotFoundError):
        cache.read(photos[1])
    assert computed(cache, photos, model) == 3  # the batch as a whole
    assert not torch.equal(cache.read(photos[1])[0], before[0])
    other = encoder(1)  # other weights
    assert computed(FeatureCache(tmp_path / "f", other, RESIZE), photos, other) == 7
    squashed = FeatureCache(tmp_path / "f", model, ResizeSpec((64, 64), "squash"))
    assert computed(squashed, photos, model) == 7


def test_a_killed_run_goes_on_to_the_same_bits(photos: list[str], tmp_path: Path) -> None:
    model = encoder()
    whole = FeatureCache(tmp_path / "whole", model, RESIZE)
    computed(whole, photos, model)
    killed = FeatureCache(tmp_path / "killed", model, RESIZE)
    computed(killed, photos[:5], model)
    killed.file(photos[4], mirrored=False).unlink()
    computed(killed, photos, model)
    shared = FeatureCache(tmp_path / "shared", model, RESIZE)
    assert [computed(shared, photos, model, rank=r, num_replicas=2) for r in (0, 1)] == [4, 3]
    for photo in photos:
        for cache in (killed, shared):
            assert torch.equal(cache.read(photo)[0], whole.read(photo)[0])
    assert not list(tmp_path.rglob("*.part"))


def test_what_cannot_be_cached_is_refused(
    photos: list[str], tmp_path: Path, monkeypatch: Any
) -> None:
    trainable = encoder(unfreeze_from_stage=0)
    with pytest.raises(ValueError, match="only be cached for a frozen encoder"):
        FeatureCache(tmp_path, trainable, RESIZE)
    model = encoder()
    cache = FeatureCache(tmp_path / "f", model, RESIZE)
    computed(cache, photos, model)
    file = cache.file(photos[0], mirrored=False)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ValueError, match=r"\.npy, remove it to recompute"):
        cache.read(photos[0])
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10))
    os.unlink(file)  # noqa: PTH108
    with pytest.raises(OSError, match="needs .* GB; free disk space"):
        computed(cache, photos, model)
    with torch.no_grad():
        next(iter(model.parameters())).fill_(torch.inf)
    broken = FeatureCache(tmp_path / "g", model, RESIZE)
    monkeypatch.undo()
    with pytest.raises(ValueError, match=r"0\.png: features must be finite"):
        computed(broken, photos, model)
