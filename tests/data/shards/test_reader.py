"""Reading samples of shards by index, from threads and processes."""

import json
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch
from caption_data import CaptionPaths, write_caption_data
from classification_data import write_photo_folders
from shard_data import noise_plan, write_caption_shards, write_class_shards

from visattn.data.shards import reader as reading
from visattn.data.shards.format import (
    ROW,
    ShardInfo,
    ShardMetadata,
    SplitMetadata,
    file_sha256,
    shard_name,
)
from visattn.data.shards.reader import ShardSamples
from visattn.data.shards.writer import write_shards
from visattn.images.reader import ImageError

ALONE = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> CaptionPaths:
    return write_caption_data(tmp_path_factory.mktemp("mini"), photos=11)


@pytest.fixture
def folder(tmp_path: Path, paths: CaptionPaths) -> Path:
    return write_caption_shards(tmp_path / "shards", paths)


def open_tars() -> int:
    stored = Path("/proc/self/fd").iterdir()
    return sum(str(item.readlink()).endswith(".tar") for item in stored if item.is_symlink())


def damage(path: Path, at: int, byte: int = 0xFF) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= byte
    path.write_bytes(content)


def test_samples_are_in_the_order_of_their_list(folder: Path, paths: CaptionPaths) -> None:
    for split in ("train", "validation", "test"):
        names = getattr(paths, split).read_text().split()
        samples = ShardSamples(folder, split)
        assert len(samples) == len(names)
        for number, name in enumerate(names):
            assert samples.record(number)["id"] == name
            assert samples.image_bytes(number) == (paths.photos / name).read_bytes()
            assert samples.image(number).size == samples.size(number)[0] == (64, 80)


def test_labels_are_available_without_opening_tars(tmp_path: Path) -> None:
    write_photo_folders(tmp_path / "photos", train=2)
    samples = ShardSamples(write_class_shards(tmp_path / "shards", tmp_path / "photos"), "train")
    assert samples.labels.tolist() == [0, 0, 1, 1, 2, 2]
    assert samples.info.classes == ("daisy", "rose", "tulip")


@pytest.mark.parametrize("number", [7, -1])
def test_index_beyond_the_end_is_refused(folder: Path, number: int) -> None:
    samples = ShardSamples(folder, "train")
    for read in (samples.image_bytes, samples.record, samples.image):
        with pytest.raises(IndexError, match=rf"index must lie in \[0, 7\), got {number}"):
            read(number)


def test_open_tars_are_limited_and_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_MAX_OPEN_TARS", 2)
    write_shards(tmp_path, noise_plan((11,)), per_shard=1)
    samples = ShardSamples(tmp_path, "train")
    contents = [samples.image_bytes(number) for number in (*range(11), *range(11))]
    assert contents[:11] == contents[11:]
    assert open_tars() == 2
    del samples
    assert open_tars() == 0


@pytest.fixture
def _haste() -> Iterator[None]:
    """Make threads switch after almost every step."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("_haste")
def test_threads_read_concurrently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_MAX_OPEN_TARS", 1)
    write_shards(tmp_path, noise_plan((11,)), per_shard=2)
    samples = ShardSamples(tmp_path, "train")
    wanted = [samples.image_bytes(number) for number in range(11)]
    wrong: list[int] = []

    def read(start: int) -> None:
        for step in range(1500):
            number = (start + 3 * step) % 11
            if samples.image_bytes(number) != wanted[number]:
                wrong.append(number)

    threads = [threading.Thread(target=read, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@ALONE
def test_forked_processes_read_concurrently(folder: Path) -> None:
    samples = ShardSamples(folder, "train")
    wanted = [
        samples.image_bytes(number) for number in range(7)
    ]  # every tar is open before the fork
    for tar in samples._tars.values():  # processes would share a position, so there is none
        assert os.lseek(tar._descriptor, 0, os.SEEK_CUR) == 0
    with get_context("fork").Pool(2) as pool:
        for _ in range(3):
            assert pool.map(samples.image_bytes, [*range(7)] * 5) == wanted * 5


def test_pickled_dataset_has_no_open_file_and_no_index(tmp_path: Path) -> None:
    write_shards(tmp_path, noise_plan((211,), (2, 2)), per_shard=30)
    samples = ShardSamples(tmp_path, "train")
    wanted = samples.image_bytes(200)
    sent = pickle.dumps(samples)
    assert len(sent) < 3000 < 211 * ROW.itemsize
    again = pickle.loads(sent)
    assert again.image_bytes(200) == wanted
    assert torch.equal(again.labels, samples.labels)


def test_invalid_shard_metadata_is_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="has no split novel; it has train, validation, test"):
        ShardSamples(folder, "novel")
    with pytest.raises(ValueError, match=r"the class index must lie in \[0, 0\), got -1"):
        _ = ShardSamples(folder, "train").labels
    info = json.loads((folder / "info.json").read_text())
    for change in (
        {"format": "another"}, {"splits": {"../train": {}}}, {"kind": "x"}, {"splits": []},
        {"classes": None}, {"more\0": 1}, {"size": [1]},
        {"splits": {"train": {**info["splits"]["train"], "samples": 8}}},
    ):  # fmt: skip
        (folder / "info.json").write_text(json.dumps({**info, **change}))
        with pytest.raises(
            ValueError, match=r"info\.json is damaged, or not in the format"
        ) as said:
            ShardSamples(folder, "train")
        assert str(said.value).isprintable()
    for text in ("", "[]", "{", "[" * 100_000):
        (folder / "info.json").write_text(text)
        with pytest.raises(ValueError, match=r"info\.json is damaged"):
            ShardSamples(folder, "train")


def test_missing_or_truncated_tars_are_refused_at_once(folder: Path) -> None:
    tar = folder / "train-000001.tar"
    whole = tar.read_bytes()
    tar.write_bytes(whole[:-512])
    with pytest.raises(ValueError, match=r"train-000001\.tar is damaged: it has .* bytes and must"):
        ShardSamples(folder, "train")
    tar.unlink()
    with pytest.raises(FileNotFoundError, match=r"train-000001\.tar is missing"):
        ShardSamples(folder, "train")
    ShardSamples(folder, "validation")  # the others are as they were
    tar.write_bytes(whole)
    damage(folder / "train.index.npy", -20)
    with pytest.raises(ValueError, match=r"train\.index\.npy is damaged, or of other shards"):
        ShardSamples(folder, "train")
    (folder / "train.index.npy").unlink()
    with pytest.raises(ValueError, match=r"train\.index\.npy is missing or damaged"):
        ShardSamples(folder, "train")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("shard", 1), ("shard", 10**9), ("image", 0), ("image", 2**63), ("image", 512 * 9),
        ("image_bytes", 1), ("image_bytes", 2**32 - 1), ("image_bytes", 0),
    ],
)  # fmt: skip
def test_index_with_wrong_offsets_is_detected(folder: Path, name: str, value: int) -> None:
    """Even with a valid hash: the header in the tar must match."""
    path = folder / "validation.index.npy"
    rows = np.load(path)
    rows[1][name] = value
    np.save(path, rows)
    info = json.loads((folder / "info.json").read_text())
    info["splits"]["validation"]["index"] = file_sha256(path)
    (folder / "info.json").write_text(json.dumps(info))
    samples = ShardSamples(folder, "validation")
    with pytest.raises(
        ValueError,
        match=r"\.tar, key 000000001: the index does not point to a member with this key",
    ):
        samples.image_bytes(1)
    assert samples.image_bytes(0)


def test_damaged_image_is_named_by_tar_and_key(folder: Path) -> None:
    samples = ShardSamples(folder, "validation")
    row = np.load(folder / "validation.index.npy")[1]
    damage(folder / "validation-000000.tar", int(row["image"]) + 1)
    damage(folder / "validation-000000.tar", int(row["record"]))
    for read in (samples.image, samples.size):
        with pytest.raises(ImageError, match=r"-000000\.tar, key 000000001: not an image"):
            read(1)
    with pytest.raises(ValueError, match=r"validation-000000\.tar, key 000000001: invalid JSON"):
        samples.record(1)


def test_opening_a_million_samples_is_fast(tmp_path: Path) -> None:
    """Time and memory are measured by tools/benchmark.py data; here, the avoided work."""
    count, tars = 1_000_000, 100
    rows = np.zeros(count, ROW)
    rows["shard"] = np.arange(count) // (count // tars)
    rows["label"] = np.arange(count) % 7
    np.save(tmp_path / "train.index.npy", rows)
    for number in range(tars):  # files of the size of a large data set that hold nothing
        with (tmp_path / shard_name("train", number)).open("wb") as file:
            file.truncate(2**30)
    facts = tuple(ShardMetadata(count // tars, 2**30, "") for _ in range(tars))
    split = SplitMetadata(count, file_sha256(tmp_path / "train.index.npy"), facts)
    info = ShardInfo("classes", "", {"train": split}, tuple("abcdefg"))
    info.write(tmp_path)
    samples = ShardSamples(tmp_path, "train")
    assert len(samples) == count
    assert samples.location(999_999).endswith("train-000099.tar, key 000999999")
    assert samples.labels.bincount().tolist() == [142_858] + [142_857] * 6
    assert len(pickle.dumps(samples)) < 20_000
    with pytest.raises(ValueError, match="the index does not point to a member with this key"):
        samples.image_bytes(0)
