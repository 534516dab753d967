"""`--dry-run` lists exactly the files that a command writes, and writes nothing."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from command_sandbox import fill

from visattn.cli import main
from visattn.commands.output_option import check_writable

Capsys = pytest.CaptureFixture[str]
SCORED = "score maps --model cnn.safetensors --data photos --masks masks --methods gradcam"
COMMANDS = [
    "caption photos --weights captioner.safetensors",
    "caption photos --weights captioner.safetensors --alignment",
    "glimpse photos --weights eye.safetensors",
    "glimpse photos/dog.png --weights eye.safetensors",
    "overlay photos --model cnn.safetensors --method gradcam layercam --save rgba",
    "overlay photos --model cnn.safetensors --method gradcam --explorer",
    "overlay photos/dog.png --maps maps.npy --words a b",
    f"{SCORED} --scores localization",
    "data scenes --count 3 --size 16",
    "data shapes --count 2 --size 16",
]


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sandbox")
    fill(folder)
    np.save(folder / "maps.npy", np.random.default_rng(0).random((2, 5, 7)).astype(np.float32))
    return folder


@pytest.fixture(autouse=True)
def _here(sandbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sandbox)


def files(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("[!.]*") if path.is_file()}  # without the record


@pytest.mark.parametrize("command", COMMANDS)
def test_the_listed_files_are_written(
    command: str, sandbox: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "out"
    before = files(sandbox)
    words = [*shlex.split(command), "--out", str(out)]
    assert main([*words, "--dry-run"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("dry run: nothing is written\nreads   ")
    listed = re.findall(r"^writes  (.*)$", output, re.MULTILINE)
    assert not out.exists()
    assert files(sandbox) == before
    assert main(words) == 0
    assert sorted(map(str, files(out))) == sorted(listed)
    assert main([*words, "--overwrite", "--dry-run"]) == 0
    assert capsys.readouterr().out.count(" (overwrites)\n") == len(listed)


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ("caption photos --weights eye.safetensors", 1, "holds a RecurrentAttentionModel"),
        ("caption photos --weights captioner.safetensors --out captions.txt", 1, "cannot be"),
        (
            "caption photos --weights captioner.safetensors --out photos",
            1,
            "photos is searched for",
        ),
        ("glimpse nowhere --weights eye.safetensors", 1, "nowhere does not exist"),
        (
            "glimpse photos/dog.png --weights eye.safetensors --out photos",
            1,
            "would overwrite the input image",
        ),
        ("overlay photos --model cnn.safetensors --method rollout --out a", 1, "does not fit"),
        ("overlay photos/dog.png --maps torn.ckpt --out a", 1, "torn.ckpt"),
        (f"{SCORED} nothing", 1, "nothing"),
        ("data scenes --count 0 --out a", 2, "count"),
        (
            "data scenes --out captions.txt/deeper",
            1,
            "captions.txt is not a folder; choose another",
        ),
    ],
)
def test_a_dry_run_reports_the_same_errors(
    command: str, code: int, message: str, sandbox: Path, capsys: Capsys
) -> None:
    before = files(sandbox)
    assert main([*shlex.split(command), "--dry-run"]) == code
    assert message in capsys.readouterr().err
    assert files(sandbox) == before


def test_nothing_is_written_without_an_output_folder(capsys: Capsys) -> None:
    assert main(["caption", "photos", "--weights", "captioner.safetensors", "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "reads   2 images: 2 .png; 0.0 MB"
    assert lines[2].startswith("reads   captioner.safetensors: ShowAttendTell, ")
    assert lines[3] == "writes  nothing without --out DIR"


def test_a_dry_run_downloads_nothing(monkeypatch: pytest.MonkeyPatch, capsys: Capsys) -> None:
    requested: list[bool] = []
    from visattn.models import saving

    real = saving.load

    def spy(*args: object, pretrained: bool, **options: object) -> object:
        requested.append(pretrained)
        return real(*args, pretrained=pretrained, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(saving, "load", spy)
    words = ["overlay", "photos", "--model", "timm:test_resnet", "--pretrained", "--dry-run"]
    assert main([*words, "--method", "gradcam", "--out", "a"]) == 0
    assert requested == [False]


def test_an_unwritable_folder_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_writable(tmp_path / "a" / "b")
    monkeypatch.setattr("visattn.commands.output_option.os.access", lambda _path, _mode: False)
    with pytest.raises(OSError, match=r"--out .*a/b cannot be written: .* is not writable"):
        check_writable(tmp_path / "a" / "b")
