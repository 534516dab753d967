"""`visattn export` converts a training checkpoint to a safetensors file."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

import visattn
from visattn.cli import main
from visattn.models.captioning.show_attend_tell import ShowAttendTell

Capsys = pytest.CaptureFixture[str]


@pytest.fixture
def runs(sandbox: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run, in the working folder."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(sandbox / "runs", "runs")
    return Path("runs/tried")


def test_the_exported_model_is_the_trained_one(runs: Path, capsys: Capsys) -> None:
    best = runs / "1" / "checkpoints" / "best.ckpt"
    assert main(["export", str(best), "--out", "new/m.safetensors"]) == 0
    model = visattn.load(best)
    assert isinstance(model, ShowAttendTell)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    said = f"new/m.safetensors\tShowAttendTell, {parameters:,} parameters\n"
    assert capsys.readouterr().out == said
    assert [path.name for path in Path("new").iterdir()] == ["m.safetensors"]
    image = np.random.default_rng(2).integers(0, 256, (31, 53, 3), dtype=np.uint8)
    loaded = visattn.load("new/m.safetensors")
    [before], [after] = visattn.caption(model, image), visattn.caption(loaded, image)
    assert (after.words, after.log_probs) == (before.words, before.log_probs)
    torch.testing.assert_close(after.maps.values, before.maps.values, rtol=0, atol=0)


def test_a_run_gets_its_model_and_commands_take_either(
    runs: Path, sandbox: Path, capsys: Capsys
) -> None:
    photos = ["caption", str(sandbox / "photos"), "--model"]
    assert main([*photos, str(runs), "--out", "a"]) == 0
    expected = capsys.readouterr().out
    assert len(expected.splitlines()) == 2
    assert main(["export", str(runs)]) == 0
    assert capsys.readouterr().out.startswith("runs/tried/1/model.safetensors\tShowAttendTell")
    for spec in ("runs/tried/1/", "runs/tried/1/model.safetensors"):
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
