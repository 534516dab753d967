"""Commands on photos in archives, lists and on folders of frames."""

import io
import json
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import visattn
from visattn.cli import main
from visattn.models.resnet import AttentionResNet

Capsys = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def cnn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(4)
    path = tmp_path_factory.mktemp("weights") / "cnn.safetensors"
    visattn.save(AttentionResNet(("cat", "dog"), depth=8, stem_width=4, img_size=(32, 40)), path)
    return path


def photo(seed: int) -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (29, 41, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "png")
    return file.getvalue()


def pack(path: Path, entries: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return path


def overlay(cnn: Path, out: Path, *words: str) -> int:
    options = ("--model", str(cnn), "--method", "gradcam", "--save", "overlay")
    return main(["overlay", *words, *options, "--out", str(out)])


def written(out: Path) -> dict[str, int]:
    return {
        path.relative_to(out).as_posix(): path.stat().st_mtime_ns for path in out.rglob("*.npy")
    }


def test_an_archive_is_resumed_and_a_changed_member_is_computed_again(
    cnn: Path, tmp_path: Path, capsys: Capsys
) -> None:
    entries = {"a/1.png": photo(1), "b/1.png": photo(2), "b/bad.png": b"no photo", "../x.png": b""}
    archive = pack(tmp_path / "photos.zip", entries)
    out = tmp_path / "out"
    assert overlay(cnn, out, str(archive)) == 1
    output = capsys.readouterr()
    assert [line.split("\t")[0] for line in output.out.splitlines()] == ["a/1", "b/1"]
    assert f"zip://b/bad.png::{archive}: not an image" in output.err
    assert "2 of 4 images skipped" in output.err
    assert not (tmp_path / "x.gradcam.png").exists()
    first = written(out)
    assert [*sorted(first)] == ["a/1.gradcam.npy", "b/1.gradcam.npy"]
    made = json.loads((out / "b/1.gradcam.json").read_text())["provenance"]
    assert made["image"] == f"zip://b/1.png::{archive}"
    assert 'b/1.gradcam.png"' in (out / "index.html").read_text()
    assert overlay(cnn, out, str(archive)) == 1
    assert written(out) == first
    pack(archive, {**entries, "b/1.png": photo(3)})
    assert overlay(cnn, out, str(archive)) == 1
    second = written(out)
    assert second["a/1.gradcam.npy"] == first["a/1.gradcam.npy"]
    assert second["b/1.gradcam.npy"] != first["b/1.gradcam.npy"]
    header, row, *_ = (out / "overlay.csv").read_text().splitlines()
    assert header.startswith("image,method,class,score,probability,peak_x,peak_y,")
    assert header.endswith(",seen_share,files")
    assert row.endswith("a/1.gradcam.npy; a/1.gradcam.png")


def test_a_list_of_photos_replaces_them(
    cnn: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one.png", "two.png"):
        Path(name).write_bytes(photo(5))
    Path("list.txt").write_text("two.png\none.png\ngone.png\n")
    assert overlay(cnn, tmp_path / "out", "--files-from", "list.txt") == 1
    output = capsys.readouterr()
    assert [line.split("\t")[0] for line in output.out.splitlines()] == ["two", "one"]
    assert "skipped gone.png: no such file" in output.err
    source = io.TextIOWrapper(io.BytesIO(b"one.png\n"))
    monkeypatch.setattr("sys.stdin", source)
    assert overlay(cnn, tmp_path / "other", "--files-from", "-") == 0
    for words, message in (
        (("one.png", "--files-from", "list.txt"), "--files-from LIST replaces the photos"),
        ((), "name the photos or videos"),
        (("one.png", "--every", "2"), "--every is for videos; photos do not use it"),
    ):
        capsys.readouterr()
        assert overlay(cnn, tmp_path / "out", *words) == 2
        assert message in capsys.readouterr().err
