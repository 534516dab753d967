"""What commands say they would write is what they write, and saying it writes nothing."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from sandboxes import fill

from visattn.cli import main
from visattn.commands.options.dry_run import foresee_folder

Capsys = pytest.CaptureFixture[str]
SCORED = "score maps --model cnn.safetensors --data photos --masks masks --methods gradcam"
COMMANDS = [
    "caption photos --weights captioner.safetensors",
    "caption photos --weights captioner.safetensors --gif",
    "glimpse photos --weights eye.safetensors",
    "glimpse photos/dog.png --weights eye.safetensors",
    "overlay photos --model cnn.safetensors --method gradcam layercam --files rgba",
    "overlay photos --model cnn.safetensors --method gradcam --explorer",
    "overlay photos/dog.png --maps maps.npy --words a b",
    f"{SCORED} --scores location",
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
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("typed", COMMANDS)
def test_what_is_foreseen_comes_true(
    typed: str, sandbox: Path, tmp_path: Path, capsys: Capsys
) -> None:
    out = tmp_path / "out"
    before = files(sandbox)
    words = [*shlex.split(typed), "--out", str(out)]
    assert main([*words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("dry run: nothing is written\nreads   ")
    [count] = re.findall(r"^writes  (\d+) files? into .*\(new\): ", said, re.MULTILINE)
    assert not out.exists()
    assert files(sandbox) == before
    assert main(words) == 0
    assert len(files(out)) == int(count)
    assert main([*words, "--dry-run"]) == 0
    assert f"{count} of these names are taken there" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("typed", "code", "said"),
    [
        ("caption photos --weights eye.safetensors", 1, "holds a RecurrentAttentionModel"),
        ("caption photos --weights captioner.safetensors --out said.txt", 1, "could not be"),
        (
            "caption photos --weights captioner.safetensors --out photos",
            1,
            "photos is searched for",
        ),
        ("glimpse nowhere --weights eye.safetensors", 1, "nowhere does not exist"),
        ("glimpse photos/dog.png --weights eye.safetensors --out photos", 1, "in place of the pi"),
        ("overlay photos --model cnn.safetensors --method rollout --out a", 1, "does not fit"),
        ("overlay photos/dog.png --maps torn.ckpt --out a", 1, "torn.ckpt"),
        (f"{SCORED} --methods nothing", 1, "nothing"),
        ("data scenes --count 0 --out a", 2, "count"),
        ("data scenes --out said.txt/deeper", 1, "said.txt is no folder; choose another"),
    ],
)
def test_mistakes_are_found_as_if_it_were_meant(
    typed: str, code: int, said: str, sandbox: Path, capsys: Capsys
) -> None:
    before = files(sandbox)
    assert main([*shlex.split(typed), "--dry-run"]) == code
    assert said in capsys.readouterr().err
    assert files(sandbox) == before


def test_without_a_folder_nothing_would_be_written(capsys: Capsys) -> None:
    assert main(["caption", "photos", "--weights", "captioner.safetensors", "--dry-run"]) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[1] == "reads   2 images: 2 .png; 0.0 MB"
    assert told[2].startswith("reads   captioner.safetensors: ShowAttendTell, ")
    assert told[3] == "writes  no file; --out DIR would"


def test_nothing_is_fetched_to_say_what_would_be(
    monkeypatch: pytest.MonkeyPatch, capsys: Capsys
) -> None:
    asked = []
    from visattn.pipelines import model_spec as named_models

    real = named_models.named_model

    def watched(*args: object, pretrained: bool, **options: object) -> object:
        asked.append(pretrained)
        return real(*args, pretrained=pretrained, **options)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(named_models, "named_model", watched)
    words = ["overlay", "photos", "--model", "timm:test_resnet", "--pretrained", "--dry-run"]
    assert main([*words, "--method", "gradcam", "--out", "a"]) == 0
    assert asked == [False]


def test_a_folder_that_takes_no_files_is_foreseen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    foresee_folder(tmp_path / "a" / "b")
    monkeypatch.setattr("visattn.commands.options.dry_run.os.access", lambda _path, _mode: False)
    with pytest.raises(OSError, match=r"--out .*a/b could not be written: .* takes no files"):
        foresee_folder(tmp_path / "a" / "b")
