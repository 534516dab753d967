"""Feature cache: cached features equal computed ones, in any process."""

import errno
import os
import pickle
import shutil
from pathlib import Path
from threading import Thread

import pytest
import torch
from feature_cache_data import VIEWS, Photos, assert_right, fresh, prepare, small_encoder
from torch.utils.data import DataLoader, Dataset

from visattn.data.captions.dataset import CaptionedPhotos
from visattn.data.captions.files import read_captions
from visattn.data.feature_cache import (
    RECORDS,
    FeatureCache,
    lock_folder,
    request_header,
)
from visattn.images.resize import ResizeSpec
from visattn.models.backbones.timm_encoder import TimmEncoder


@pytest.fixture(scope="module")
def encoder() -> TimmEncoder:
    return small_encoder()


def test_cached_features_equal_computed_ones(tmp_path: Path, encoder: TimmEncoder) -> None:
    photos = Photos()
    cache = prepare(tmp_path, encoder, photos)
    assert (len(cache), cache.ids, cache.views) == (7, tuple(photos.ids), VIEWS)
    assert_right(cache, encoder, photos)
    batch = [torch.stack(grids) for grids in zip(*map(cache.read, range(7)), strict=True)]
    images = torch.stack([sample.image for sample in photos.samples if sample.image is not None])
    with torch.no_grad():
        torch.testing.assert_close(
            encoder.merge_stages(batch), encoder(images), rtol=1e-3, atol=1e-4
        )
    for by_id, by_index in zip(cache.read("4.jpg", 1), cache.read(4, 1), strict=True):
        assert torch.equal(by_id, by_index)
    assert photos.read == photos.ids  # each once


def test_subset_of_photos_and_views_in_another_order(tmp_path: Path, encoder: TimmEncoder) -> None:
    photos = Photos()
    prepare(tmp_path, encoder, photos)
    subset = Photos()
    subset.samples = [subset.samples[n] for n in (5, 0, 3)]
    cache = prepare(tmp_path, encoder, subset, views=("mirrored",))
    assert (cache.ids, cache.views) == (("5.jpg", "0.jpg", "3.jpg"), ("mirrored",))
    assert_right(cache, encoder, photos)
    assert len(subset.read) <= 3  # checked, not computed again
    with pytest.raises(KeyError, match=r"1\.jpg is not among the selected photos"):
        cache.read("1.jpg")
    assert_right(FeatureCache(tmp_path), encoder, photos)


def test_disk_space_is_reported_before_photos_are_read(
    tmp_path: Path, encoder: TimmEncoder
) -> None:
    photos, messages = Photos(), []
    prepare(tmp_path, encoder, photos, log=lambda line: messages.append((line, len(photos.read))))
    values = sum(c * y * x for c, y, x in encoder.stage_shapes)
    each = 2 * (2 * values + 4)  # two views of float16 numbers and a checksum
    total = 7 * each / 1e9
    assert messages[0] == (
        f"features of 7 photos: 7 x {each / 1e3:,.1f} kB = {total:.2f} GB in {tmp_path}",
        0,
    )
    assert "features: 7 of 7 photos" in messages[-1][0]
    assert (tmp_path / RECORDS).stat().st_size == 7 * each
    assert request_header(encoder, photos.ids, None, ["plain"]).photo_bytes == each // 2


def test_full_disk_is_reported_before_computing(
    tmp_path: Path, encoder: TimmEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, room = Photos(), shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: room._replace(free=100))
    with pytest.raises(OSError, match=r"0\.00 GB are free; free disk") as caught:
        prepare(tmp_path / "some" / "where", encoder, photos)
    assert caught.value.errno == errno.ENOSPC
    assert not photos.read
    assert not (tmp_path / "some").exists()


def test_complete_cache_is_not_modified(
    tmp_path: Path, encoder: TimmEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be in a read-only folder on a full disk."""
    photos, room = Photos(), shutil.disk_usage(tmp_path)
    prepare(tmp_path, encoder, photos)
    before = {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()}
    monkeypatch.setattr(shutil, "disk_usage", lambda _: room._replace(free=0))
    monkeypatch.setattr("visattn.data.feature_cache.lock_folder", None)
    assert_right(prepare(tmp_path, encoder, photos), encoder, photos)
    assert {file: file.stat().st_mtime_ns for file in tmp_path.iterdir()} == before


def test_missing_cache_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no features in"):
        FeatureCache(tmp_path)


def test_concurrent_runs_compute_each_photo_once(tmp_path: Path, encoder: TimmEncoder) -> None:
    photos, messages, caches = Photos(), [], []

    def run() -> None:
        caches.append(prepare(tmp_path, encoder, photos, log=messages.append))

    with lock_folder(tmp_path, messages.append):
        threads = [Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        for _ in range(2000):  # as many hundredths of a second, on the slowest machine
            if len(messages) == 4:  # of each the size, and that it waits
                break
            threads[0].join(0.01)
        assert sum("waiting for process" in line for line in messages) == 2
        assert not photos.read
    for thread in threads:
        thread.join()
    assert sorted(photos.read) == photos.ids
    for cache in caches:
        assert_right(cache, encoder, photos)


class CachedFeatures(Dataset[tuple[torch.Tensor, ...]]):
    """A dataset of cached features."""

    def __init__(self, cache: FeatureCache) -> None:
        self.cache = cache

    def __len__(self) -> int:
        return len(self.cache)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return self.cache.read(index, index % 2)


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_loader_workers_read_the_same(tmp_path: Path, encoder: TimmEncoder, start: str) -> None:
    cache = prepare(tmp_path, encoder, Photos())
    loader = DataLoader(
        CachedFeatures(cache),
        batch_size=2,
        num_workers=2,
        multiprocessing_context=start,
        shuffle=False,
    )
    read = [torch.cat(grids) for grids in zip(*loader, strict=True)]
    for stage, grids in enumerate(read):
        direct = torch.stack([cache.read(n, n % 2)[stage] for n in range(7)])
        assert torch.equal(grids, direct)


def test_pickled_cache_is_small(tmp_path: Path, encoder: TimmEncoder) -> None:
    cache = prepare(tmp_path, encoder, Photos())
    pickled = pickle.dumps(cache)
    assert len(pickled) < 3000
    assert torch.equal(pickle.loads(pickled).read(3, 1)[0], cache.read(3, 1)[0])


@pytest.mark.data
def test_real_photos_at_two_stages(tmp_path: Path) -> None:
    data = Path(os.environ["VISATTN_DATA"])
    encoder = TimmEncoder(
        "mobilenetv2_100",
        stage=[3, None],
        weights=str(data / "weights" / "mobilenetv2_100.safetensors"),
        timm_kwargs={"pad_type": "same"},
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
    )
    entries = read_captions(data / "flickr8k" / "Flickr8k.token.txt")[:5]
    resize = ResizeSpec((224, 224))
    photos = CaptionedPhotos(entries, data / "flickr8k" / "Images", resize)
    ids = [entry.id for entry in entries]
    cache = FeatureCache.prepare(tmp_path, encoder, photos, ids=ids, resize=resize, views=VIEWS)
    for number, name in enumerate(ids):
        for column, view in enumerate(VIEWS):
            cached = cache.read(name, column)
            assert [tuple(grid.shape) for grid in cached] == [(96, 14, 14), (1280, 7, 7)]
            for grid, expected in zip(cached, fresh(encoder, photos[number], view), strict=True):
                assert (grid.float() - expected).norm() < 1e-3 * expected.norm()
