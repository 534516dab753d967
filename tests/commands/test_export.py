"""`visattn export` converts a training checkpoint to a safetensors file."""

import shutil
from pathlib import Path

import pytest

import visattn
from visattn.cli import main

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def runs(sandbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run, in the working folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(sandbox / "runs", "runs")
    return Path("runs/tried")


def test_a_run_gets_its_model_and_commands_take_either(
    runs: Path, sandbox: Path, capsys: Capsys
) -> None:
    photos = ["caption", str(sandbox / "photos"), "--model"]
    assert main([*photos, str(runs), "--out", "a"]) == 0
    expected = capsys.readouterr().out
    assert len(expected.splitlines()) == 2
    assert main(["export", str(runs)]) == 0
    parameters = sum(each.numel() for each in visattn.load(runs).parameters())
    said = f"runs/tried/1/model.safetensors\tShowAttendTell, {parameters:,} parameters\n"
    assert capsys.readouterr().out == said
    best = runs / "1" / "checkpoints" / "best.ckpt"
    assert main(["export", str(best), "--out", "new/m.safetensors"]) == 0
    assert [path.name for path in Path("new").iterdir()] == ["m.safetensors"]
    capsys.readouterr()
    for spec in ("runs/tried/1/", "runs/tried/1/model.safetensors", "new/m.safetensors"):
        assert main([*photos, spec, "--out", spec.replace("/", "_")]) == 0
        assert capsys.readouterr().out == expected
    shutil.copytree(runs / "1", runs / "2")
    assert main(["export", str(runs)]) == 1
    assert "runs/tried holds 2 runs; choose one, the newest last" in capsys.readouterr().err


def test_a_foreign_file_is_not_replaced(runs: Path, capsys: Capsys) -> None:
    file = Path("m.safetensors")
    file.write_bytes(b"another model")
    assert main(["export", str(runs), "--out", str(file)]) == 1
    assert "m.safetensors exists: choose another --out" in capsys.readouterr().err
    assert file.read_bytes() == b"another model"
    assert main(["export", str(runs), "--out", str(file), "--overwrite"]) == 0
    assert main(["export", "scenes-captioner", "--out", "b.safetensors"]) == 1
    assert "exported already" in capsys.readouterr().err
