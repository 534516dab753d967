"""`visattn data shards`: images from every source become shards; `--check` verifies them."""

import json
import os
import re
from pathlib import Path

import pytest
from caption_data import Format, write_caption_data
from classification_data import (
    accept_test_cifar_files,
    write_cifar,
    write_digits,
    write_photo_folders,
)

from visattn.cli import main
from visattn.data.shards.reader import ShardSamples
from visattn.data.shards.sources import folder_plan
from visattn.data.shards.writer import shard_files


def shards(out: Path, *words: object) -> int:
    return main(["data", "shards", "--out", str(out), *map(str, words)])


@pytest.mark.parametrize("form", ["flickr", "csv", "karpathy", "coco", "jsonl"])
def test_every_caption_format_becomes_shards(
    tmp_path: Path, form: Format, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = write_caption_data(tmp_path / "data", photos=11, format=form)
    lists = ("--train", paths.train, "--val", paths.validation, "--test", paths.test)
    named = ("--test", "test") if form == "karpathy" else lists
    out = tmp_path / "shards"
    words = ("--captions", paths.captions, "--photos", paths.photos, *named, "--per-shard", 3)
    assert shards(out, *words) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"{out}\t7 train, 2 validation, 2 test samples in 5 tars of ")
    assert output.endswith(" MB, verified\n")
    samples = ShardSamples(out, "validation")
    names = paths.validation.read_text().split()
    assert [samples.record(number)["file"] for number in range(2)] == names
    counted = json.loads((out / "words.json").read_text())
    assert counted["train"]["grass"] == 14


def test_class_folders_become_shards_and_a_rerun_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_photo_folders(tmp_path / "photos")
    words = ("--folders", tmp_path / "photos", "--per-shard", 4)
    bad = tmp_path / "photos" / "val" / "tulip" / "1.jpg"
    whole = bad.read_bytes()
    bad.write_bytes(whole[:100])
    out = tmp_path / "shards"
    assert shards(out, *words) == 1
    assert "val/tulip/1.jpg: " in capsys.readouterr().err
    assert shards(out, "--check") == 1
    assert "incomplete: run the c" in capsys.readouterr().err
    bad.write_bytes(whole)
    for _ in range(2):
        assert shards(out, *words) == 0
        assert "9 train, 6 validation samples in 5 tars" in capsys.readouterr().out
    assert shards(out, "--check") == 0
    tar = out / "validation-000001.tar"
    tar.write_bytes(tar.read_bytes().replace(b"JFIF", b"JFIX"))
    assert shards(out, "--check") == 1
    assert "validation-000001.tar: its SHA-256 differs" in capsys.readouterr().err


def test_a_dry_run_lists_the_files_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_photo_folders(tmp_path / "photos")
    words = ("--folders", tmp_path / "photos", "--per-shard", 4)
    assert shards(tmp_path / "new", *words, "--dry-run") == 0
    output = capsys.readouterr().out
    assert "9 train images" in output
    assert "6 validation images" in output
    assert not (tmp_path / "new").exists()
    assert shards(tmp_path / "new", *words) == 0
    names = {path.name for path in (tmp_path / "new").iterdir()}
    plan = folder_plan(tmp_path / "photos", {"train": "train", "validation": "val"})
    assert set(shard_files(plan, 4)) == names


@pytest.mark.parametrize(("source", "form"), [("MNIST", (1, 28, 28)), ("CIFAR10", (3, 32, 32))])
def test_torchvision_datasets_become_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, form: tuple[int, int, int]
) -> None:
    write_digits(tmp_path)
    write_cifar(tmp_path)
    accept_test_cifar_files(monkeypatch)
    words = ("--dataset", source, "--root", tmp_path, "--num-val", 5)
    assert shards(tmp_path / "shards", *words) == 0
    samples = ShardSamples(tmp_path / "shards", "test")
    assert (samples.info.channels, *(samples.info.size or ())) == form


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ((), "give one source: .* got none"),
        (("--captions", "a"), "give one source: .* got --captions"),
        (("--dataset", "MNIST"), "give one source: .* got --dataset"),
        (("--folders", "nowhere"), "nowhere.train has no class folders"),
        (("--check",), "holds no shards; visattn data shards"),
    ],
)
def test_invalid_command_lines_write_nothing(
    tmp_path: Path, words: tuple[str, ...], output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shards(tmp_path / "new", *words) == 1
    err = capsys.readouterr().err
    assert re.search(output, err), err
    assert not (tmp_path / "new").exists()


def test_replaced_photos_are_noticed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_photo_folders(tmp_path / "photos")
    words = ("--folders", tmp_path / "photos")
    assert shards(tmp_path / "shards", *words, "--per-shard", 4) == 0
    photo, other = (tmp_path / "photos" / "val" / "rose" / f"{number}.jpg" for number in (0, 1))
    status = photo.stat()
    photo.write_bytes(other.read_bytes())
    os.utime(photo, ns=(status.st_atime_ns, status.st_mtime_ns))  # as cp -p and rsync leave it
    for checked in (("--per-shard", 4), ("--check",)):
        assert shards(tmp_path / "shards", *words, *checked) == 1
        assert "holds earlier versions of val/rose/0.jpg: remove" in capsys.readouterr().err
    assert shards(tmp_path / "shards", "--check") == 0  # the shards themselves are intact
    photo.unlink()
    assert shards(tmp_path / "shards", *words, "--check") == 1
    assert "has other samples than its source" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--folders", "a", "--photos", "b"),
            "--photos is for captions (--captions); class folders",
        ),
        (("--dataset", "MNIST", "--root", "a", "--test", "b"), "--test is for captions"),
        (("--captions", "a", "--photos", "b", "--num-val", 3), "--num-val is for torchvision data"),
        (
            ("--folders", "a", "--captions", "b"),
            "--folders is for class folders (--folders); captions",
        ),
        (("--check", "--train", "a"), "checks without a source (--check) do not use it"),
    ],
)
def test_options_of_other_sources_are_usage_errors(
    words: tuple[str, ...], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shards(tmp_path / "shards", *words) == 2
    assert message in capsys.readouterr().err
