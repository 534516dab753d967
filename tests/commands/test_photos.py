"""Photos of commands: archives, lists, special files, folders that cannot be listed."""

import io
import json
import os
import shutil
import socket
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from random_numbers import photo, png

import visattn as va
from visattn.images.sources import find_images
from visattn.io.safe_paths import walk_files

Run = Callable[..., int]
Capsys = pytest.CaptureFixture[str]
OVERLAY = "overlay --method gradcam --model cnn.safetensors --out"
COMMANDS = (
    "caption --model captioner.safetensors --beam-size 1",
    "overlay --method gradcam --model cnn.safetensors",
    "score maps --model cnn.safetensors --methods gradcam --masks masks --data",
)
REASONS = {
    "round.jpg": "Too many levels of symbolic links",
    "gone.jpg": "no such file",
    "pipe.png": "not a regular file",
    "listener.png": "not a regular file",
}


@pytest.fixture
def own(sandbox: Path, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run commands in a copy of the sandbox, whose photos a test may change."""
    monkeypatch.chdir(shutil.copytree(sandbox, tmp_path / "own"))
    return run


@pytest.fixture
def odd(own: Run) -> Iterator[Path]:
    """A folder with a photo, a link to it, and special files with the names of photos."""
    folder = Path("odd")
    folder.mkdir()
    (folder / "dog.png").write_bytes(Path("photos/dog.png").read_bytes())
    (folder / "link.png").symlink_to("dog.png")
    (folder / "round.jpg").symlink_to("round.jpg")
    (folder / "gone.jpg").symlink_to("nowhere.jpg")
    (folder / "all").symlink_to(".")
    os.mkfifo(folder / "pipe.png")
    for name in ("link", "round", "gone", "pipe", "listener"):
        shutil.copy("masks/dog.png", f"masks/{name}.png")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("odd/listener.png")
        yield folder


@pytest.mark.parametrize("command", COMMANDS)
def test_special_files_are_skipped_and_results_are_not_read(
    command: str, odd: Path, own: Run, capsys: Capsys
) -> None:
    for _ in range(2):
        assert own(command, odd, "--out", "odd/out") == 1
        out, err = capsys.readouterr()
        if "score" not in command:
            assert {line.partition("\t")[0] for line in out.splitlines()} == {"dog", "link"}
        assert "visattn: 4 of 6 images skipped" in err
        for name, reason in REASONS.items():
            assert f"visattn: skipped odd/{name}: {reason}\n" in err


def test_results_of_another_command_are_not_taken_for_photos(own: Run, capsys: Capsys) -> None:
    assert own(OVERLAY, "photos/out/maps", "photos") == 0
    capsys.readouterr()
    assert own(COMMANDS[0], "photos") == 0
    out, err = capsys.readouterr()
    assert [line.partition("\t")[0] for line in out.splitlines()] == ["cat", "dog"]
    assert "skipped photos/out/maps: results of visattn; to include it, give its path" in err
    assert len(va.caption(va.load("captioner.safetensors"), "photos")) == 2
    assert len(find_images("photos")) > 2
    assert own(COMMANDS[0], "photos/out/maps", "--out", "said") == 0


def test_a_folder_that_cannot_be_listed_is_reported(
    own: Run, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("photos/locked").mkdir()
    list_folder = os.scandir

    def refuse(path: Any) -> object:  # root may read every folder
        if not isinstance(path, int) and Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert own(COMMANDS[0], "photos") == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert "visattn: skipped photos/locked: Permission denied\n" in err
    with pytest.raises(PermissionError, match="Permission denied"):
        find_images("photos")  # training must not silently use fewer photos
    assert own(COMMANDS[0], "photos/locked") == 1
    assert "photos/locked: Permission denied" in capsys.readouterr().err


def test_walks_are_ordered_finite_and_stay_inside(tmp_path: Path) -> None:
    inside = tmp_path / "a"
    for name in ("b/2.txt", "b/1.txt", "z.txt", "b.txt", ".hidden/3.txt", "out/4.txt", "b/out/5"):
        (inside / name).parent.mkdir(parents=True, exist_ok=True)
        (inside / name).touch()
    (inside / "b" / "up").symlink_to("..")
    (tmp_path / "other").symlink_to(inside / "out")  # the same folder by another name
    expected = ["b.txt", "z.txt", "b/1.txt", "b/2.txt", "b/out/5", "out/4.txt"]
    assert [path.relative_to(inside).as_posix() for path in walk_files(inside)] == expected
    assert list(walk_files(inside, exclude=tmp_path / "nowhere")) == list(walk_files(inside))
    for omitted in (inside / "out", tmp_path / "other"):
        results = walk_files(inside, exclude=omitted)
        assert [path.relative_to(inside).as_posix() for path in results] == expected[:-1]


def test_an_archive_is_resumed_and_a_changed_member_is_computed_again(
    run: Run, tmp_path: Path, capsys: Capsys
) -> None:
    one, two, three = (png(photo(29, 41, seed)) for seed in (1, 2, 3))
    entries = {"a/1.png": one, "b/1.png": two, "b/bad.png": b"no photo", "../x.png": b""}
    archive, out = tmp_path / "photos.zip", tmp_path / "out"

    def written(**changed: bytes) -> dict[str, int]:
        with zipfile.ZipFile(archive, "w") as file:
            for name, content in {**entries, **changed}.items():
                file.writestr(name, content)
        assert run(OVERLAY, out, archive) == 1
        return {
            path.relative_to(out).as_posix(): path.stat().st_mtime_ns for path in out.rglob("*.npz")
        }

    first = written()
    output = capsys.readouterr()
    assert [line.split("\t")[0] for line in output.out.splitlines()] == ["a/1", "b/1"]
    assert f"zip://b/bad.png::{archive}: not an image" in output.err
    assert "2 of 4 images skipped" in output.err
    assert not list(tmp_path.glob("x.*"))
    assert [*sorted(first)] == ["a/1.npz", "b/1.npz"]
    made = json.loads((out / "b/1.json").read_text())["made"]
    assert made["photo"] == f"zip://b/1.png::{archive}"
    assert written() == first
    second = written(**{"b/1.png": three})
    assert second["a/1.npz"] == first["a/1.npz"]
    assert second["b/1.npz"] != first["b/1.npz"]


def test_lists_of_photos(own: Run, capsys: Capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("list.txt").write_text("photos/dog.png\nphotos/cat.png\ngone.png\n")
    assert own(OVERLAY, "out", "--files-from", "list.txt") == 1
    output = capsys.readouterr()
    assert [line.split("\t")[0] for line in output.out.splitlines()] == ["dog", "cat"]
    assert "skipped gone.png: no such file" in output.err
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"photos/dog.png\n")))
    assert own(OVERLAY, "other", "--files-from", "-") == 0
    assert capsys.readouterr().out.startswith("dog\t")


def test_photos_that_vanish_during_a_run_are_skipped(
    own: Run, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    from visattn.commands import loop

    names = loop.result_names

    def removing(*args: object, **options: object) -> object:
        Path("photos/dog.png").unlink()
        return names(*args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(loop, "result_names", removing)
    assert own(COMMANDS[0], "photos") == 1
    out, err = capsys.readouterr()
    assert out.startswith("cat\t")
    assert "visattn: skipped photos/dog.png: no such file\n" in err
