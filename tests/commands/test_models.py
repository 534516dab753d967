"""`--weights` and `--run` of caption, glimpse and export."""

import re
import shutil
from pathlib import Path

import pytest
import torch
from command_sandbox import add_run, fill
from safetensors import safe_open

import visattn
from visattn.cli import main

Capsys = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models, and a run of each with its config and checkpoint."""
    folder = tmp_path_factory.mktemp("sandbox")
    fill(folder)
    for name in ("captioner", "eye"):
        add_run(folder / "runs" / name / "1", visattn.load(folder / f"{name}.safetensors"))
    return folder


@pytest.fixture(autouse=True)
def _here(sandbox: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(sandbox)


@pytest.mark.parametrize(
    ("command", "name"), [("caption", "captioner"), ("glimpse", "eye")], ids=["caption", "glimpse"]
)
def test_a_run_gives_the_same_output_as_its_exported_model(
    command: str, name: str, capsys: Capsys
) -> None:
    assert main([command, "photos", "--weights", f"{name}.safetensors"]) == 0
    output = capsys.readouterr().out
    for run in (f"runs/{name}", f"runs/{name}/1/"):
        assert main([command, "photos", "--run", run]) == 0
        assert capsys.readouterr().out == output
    assert len(output.splitlines()) == 2


def test_export_writes_into_the_run_directory(capsys: Capsys) -> None:
    assert main(["export", "--run", "runs/captioner"]) == 0
    assert capsys.readouterr().out.startswith("runs/captioner/1/model.safetensors\tShowAttendTell")
    files = ("runs/captioner/1/model.safetensors", "captioner.safetensors")
    with safe_open(files[0], "pt") as ours, safe_open(files[1], "pt") as theirs:
        assert set(ours.keys()) == set(theirs.keys())
        for name in ours.keys():  # noqa: SIM118 (it is no dictionary)
            torch.testing.assert_close(ours.get_tensor(name), theirs.get_tensor(name))
    assert main(["export", "--run", "runs/captioner", "--out", "a/b.safetensors"]) == 0
    assert Path("a/b.safetensors").is_file()


@pytest.mark.parametrize("command", ["caption", "glimpse", "export"])
def test_invalid_runs_are_refused_before_anything_is_written(
    command: str, sandbox: Path, capsys: Capsys
) -> None:
    words = [command] if command == "export" else [command, "photos", "--out", "made"]
    assert main([*words, "--run", "nowhere"]) == 1
    assert re.search("nowhere'?(; a model is named|$)", capsys.readouterr().err, re.MULTILINE)
    assert main([*words, "--run", "empty"]) == 1
    assert "there is no run of visattn fit at empty" in capsys.readouterr().err
    assert main([*words, "--run", "captions.txt"]) == 1
    assert "captions.txt" in capsys.readouterr().err
    for number in ("1", "2"):
        shutil.copytree("runs/eye/1", f"several/{number}", dirs_exist_ok=True)
    assert main([*words, "--run", "several"]) == 1
    assert "several holds 2 runs; choose one, the newest last" in capsys.readouterr().err
    assert not Path("made").exists()


def test_weights_and_run_exclude_each_other(capsys: Capsys) -> None:
    words = ["photos", "--run", "runs/captioner", "--weights", "captioner.safetensors"]
    assert main(["caption", *words]) == 2
    assert "--run cannot be combined with --model or --weights" in capsys.readouterr().err
    best = "runs/captioner/1/checkpoints/best.ckpt"
    assert main(["export", best, "--run", "runs/captioner"]) == 2
    assert "--run FOLDER, for the best checkpoint of a run, or a checkpoint" in (
        capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("words", "output"),
    [
        ("caption photos --weights photos", "there is no run of visattn fit at photos"),
        ("caption photos --weights torn.ckpt", "torn.ckpt is damaged, or holds code"),
        (
            "export runs/captioner/1 --out a.safetensors",
            "is a folder; export the folder of a run with",
        ),
        (
            "export captioner.safetensors --out a.safetensors",
            "is exported already, or no checkpoint",
        ),
        ("glimpse photos --run torn.ckpt", "torn.ckpt is damaged, or holds code"),
        (
            "glimpse photos --weights eye.safetensors --device gpu",
            "expected cpu, cuda, cuda:N or mps",
        ),
    ],
)
def test_invalid_models_are_refused(words: str, output: str, capsys: Capsys) -> None:
    assert main(words.split()) == 1
    assert output in capsys.readouterr().err


def test_a_run_of_another_task_is_refused(capsys: Capsys) -> None:
    assert main(["glimpse", "photos", "--run", "runs/captioner"]) == 1
    assert capsys.readouterr().err == (
        "visattn: runs/captioner/1/checkpoints/best.ckpt holds a ShowAttendTell, which "
        "is not a glimpse model\n"
    )
