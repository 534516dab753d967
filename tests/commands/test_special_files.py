"""Commands skip special files in image folders: link loops, pipes, sockets, own results."""

import os
import shlex
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_sandbox import fill

import visattn as va
from visattn.cli import main
from visattn.commands import model_job
from visattn.images.sources import find_images
from visattn.io.safe_paths import walk_files

Capsys = pytest.CaptureFixture[str]
COMMANDS = {
    "caption odd --weights captioner.safetensors --out odd/captions": {"dog", "link"},
    "glimpse odd --weights eye.safetensors --out odd/scans": {"dog", "link"},
    "overlay odd --model cnn.safetensors --method gradcam --out odd/maps": {"dog", "link"},
    "overlay odd --model cnn.safetensors --method gradcam --normalize global --out odd/maps2": {
        "dog",
        "link",
    },
    "score maps --model cnn.safetensors --data odd --masks masks --methods gradcam "
    "--scores localization --out odd/scores": set(),
}


@pytest.fixture
def sandbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    fill(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def odd(sandbox: Path) -> Iterator[Path]:
    """A folder with a photo, a link to it, and special files with the names of photos."""
    folder = sandbox / "odd"
    folder.mkdir()
    (folder / "dog.png").write_bytes((sandbox / "photos" / "dog.png").read_bytes())
    (folder / "link.png").symlink_to("dog.png")
    (folder / "round.jpg").symlink_to("round.jpg")
    (folder / "gone.jpg").symlink_to("nowhere.jpg")
    (folder / "all").symlink_to(".")
    os.mkfifo(folder / "pipe.png")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("odd/listener.png")
        yield folder


REASONS = {
    "round.jpg": "Too many levels of symbolic links",
    "gone.jpg": "no such file",
    "pipe.png": "not a regular file",
    "listener.png": "not a regular file",
}


def test_special_files_are_skipped_and_results_are_not_read(odd: Path, capsys: Capsys) -> None:
    for name in ("dog", "link", "round", "gone", "pipe", "listener"):
        (odd.parent / "masks" / f"{name}.png").write_bytes(
            (odd.parent / "masks" / "dog.png").read_bytes()
        )
    for command, shown in COMMANDS.items():
        words = shlex.split(command)
        for _ in range(2):
            assert main(words) == 1, command
            out, err = capsys.readouterr()
            if shown:
                assert {line.partition("\t")[0] for line in out.splitlines()} == shown, command
                assert "visattn: 4 of 6 images skipped" in err
            for name, reason in REASONS.items():
                assert f"visattn: skipped odd/{name}: {reason}\n" in err, command
        shutil.rmtree(words[-1])


def test_results_of_another_command_are_not_taken_for_photos(sandbox: Path, capsys: Capsys) -> None:
    command = "overlay photos --model cnn.safetensors --method gradcam --out photos/out/maps"
    (sandbox / "photos" / "bird.png").write_bytes((sandbox / "photos" / "dog.png").read_bytes())
    assert main(shlex.split(command)) == 0
    capsys.readouterr()
    assert main(["caption", "photos", "--weights", "captioner.safetensors"]) == 0
    out, err = capsys.readouterr()
    assert [line.partition("\t")[0] for line in out.splitlines()] == ["bird", "cat", "dog"]
    reason = "results of visattn; to include it, give its path"
    assert err.startswith(f"visattn: skipped photos/out/maps: {reason}\nvisattn: the model saw ")
    model = va.load("captioner.safetensors")
    assert len(va.caption(model, "photos")) == 3
    assert main(["caption", "photos/out/maps", "--weights", "captioner.safetensors"]) == 0
    assert len(find_images("photos")) > 3


def test_an_unlistable_folder_is_reported_and_the_others_are_processed(
    sandbox: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    (sandbox / "photos" / "locked").mkdir()
    list_folder = os.scandir

    def refuse(path: Path) -> object:  # root may read every folder
        if Path(path).name == "locked":
            raise PermissionError(13, "Permission denied", str(path))
        return list_folder(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert main(["caption", "photos", "--weights", "captioner.safetensors"]) == 1
    out, err = capsys.readouterr()
    assert len(out.splitlines()) == 2
    assert err.endswith(
        "\nvisattn: skipped photos/locked: Permission denied\nvisattn: 1 of 2 images skipped\n"
    )
    with pytest.raises(PermissionError, match="Permission denied"):
        find_images(sandbox / "photos")  # training must not silently use fewer photos
    assert main(["caption", "photos/locked", "--weights", "captioner.safetensors"]) == 1
    assert "photos/locked: Permission denied" in capsys.readouterr().err


def test_a_photo_deleted_during_the_run_is_skipped(
    sandbox: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = model_job.load_trained_model
    monkeypatch.setattr(
        model_job,
        "load_trained_model",
        lambda *args: (Path("photos/dog.png").unlink(), build(*args))[1],
    )
    assert main(["caption", "photos", "--weights", "captioner.safetensors"]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("cat\t")
    assert "visattn: skipped photos/dog.png: no such file\n" in err


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
