"""Kept features: what is read is what the encoder finds, however the writing went."""

import errno
import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from visattn.data.batches import CaptionSample
from visattn.data.caption_files import read_captions
from visattn.data.captioned_photos import CaptionedPhotos
from visattn.data.feature_caches import FeatureCache, cache_plan
from visattn.data.feature_files import HEADER, LOCK, RECORDS, FeatureHeader, alone, packed, unpacked
from visattn.data.framings import Framing
from visattn.models.encoders import ImageEncoder, SmallEncoder
from visattn.models.timm_encoders import TimmEncoder

SIZE = (97, 61)
VIEWS = ("plain", "mirrored")


class Photos(Dataset[CaptionSample]):
    """Noise under names; it remembers which were read."""

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


@pytest.fixture(scope="module")
def encoder() -> TimmEncoder:
    torch.manual_seed(0)
    return TimmEncoder("test_resnet", size=SIZE, stage=[3, None])


def prepare(folder: Path, encoder: ImageEncoder, photos: Photos, **options: Any) -> FeatureCache:
    given = {"ids": photos.ids, "views": VIEWS, "batch": 3, **options}
    return FeatureCache.prepare(folder, encoder, photos, **given)


def fresh(encoder: ImageEncoder, sample: CaptionSample, view: str) -> tuple[torch.Tensor, ...]:
    assert sample.picture is not None
    picture = sample.picture.flip(-1) if view == "mirrored" else sample.picture
    with torch.no_grad():
        return tuple(grid[0] for grid in encoder.grids(picture[None]))


def assert_right(cache: FeatureCache, encoder: ImageEncoder, photos: Photos) -> None:
    """The cache holds of each photo and view what the encoder finds in it, to float16."""
    samples = {sample.id: sample for sample in photos.samples}
    for number, name in enumerate(cache.ids):
        for column, view in enumerate(cache.views):
            for kept, found in zip(
                cache.read(number, column), fresh(encoder, samples[name], view), strict=True
            ):
                assert kept.dtype == torch.float16
                torch.testing.assert_close(kept.float(), found, rtol=1e-3, atol=1e-4)


# ------------------------------------------------------------------ what is kept


def test_what_is_kept_is_what_the_encoder_finds(tmp_path: Path, encoder: TimmEncoder) -> None:
    photos = Photos()
    cache = prepare(tmp_path, encoder, photos)
    assert (len(cache), cache.ids, cache.views) == (7, tuple(photos.ids), VIEWS)
    assert_right(cache, encoder, photos)
    batch = [torch.stack(grids) for grids in zip(*map(cache.read, range(7)), strict=True)]
    pictures = torch.stack(
        [sample.picture for sample in photos.samples if sample.picture is not None]
    )
    with torch.no_grad():
        torch.testing.assert_close(encoder.joined(batch), encoder(pictures), rtol=1e-3, atol=1e-4)
    for one, same in zip(cache.read("4.jpg", 1), cache.read(4, 1), strict=True):
        assert torch.equal(one, same)
    assert photos.read == photos.ids  # each once


def test_fewer_photos_and_views_in_another_order_are_read_from_what_is_there(
    tmp_path: Path, encoder: TimmEncoder
) -> None:
    photos = Photos()
    prepare(tmp_path, encoder, photos)
    some = Photos()
    some.samples = [some.samples[n] for n in (5, 0, 3)]
    cache = prepare(tmp_path, encoder, some, views=("mirrored",))
    assert (cache.ids, cache.views) == (("5.jpg", "0.jpg", "3.jpg"), ("mirrored",))
    assert_right(cache, encoder, photos)
    assert len(some.read) <= 3  # looked at again, not computed anew
    with pytest.raises(KeyError, match=r"not asked for the features of 1\.jpg"):
        cache.read("1.jpg")
    assert_right(FeatureCache(tmp_path), encoder, photos)


def test_the_size_is_said_before_anything_is_read(tmp_path: Path, encoder: TimmEncoder) -> None:
    photos, told = Photos(), []
    prepare(tmp_path, encoder, photos, told=lambda line: told.append((line, len(photos.read))))
    values = sum(c * y * x for c, y, x in encoder.stage_shapes)
    each = 2 * (2 * values + 4)  # two views of float16 numbers and a checksum
    total = 7 * each / 1e9
    assert told[0] == (
        f"features of 7 photos: 7 x {each / 1e3:,.1f} kB = {total:.2f} GB in {tmp_path}",
        0,
    )
    assert "features: 7 of 7 photos" in told[-1][0]
    assert (tmp_path / RECORDS).stat().st_size == 7 * each
    plan = cache_plan(tmp_path / "new", encoder, 11, views=["plain"])
    assert (plan.missing, plan.photo_bytes) == (11, each // 2)


@given(values=st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=31), spot=st.integers(0))
def test_a_record_is_whole_or_refused(values: list[int], spot: int) -> None:
    bits = np.array(values, dtype=np.uint16)
    record = packed(bits.view(np.float16).reshape(1, 1, -1)).tobytes()
    kept = unpacked(bytearray(record))
    assert kept is not None
    assert np.array_equal(kept.view(np.uint16), bits)
    torn = bytearray(record)
    torn[spot % len(torn)] ^= 1 << spot % 8
    assert unpacked(torn) is None


# ------------------------------------------------------------------ however a run ends


class StoppedError(Exception):
    """Stands for whatever ends a run."""


def stop_at(
    call: int, encoder: ImageEncoder, patch: pytest.MonkeyPatch, end: type[BaseException]
) -> None:
    """Let the encoder end the run when it is asked for grids for the nth time."""
    grids, count = encoder.grids, iter(range(1000))

    def asked(pictures: torch.Tensor) -> tuple[torch.Tensor, ...]:
        if next(count) == call:
            raise end
        return grids(pictures)

    patch.setattr(encoder, "grids", asked)


@pytest.mark.parametrize("end", [KeyboardInterrupt, StoppedError])
def test_whenever_a_run_ends_the_next_goes_on(
    tmp_path: Path, encoder: TimmEncoder, end: type[BaseException]
) -> None:
    prepare(tmp_path / "whole", encoder, Photos())
    for call in range(6):  # three batches of two views
        folder, photos = tmp_path / f"{call}", Photos()
        with pytest.MonkeyPatch.context() as patch:
            stop_at(call, encoder, patch, end)
            with pytest.raises(end):
                prepare(folder, encoder, photos)
        with pytest.raises(ValueError, match="are unfinished; prepare them once more"):
            FeatureCache(folder)
        done = call // 2 * 3
        photos.read.clear()
        assert_right(prepare(folder, encoder, photos), encoder, photos)
        assert set(photos.ids[done:]) <= set(photos.read)
        assert len(photos.read) <= 7 - done + 3  # and a few, to see that they are the same
        for name in (RECORDS, HEADER):
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def unfinished(folder: Path) -> FeatureHeader:
    header = FeatureHeader.read(folder)
    assert header is not None
    header = replace(header, complete=False)
    header.write(folder)
    return header


@pytest.mark.parametrize("cut", [-1, 5, 1000])
def test_a_piece_of_a_record_counts_for_nothing(
    tmp_path: Path, encoder: TimmEncoder, cut: int
) -> None:
    photos = Photos()
    prepare(tmp_path, encoder, photos)
    header = unfinished(tmp_path)
    whole = (tmp_path / RECORDS).read_bytes()
    (tmp_path / RECORDS).write_bytes(whole[: 4 * header.photo_bytes + cut])
    photos.read.clear()
    assert_right(prepare(tmp_path, encoder, photos), encoder, photos)
    assert (tmp_path / RECORDS).read_bytes() == whole
    assert set(photos.ids[4 if cut > 0 else 3 :]) <= set(photos.read)


def test_pages_that_never_reached_the_disk_are_written_anew(
    tmp_path: Path, encoder: TimmEncoder
) -> None:
    """After a loss of power a file may have its length without its content."""
    photos = Photos()
    prepare(tmp_path, encoder, photos)
    header = unfinished(tmp_path)
    whole = (tmp_path / RECORDS).read_bytes()
    half = 5 * header.photo_bytes + header.record_bytes
    (tmp_path / RECORDS).write_bytes(whole[:half] + bytes(len(whole) - half) + b"more")
    assert_right(prepare(tmp_path, encoder, photos), encoder, photos)
    assert (tmp_path / RECORDS).read_bytes() == whole


KILLED = """
import os, signal, sys, torch
from visattn.data.batches import CaptionSample
from visattn.data.caption_files import read_captions
from visattn.data.captioned_photos import CaptionedPhotos
from visattn.data.feature_caches import FeatureCache
from visattn.models.timm_encoders import TimmEncoder

torch.manual_seed(0)
encoder = TimmEncoder("test_resnet", size=(97, 61), stage=[3, None])
random = torch.Generator().manual_seed(0)
pixels = torch.randint(256, (7, 3, 97, 61), dtype=torch.uint8, generator=random)
photos = [CaptionSample(f"{n}.jpg", pixels[n], ()) for n in range(7)]
grids, calls = encoder.grids, iter(range(100))

def killed(pictures):
    if next(calls) == int(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
    return grids(pictures)

encoder.grids = killed
ids = [photo.id for photo in photos]
FeatureCache.prepare(sys.argv[1], encoder, photos, ids=ids, views=("plain", "mirrored"), batch=3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("call", [0, 3, 4])
def test_a_killed_process_leaves_whole_photos_and_no_lock(
    tmp_path: Path, encoder: TimmEncoder, call: int
) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(call)]
    assert subprocess.run(command, check=False).returncode == -9
    photos, told = Photos(), []
    assert_right(prepare(tmp_path, encoder, photos, told=told.append), encoder, photos)
    assert (
        any(f"{call // 2 * 3} of 7 photos are there already" in line for line in told) or not call
    )
    assert len(photos.read) <= 7 - call // 2 * 3 + 3


# ------------------------------------------------------------------ no room


@contextmanager
def longest_file(length: int) -> Iterator[None]:
    """Let the system refuse to make any file longer than this."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (length, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_what_is_written_usable(tmp_path: Path, encoder: TimmEncoder) -> None:
    photos = Photos()
    each = cache_plan(tmp_path, encoder, 7, views=VIEWS).photo_bytes
    with longest_file(5 * each + 17), pytest.raises(OSError, match="there stays") as caught:
        prepare(tmp_path, encoder, photos)
    assert caught.value.errno == errno.EFBIG
    assert "after the features of 3 photos" in str(caught.value)
    assert str(tmp_path / RECORDS) in str(caught.value)
    photos.read.clear()
    assert_right(prepare(tmp_path, encoder, photos), encoder, photos)
    assert set(photos.read) >= {"5.jpg", "6.jpg"}
    assert len(photos.read) <= 2 + 3


def test_too_small_a_disk_is_said_before_the_work(
    tmp_path: Path, encoder: TimmEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, room = Photos(), shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: room._replace(free=100))
    with pytest.raises(OSError, match=r"0\.00 GB are free; make room") as caught:
        prepare(tmp_path / "some" / "where", encoder, photos)
    assert caught.value.errno == errno.ENOSPC
    assert not photos.read
    assert not (tmp_path / "some").exists()


def test_a_finished_cache_needs_no_room(
    tmp_path: Path, encoder: TimmEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos, room = Photos(), shutil.disk_usage(tmp_path)
    prepare(tmp_path, encoder, photos)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: room._replace(free=0))
    tmp_path.chmod(0o500)
    assert_right(prepare(tmp_path, encoder, photos), encoder, photos)
    tmp_path.chmod(0o700)


# ------------------------------------------------------------------ what is refused


def other_weights() -> TimmEncoder:
    torch.manual_seed(1)
    return TimmEncoder("test_resnet", size=SIZE, stage=[3, None])


STALE: dict[str, tuple[Callable[[], TimmEncoder] | None, dict[str, Any], str]] = {
    "weights": (
        other_weights,
        {},
        r"holds other features: weights is \w{12}\.\.\. there and \w{12}",
    ),
    "size": (
        lambda: TimmEncoder("test_resnet", size=(61, 97), stage=[3, None]),
        {},
        r"encoder\.arguments\.size is \[97, 61\] there and \[61, 97\] here",
    ),
    "stage": (
        lambda: TimmEncoder("test_resnet", size=SIZE, stage=2),
        {},
        r"encoder\.arguments\.stage is \[3, None\] there and 2 here",
    ),
    "colours": (
        lambda: TimmEncoder("test_resnet", size=SIZE, stage=[3, None], mean=(0.1, 0.2, 0.3)),
        {},
        r"encoder\.arguments\.mean is",
    ),
    "fit": (None, {"framing": Framing(SIZE, fit="pad")}, "framing.fit is 'crop' there and 'pad'"),
    "no framing": (None, {"framing": None}, "framing is {.*} there and None here"),
    "views": (None, {"views": VIEWS}, "of 7 photos, plain, but not those of mirrored; remove it"),
}


@pytest.mark.parametrize("what", STALE)
@pytest.mark.parametrize("finished", [True, False])
def test_features_of_something_else_are_left_alone(
    tmp_path: Path, encoder: TimmEncoder, what: str, *, finished: bool
) -> None:
    make, options, reason = STALE[what]
    options = {"views": ("plain",), "framing": Framing(SIZE), **options}
    prepare(tmp_path, encoder, Photos(), framing=Framing(SIZE), views=("plain",))
    if not finished:
        unfinished(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    other = make() if make else encoder
    photos = Photos(size=other.size)
    with pytest.raises(ValueError, match=f"{reason}.*name another folder"):
        prepare(tmp_path, other, photos, **options)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert not photos.read


def test_photos_that_are_not_there_are_named(tmp_path: Path, encoder: TimmEncoder) -> None:
    prepare(tmp_path, encoder, Photos(5))
    with pytest.raises(ValueError, match=r"of 5 photos, .* not those of 5\.jpg, 6\.jpg; remove"):
        prepare(tmp_path, encoder, Photos(7))
    unfinished(tmp_path)
    with pytest.raises(
        ValueError, match=r"unfinished .* 5 photos, and of these 3\.jpg, 4\.jpg are"
    ):
        prepare(tmp_path, encoder, Photos(3))


def test_photos_that_changed_under_their_names_are_noticed(
    tmp_path: Path, encoder: TimmEncoder
) -> None:
    prepare(tmp_path, encoder, Photos())
    changed = Photos()
    blank = torch.zeros(3, *SIZE, dtype=torch.uint8)
    changed.samples[3] = changed.samples[3]._replace(picture=blank)
    with pytest.raises(
        ValueError, match=r"other features of 3\.jpg .*differ by \d+ ?%\): the photo"
    ):
        prepare(tmp_path, encoder, changed)
    header = unfinished(tmp_path)
    (tmp_path / RECORDS).write_bytes((tmp_path / RECORDS).read_bytes()[: 4 * header.photo_bytes])
    with pytest.raises(ValueError, match=r"other features of 3\.jpg"):
        prepare(tmp_path, encoder, changed)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: SmallEncoder((24, 24), channels=8), "this SmallEncoder is trained: freeze it"),
        (lambda: TimmEncoder("test_resnet", size=SIZE, train_from=4), "TimmEncoder is trained"),
    ],
)
def test_nothing_is_kept_of_a_trained_encoder(
    tmp_path: Path, make: Callable[[], ImageEncoder], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        prepare(tmp_path, make(), Photos())


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"views": ()}, r"some of plain, mirrored, each once, got \[\]"),
        ({"views": ("plain", "plain")}, "each once"),
        ({"views": ("upside down",)}, "upside down"),
        ({"ids": []}, "at least one"),
        ({"ids": ["a", "b", "c", "a", "e", "b", "g"]}, "more than once: a, b"),
        ({"ids": list("abcdefg")}, r"in their order; photo 0 is 0\.jpg and not a"),
    ],
)
def test_a_request_that_means_nothing_is_refused(
    tmp_path: Path, encoder: TimmEncoder, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        prepare(tmp_path, encoder, Photos(), **options)


@pytest.mark.parametrize(
    ("picture", "reason"),
    [
        (None, "got None"),
        (torch.zeros(3, 61, 97, dtype=torch.uint8), r"got torch.uint8 \(3, 61, 97\)"),
        (torch.zeros(3, *SIZE), r"got torch.float32 \(3, 97, 61\)"),
    ],
)
def test_a_picture_of_another_form_is_named(
    tmp_path: Path, encoder: TimmEncoder, picture: torch.Tensor | None, reason: str
) -> None:
    photos = Photos()
    photos.samples[5] = photos.samples[5]._replace(picture=picture)
    with pytest.raises(ValueError, match=rf"5\.jpg: its picture must be uint8 .*{reason}"):
        prepare(tmp_path, encoder, photos)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), r"4\.jpg \(mirrored\): 1 of its features are NaN and 0 are beyond ±65,504"),
        (float("inf"), "0 of its features are NaN and 1 are beyond"),
        (-70_000.0, "0 of its features are NaN and 1 are beyond"),
    ],
)
def test_features_that_are_no_numbers_are_refused_by_name(
    tmp_path: Path, encoder: TimmEncoder, value: float, reason: str
) -> None:
    photos, grids = Photos(), encoder.grids
    mirrored = photos.samples[4].picture
    assert mirrored is not None

    def broken(pictures: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = grids(pictures)
        for row, picture in enumerate(pictures):
            if torch.equal(picture, mirrored.flip(-1)):
                found[1][row, 2, 1, 0] = value
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoder, "grids", broken)
        with pytest.raises(ValueError, match=reason):
            prepare(tmp_path, encoder, photos)
    photos.read.clear()
    assert_right(prepare(tmp_path, encoder, photos), encoder, photos)
    assert len(photos.read) <= 3 + 3  # the four before it were kept


# ------------------------------------------------------------------ damage


def damage(folder: Path, how: str) -> None:
    records, header = folder / RECORDS, folder / HEADER
    if how == "cut":
        records.write_bytes(records.read_bytes()[:-1])
    elif how == "longer":
        records.write_bytes(records.read_bytes() + b"x")
    elif how == "no records":
        records.unlink()
    elif how == "no header":
        header.unlink()
    elif how == "half a header":
        header.write_text(header.read_text()[:100])
    elif how == "a list":
        header.write_text("[1, 2]")
    elif how == "a word":
        header.write_text('"features"')
    elif how == "no text":
        header.write_bytes(b"\xff\xfe\x00")
    else:
        header.write_text(json.dumps({**json.loads(header.read_text()), "format": "other-2"}))


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("cut", r"features\.bin is damaged: it has [\d,]+ bytes and must have [\d,]+; remove"),
        ("longer", r"features\.bin is damaged"),
        ("no records", r"features\.bin is damaged: it has 0 bytes"),
        ("no header", r"holds features\.bin without features\.json"),
        ("half a header", r"features\.json is damaged, or not in the format visattn-features-1"),
        ("a list", r"features\.json is damaged"),
        ("a word", r"features\.json is damaged"),
        ("no text", r"features\.json is damaged"),
        ("format", r"features\.json is damaged, or not in the format visattn-features-1"),
    ],
)
def test_damage_is_refused(tmp_path: Path, encoder: TimmEncoder, how: str, reason: str) -> None:
    prepare(tmp_path, encoder, Photos())
    damage(tmp_path, how)
    with pytest.raises(ValueError, match=reason):
        FeatureCache(tmp_path)
    with pytest.raises(ValueError, match=reason):
        prepare(tmp_path, encoder, Photos())


def test_a_changed_byte_is_noticed_when_it_is_read(tmp_path: Path, encoder: TimmEncoder) -> None:
    cache = prepare(tmp_path, encoder, Photos())
    content = bytearray((tmp_path / RECORDS).read_bytes())
    content[cache.header.photo_bytes * 5 + 1234] ^= 8
    (tmp_path / RECORDS).write_bytes(content)
    cache.read(4)
    with pytest.raises(ValueError, match=r"features\.bin is damaged where it holds 5\.jpg; remove"):
        cache.read(5)
    cache.read(5, 1)


def test_nothing_kept_is_said(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no features in"):
        FeatureCache(tmp_path)


# ------------------------------------------------------------------ several processes


def test_two_at_once_compute_each_photo_once(tmp_path: Path, encoder: TimmEncoder) -> None:
    photos, told, caches = Photos(), [], []

    def run() -> None:
        caches.append(prepare(tmp_path, encoder, photos, told=told.append))

    with alone(tmp_path, told.append):
        threads = [Thread(target=run) for _ in range(2)]
        for thread in threads:
            thread.start()
        while sum("waiting for process" in line for line in told) < 2:
            threads[0].join(0.01)
        assert not photos.read
    for thread in threads:
        thread.join()
    assert sorted(photos.read) == photos.ids
    for cache in caches:
        assert_right(cache, encoder, photos)


def test_the_lock_of_a_dead_process_holds_nobody_up(tmp_path: Path, encoder: TimmEncoder) -> None:
    (tmp_path / LOCK).write_text("4194304")  # higher than any process has
    told: list[str] = []
    prepare(tmp_path, encoder, Photos(), told=told.append)
    assert not any("waiting" in line for line in told)


def test_who_waits_is_told_for_whom(tmp_path: Path) -> None:
    told, held, done = [], Event(), Event()

    def hold() -> None:
        with alone(tmp_path, told.append):
            held.set()
            done.wait()

    holder = Thread(target=hold)
    holder.start()
    held.wait()
    waiter = Thread(target=lambda: alone(tmp_path, told.append).__enter__())
    waiter.start()
    while not told:
        waiter.join(0.01)
    done.set()
    holder.join()
    waiter.join()
    pid = os.getpid()
    assert told == [f"features: waiting for process {pid}, which is at work in {tmp_path}"]


class Kept(Dataset[tuple[torch.Tensor, ...]]):
    """A data set as training has one: nothing but the cache."""

    def __init__(self, cache: FeatureCache) -> None:
        self.cache = cache

    def __len__(self) -> int:
        return len(self.cache)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, ...]:
        return self.cache.read(index, index % 2)


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_the_workers_of_a_loader_read_the_same(
    tmp_path: Path, encoder: TimmEncoder, start: str
) -> None:
    cache = prepare(tmp_path, encoder, Photos())
    loader = DataLoader(
        Kept(cache), batch_size=2, num_workers=2, multiprocessing_context=start, shuffle=False
    )
    read = [torch.cat(grids) for grids in zip(*loader, strict=True)]
    for stage, grids in enumerate(read):
        direct = torch.stack([cache.read(n, n % 2)[stage] for n in range(7)])
        assert torch.equal(grids, direct)


def test_a_cache_is_a_few_words_to_another_process(tmp_path: Path, encoder: TimmEncoder) -> None:
    cache = prepare(tmp_path, encoder, Photos())
    handed = pickle.dumps(cache)
    assert len(handed) < 3000
    assert torch.equal(pickle.loads(handed).read(3, 1)[0], cache.read(3, 1)[0])


@pytest.mark.gpu
def test_the_encoder_comes_back_from_where_it_worked(tmp_path: Path) -> None:
    encoder, photos = other_weights(), Photos()
    cache = prepare(tmp_path, encoder, photos, device="cuda")
    assert encoder.shift.device.type == "cpu"
    for number, sample in enumerate(photos.samples):
        for kept, found in zip(cache.read(number), fresh(encoder, sample, "plain"), strict=True):
            assert (kept.float() - found).norm() < 0.01 * found.norm()


# ------------------------------------------------------------------ on real photos


@pytest.mark.data
def test_real_photos_are_kept_at_two_stages(tmp_path: Path) -> None:
    data = Path(os.environ["VISATTN_DATA"])
    encoder = TimmEncoder(
        "mobilenetv2_100",
        stage=[3, None],
        weights=str(data / "weights" / "mobilenetv2_100.safetensors"),
        arguments={"pad_type": "same"},
        mean=(0.5, 0.5, 0.5),
        std=(0.5, 0.5, 0.5),
    )
    entries = read_captions(data / "flickr8k" / "Flickr8k.token.txt")[:5]
    framing = Framing((224, 224))
    photos = CaptionedPhotos(entries, data / "flickr8k" / "Images", framing)
    ids = [entry.id for entry in entries]
    cache = FeatureCache.prepare(tmp_path, encoder, photos, ids=ids, framing=framing, views=VIEWS)
    for number, name in enumerate(ids):
        for column, view in enumerate(VIEWS):
            kept = cache.read(name, column)
            assert [tuple(grid.shape) for grid in kept] == [(96, 14, 14), (1280, 7, 7)]
            for grid, found in zip(kept, fresh(encoder, photos[number], view), strict=True):
                assert (grid.float() - found).norm() < 1e-3 * found.norm()
