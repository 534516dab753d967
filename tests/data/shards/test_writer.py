"""Writing shards: complete tars only, resumed after any interruption."""

import errno
import fcntl
import hashlib
import json
import os
import signal
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from caption_data import write_caption_data
from classification_data import write_photo_folders
from PIL import Image
from shard_data import caption_shard_plan, noise_plan, write_class_shards

from visattn.data.shards.format import ROW, ShardInfo
from visattn.data.shards.sources import folder_plan
from visattn.data.shards.writer import check_shards, shuffled_order, write_shards
from visattn.images.reader import ImageError

ALONE = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


def content(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def killed(work: Callable[[], object]) -> None:
    """Call a function in a separate process, which must end by SIGKILL."""
    child = os.fork()
    if not child:
        try:
            work()
        finally:
            os._exit(17)  # reached only if the process was not killed
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def killing(count: int) -> Callable[..., None]:
    """Return a callback that kills its process in the given call."""
    left = count

    def call(*_: object) -> None:
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    return call


@ALONE
def test_killed_run_resumes_with_identical_bytes(tmp_path: Path) -> None:
    plan = noise_plan((7, 2))
    write_shards(tmp_path / "whole", plan, per_shard=3)
    wanted = content(tmp_path / "whole")
    assert len([name for name in wanted if name.endswith(".tar")]) == 3 + 1
    for step in range(1, len(plan) + 1):
        folder = tmp_path / str(step)
        killed(lambda: write_shards(folder, plan, per_shard=3, progress=killing(step)))  # noqa: B023
        assert not (folder / "info.json").exists()
        reported: list[int] = []
        write_shards(folder, plan, per_shard=3, progress=reported.append)
        assert content(folder) == wanted
        assert sum(reported) == len(plan)
        written_before = (step - 1) // 3 if step <= 7 else 3  # complete tars, each reported at once
        assert reported[:written_before] == [3, 3, 1][:written_before]
        assert reported[written_before:] == [1] * (len(plan) - sum(reported[:written_before]))


@ALONE
def test_run_killed_before_the_first_file_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, calls = noise_plan((5, 2)), []
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", calls.append)
        write_shards(tmp_path / "whole", plan, per_shard=3)
    wanted = content(tmp_path / "whole")
    assert len(calls) >= 20
    for step in range(1, len(calls) + 1, 2):
        folder = tmp_path / str(step)

        def cut_off(folder: Path = folder, step: int = step) -> None:
            monkeypatch.setattr(os, "fsync", killing(step))
            write_shards(folder, plan, per_shard=3)

        killed(cut_off)
        write_shards(folder, plan, per_shard=3)
        assert content(folder) == wanted, step
        check_shards(folder)


def test_existing_shards_are_unchanged(tmp_path: Path) -> None:
    first = write_shards(tmp_path, noise_plan(), per_shard=3)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    reported: list[int] = []
    assert write_shards(tmp_path, noise_plan(), per_shard=3, progress=reported.append) == first
    assert reported == [16]
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == times


def test_different_shards_are_not_overwritten(tmp_path: Path) -> None:
    write_shards(tmp_path / "a", noise_plan(), per_shard=3)
    before = content(tmp_path / "a")
    for plan, count in ((noise_plan((11, 6)), 3), (noise_plan(), 4), (noise_plan(size=(7, 5)), 3)):
        with pytest.raises(ValueError, match="holds shards of other images, captions"):
            write_shards(tmp_path / "a", plan, per_shard=count)
    assert content(tmp_path / "a") == before
    (tmp_path / "a" / "info.json").unlink()
    with pytest.raises(FileExistsError, match=r"holds train-000000.tar, .* an empty folder"):
        write_shards(tmp_path / "a", noise_plan(), per_shard=3)


def test_unfinished_shards_of_other_images_are_not_resumed(tmp_path: Path) -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_shards(tmp_path, noise_plan(), per_shard=3, progress=stop)
    assert {path.name for path in tmp_path.iterdir()} == {"plan.json"}
    with pytest.raises(ValueError, match="holds incomplete shards of other images"):
        write_shards(tmp_path, noise_plan((11, 6)), per_shard=3)
    with pytest.raises(FileNotFoundError, match=r"incomplete: run the command"):
        ShardInfo.read(tmp_path)
    write_shards(tmp_path, noise_plan(), per_shard=3)


def test_only_a_single_process_writes(tmp_path: Path) -> None:
    stored = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(stored, fcntl.LOCK_EX)
    with pytest.raises(BlockingIOError, match="another process is writing shards there"):
        write_shards(tmp_path, noise_plan())
    os.close(stored)
    write_shards(tmp_path, noise_plan())


def test_full_disk_is_reported_and_leaves_complete_tars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0

    def full(_: int) -> None:
        nonlocal calls
        calls += 1
        if calls > 11:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match=r"no space left: .* MB are free; make room"):
            write_shards(tmp_path, noise_plan(), per_shard=3)
    names = {path.name for path in tmp_path.iterdir()}
    assert "train-000001.tar" in names
    assert not [name for name in names if name.endswith(".part")]
    write_shards(tmp_path, noise_plan(), per_shard=3)
    check_shards(tmp_path)


def test_tars_are_readable_by_tarfile(tmp_path: Path) -> None:
    paths = write_caption_data(tmp_path / "data", photos=11)
    plan = caption_shard_plan(paths)
    write_shards(tmp_path / "shards", plan, per_shard=3)
    result = {}
    for path in sorted((tmp_path / "shards").glob("train-*.tar")):
        with tarfile.open(path) as tar:
            names = tar.getnames()
            assert names[0::2] == [name.replace(".json", ".jpg") for name in names[1::2]]
            for photo, label_file in zip(names[0::2], names[1::2], strict=True):
                record = json.load(tar.extractfile(label_file))  # pyright: ignore[reportArgumentType]
                member = tar.extractfile(photo)
                assert member is not None
                result[record["id"]] = member.read()
                assert set(record) == {"id", "file", "captions"}
    names = paths.train.read_text().split()
    assert list(result) == [names[number] for number in shuffled_order(7)]
    assert all((paths.photos / name).read_bytes() == result[name] for name in names)


def test_labels_are_stored_beside_their_images(tmp_path: Path) -> None:
    write_photo_folders(tmp_path / "photos")
    folder = write_class_shards(tmp_path / "shards", tmp_path / "photos")
    labels = {}
    for path in folder.glob("train-*.tar"):
        with tarfile.open(path) as tar:
            for name in tar.getnames():
                if name.endswith((".cls", ".json")):
                    labels.setdefault(name[:9], []).append(json.load(tar.extractfile(name)))  # pyright: ignore[reportArgumentType]
    assert len(labels) == 9
    for key, (number, record) in labels.items():
        name = ("daisy", "rose", "tulip")[number]
        assert record == {"file": f"train/{name}/{int(key) % 3}.jpg", "class": name}
    rows = np.load(folder / "train.index.npy")
    assert rows.dtype == ROW
    assert rows["label"].tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]


def test_unreadable_photo_is_named_and_leaves_no_partial_tar(tmp_path: Path) -> None:
    write_photo_folders(tmp_path / "photos")
    bad = tmp_path / "photos" / "val" / "rose" / "1.jpg"
    bad.write_bytes(bad.read_bytes()[:-200])
    with pytest.raises(ImageError, match=r"rose/1\.jpg: .*truncated"):
        write_class_shards(tmp_path / "shards", tmp_path / "photos")
    names = {path.name for path in (tmp_path / "shards").iterdir()}
    assert "validation-000000.tar" not in names
    assert not [name for name in names if name.endswith(".part")]
    Image.new("RGB", (9, 9)).save(bad)  # the run resumes when the photo is repaired
    write_class_shards(tmp_path / "shards", tmp_path / "photos")
    check_shards(tmp_path / "shards")


def test_empty_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="per_shard and each split must be at least 1, got 0"):
        write_shards(tmp_path / "a", noise_plan(), per_shard=0)
    with pytest.raises(FileNotFoundError, match="has no class folders"):
        folder_plan(tmp_path, {"train": "train"})
    assert not (tmp_path / "a").exists()


def test_shuffled_order_is_stable() -> None:
    assert shuffled_order(7) == MIXED
    assert sorted(shuffled_order(1000)) == list(range(1000))


MIXED = [6, 4, 2, 5, 1, 3, 0]


def test_a_photo_that_is_replaced_before_the_run_resumes_is_written_anew(tmp_path: Path) -> None:
    write_photo_folders(tmp_path / "photos")
    bad = tmp_path / "photos" / "val" / "rose" / "1.jpg"
    whole, first = bad.read_bytes(), tmp_path / "photos" / "train" / "daisy" / "0.jpg"
    bad.write_bytes(b"torn")
    with pytest.raises(ImageError, match=r"rose/1\.jpg"):
        write_class_shards(tmp_path / "shards", tmp_path / "photos")
    assert (tmp_path / "shards" / "train-000000.tar").is_file()
    bad.write_bytes(whole)
    first.write_bytes(whole)
    write_class_shards(tmp_path / "shards", tmp_path / "photos")
    write_class_shards(tmp_path / "unbroken", tmp_path / "photos")
    assert content(tmp_path / "shards") == content(tmp_path / "unbroken")
