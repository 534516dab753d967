"""Computation of cached features: interrupted runs resume, invalid features are refused."""

import errno
import re
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from feature_cache_data import (
    SIZE,
    VIEWS,
    Photos,
    assert_right,
    fresh,
    prepare,
    small_encoder,
    unfinished,
)

from visattn.data.feature_cache import HEADER, RECORDS, FeatureCache, request_header
from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.models.base import ImageEncoder


@pytest.fixture(scope="module")
def encoder() -> TimmEncoder:
    return small_encoder()


class StoppedError(Exception):
    """Any exception that ends a run."""


def stop_at(
    call: int, encoder: ImageEncoder, patch: pytest.MonkeyPatch, end: type[BaseException]
) -> None:
    """Raise in the nth call of the encoder."""
    grids, count = encoder.stage_features, iter(range(1000))

    def interrupted(images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if next(count) == call:
            raise end
        return grids(images)

    patch.setattr(encoder, "stage_features", interrupted)


@pytest.mark.parametrize("end", [KeyboardInterrupt, StoppedError])
def test_interrupted_run_resumes(
    tmp_path: Path, encoder: TimmEncoder, end: type[BaseException]
) -> None:
    prepare(tmp_path / "whole", encoder, Photos())
    for call in range(6):  # three batches of two views
        folder, photos = tmp_path / f"{call}", Photos()
        with pytest.MonkeyPatch.context() as patch:
            stop_at(call, encoder, patch, end)
            with pytest.raises(end):
                prepare(folder, encoder, photos)
        with pytest.raises(ValueError, match="are incomplete; prepare them again"):
            FeatureCache(folder)
        done = call // 2 * 3
        photos.read.clear()
        assert_right(prepare(folder, encoder, photos), encoder, photos)
        assert set(photos.ids[done:]) <= set(photos.read)
        assert len(photos.read) <= 7 - done + 3  # and at most 3 that are checked again
        for name in (RECORDS, HEADER):
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


@pytest.fixture
def batch_dependent_encoder(encoder: TimmEncoder, monkeypatch: pytest.MonkeyPatch) -> TimmEncoder:
    """An encoder whose last digits depend on the batch size, like those of fast kernels."""
    grids = encoder.stage_features

    def depends_on_batch(images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tuple(grid * (1 + len(images) * 2**-13) for grid in grids(images))

    monkeypatch.setattr(encoder, "stage_features", depends_on_batch)
    return encoder


def test_partial_record_is_discarded(tmp_path: Path, batch_dependent_encoder: TimmEncoder) -> None:
    photos = Photos()
    prepare(tmp_path, batch_dependent_encoder, photos)
    whole = (tmp_path / RECORDS).read_bytes()
    for cut in (-1, 5, 1000):
        header = unfinished(tmp_path)
        (tmp_path / RECORDS).write_bytes(whole[: 4 * header.photo_bytes + cut])
        photos.read.clear()
        assert_right(
            prepare(tmp_path, batch_dependent_encoder, photos), batch_dependent_encoder, photos
        )
        assert (tmp_path / RECORDS).read_bytes() == whole, cut
        assert set(photos.ids[4 if cut > 0 else 3 :]) <= set(photos.read)


def test_resumed_cache_equals_uninterrupted_one(
    tmp_path: Path, batch_dependent_encoder: TimmEncoder
) -> None:
    photos = Photos()
    prepare(tmp_path, batch_dependent_encoder, photos)
    whole = (tmp_path / RECORDS).read_bytes()
    for there in range(7):
        header = unfinished(tmp_path)
        (tmp_path / RECORDS).write_bytes(whole[: there * header.photo_bytes])
        prepare(tmp_path, batch_dependent_encoder, photos)
        assert (tmp_path / RECORDS).read_bytes() == whole, there


def test_pages_lost_in_a_power_failure_are_rewritten(
    tmp_path: Path, batch_dependent_encoder: TimmEncoder
) -> None:
    """After a power failure a file may have its length without its content."""
    encoder, photos = batch_dependent_encoder, Photos()
    prepare(tmp_path, encoder, photos)
    header = unfinished(tmp_path)
    whole = (tmp_path / RECORDS).read_bytes()
    half = 5 * header.photo_bytes + header.record_bytes
    (tmp_path / RECORDS).write_bytes(whole[:half] + bytes(len(whole) - half) + b"more")
    assert_right(prepare(tmp_path, encoder, photos), encoder, photos)
    assert (tmp_path / RECORDS).read_bytes() == whole


KILLED = """
import os, signal, sys, torch
from visattn.data.captions.batch import CaptionSample
from visattn.data.captions.files import read_captions
from visattn.data.captions.dataset import CaptionedPhotos
from visattn.data.feature_cache import FeatureCache
from visattn.models.backbones.timm_encoder import TimmEncoder

torch.manual_seed(0)
encoder = TimmEncoder("test_resnet", img_size=(97, 61), stage=[3, None])
random = torch.Generator().manual_seed(0)
pixels = torch.randint(256, (7, 3, 97, 61), dtype=torch.uint8, generator=random)
photos = [CaptionSample(f"{n}.jpg", pixels[n], ()) for n in range(7)]
grids, calls = encoder.stage_features, iter(range(100))

def killed(images):
    if next(calls) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return grids(images)

encoder.stage_features = killed
ids = [photo.id for photo in photos]
FeatureCache.prepare(
    sys.argv[1], encoder, photos, ids=ids, views=("plain", "mirrored"), batch_size=3
)
"""


@pytest.mark.slow
@pytest.mark.parametrize("call", [0, 3, 4])
def test_killed_process_leaves_complete_records_and_no_lock(
    tmp_path: Path, encoder: TimmEncoder, call: int
) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(call)]
    assert subprocess.run(command, check=False).returncode == -9
    photos, messages = Photos(), []
    assert_right(prepare(tmp_path, encoder, photos, log=messages.append), encoder, photos)
    assert (
        any(f"{call // 2 * 3} of 7 photos are already cached" in line for line in messages)
        or not call
    )
    assert len(photos.read) <= 7 - call // 2 * 3 + 3


@contextmanager
def longest_file(length: int) -> Iterator[None]:
    """Limit the size of files that the process may write."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_keeps_written_features(tmp_path: Path, encoder: TimmEncoder) -> None:
    photos = Photos()
    each = request_header(encoder, photos.ids, None, VIEWS).photo_bytes
    with (
        longest_file(5 * each + 17),
        pytest.raises(OSError, match="complete features are kept") as caught,
    ):
        prepare(tmp_path, encoder, photos)
    assert caught.value.errno == errno.EFBIG
    assert "after the features of 3 photos" in str(caught.value)
    assert str(tmp_path / RECORDS) in str(caught.value)
    photos.read.clear()
    assert_right(prepare(tmp_path, encoder, photos), encoder, photos)
    assert set(photos.read) >= {"5.jpg", "6.jpg"}
    assert len(photos.read) <= 4 + 3  # 3.jpg and 4.jpg share its batch and are computed again


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), r"4\.jpg \(mirrored\): 1 of its features are NaN and 0 exceed ±65,504"),
        (float("inf"), "0 of its features are NaN and 1 exceed"),
        (-70_000.0, "0 of its features are NaN and 1 exceed"),
    ],
)
def test_nonfinite_features_are_refused_by_name(
    tmp_path: Path, encoder: TimmEncoder, value: float, reason: str
) -> None:
    photos, grids = Photos(), encoder.stage_features
    mirrored = photos.samples[4].image
    assert mirrored is not None

    def broken(images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        output = grids(images)
        for row, image in enumerate(images):
            if torch.equal(image, mirrored.flip(-1)):
                output[1][row, 2, 1, 0] = value
        return output

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "stage_features", broken)
        with pytest.raises(ValueError, match=reason):
            prepare(tmp_path, encoder, photos)
    photos.read.clear()
    assert_right(prepare(tmp_path, encoder, photos), encoder, photos)
    assert len(photos.read) <= 4 + 3  # the four before it were kept; one shares its batch


def test_modified_photos_are_detected(tmp_path: Path, encoder: TimmEncoder) -> None:
    prepare(tmp_path, encoder, Photos())
    changed = Photos()
    blank = torch.zeros(3, *SIZE, dtype=torch.uint8)
    changed.samples[3] = changed.samples[3]._replace(image=blank)
    with pytest.raises(
        ValueError, match=r"other features of 3\.jpg .*differ by \d+ ?%\): the photo"
    ):
        prepare(tmp_path, encoder, changed)
    header = unfinished(tmp_path)
    (tmp_path / RECORDS).write_bytes((tmp_path / RECORDS).read_bytes()[: 4 * header.photo_bytes])
    with pytest.raises(ValueError, match=r"other features of 3\.jpg"):
        prepare(tmp_path, encoder, changed)


def test_progress_messages(
    tmp_path: Path, encoder: TimmEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    prepare(tmp_path / "a", encoder, Photos(), log=messages.append)
    assert [line for line in messages if "photos/s" in line] == messages[1:] == [messages[-1]]
    monkeypatch.setattr("visattn.data.feature_cache._LOG_SECONDS", 0.0)
    prepare(tmp_path / "b", encoder, Photos(), log=messages.append)
    for line, done in zip(messages[-3:], (3, 6, 7), strict=True):
        assert re.fullmatch(rf"features: {done} of 7 photos, [\d.]+ photos/s(, \d+ s left)?", line)
        assert ("left" in line) == (done < 7)


@pytest.mark.gpu
def test_features_of_a_gpu_are_those_of_the_processor(tmp_path: Path) -> None:
    encoder, photos = small_encoder(1), Photos()
    cache = prepare(tmp_path, encoder.cuda(), photos)
    encoder.cpu()
    for number, sample in enumerate(photos.samples):
        for cached, expected in zip(
            cache.read(number), fresh(encoder, sample, "plain"), strict=True
        ):
            assert (cached.float() - expected).norm() < 0.01 * expected.norm()
