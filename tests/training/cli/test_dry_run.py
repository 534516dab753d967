"""A dry run builds everything, processes one batch of each split, and writes nothing."""

from pathlib import Path

import pytest
import torchvision.datasets

from visattn.cli import main

Capsys = pytest.CaptureFixture[str]


def modification_times(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_fit_prints_what_it_would_write_and_writes_nothing(
    tiny: Path, tmp_path: Path, capsys: Capsys
) -> None:
    before = modification_times(tmp_path)
    assert main(["fit", "--config", str(tiny), "--dry-run"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert first == (
        "visattn fit, dry run: one batch of each split was processed, nothing is written"
    )
    assert second == "ShowAttendTell, 4,440 parameters; would write runs/tiny/1 (new)"
    assert modification_times(tmp_path) == before


@pytest.mark.parametrize("command", ["validate", "test"])
def test_scoring_a_run_writes_nothing(command: str, run: Path, capsys: Capsys) -> None:
    before = modification_times(run)
    assert main([command, "--run", str(run), "--dry-run", "--data.batch_size", "3"]) == 0
    out, err = capsys.readouterr()
    assert f"{command} uses {run}/config.yaml and {run}/checkpoints/best.ckpt" in err
    assert f"would write {run}/{command}.json (new)" in out
    assert modification_times(run) == before


def test_errors_are_those_of_the_real_command(
    tiny: Path, run: Path, tmp_path: Path, capsys: Capsys
) -> None:
    arguments = ["fit", "--config", str(tiny), "--dry-run"]
    assert main([*arguments, "--data.image_sise", "3"]) == 2
    assert main([*arguments, "--run", str(run)]) == 1
    assert "already holds a run" in capsys.readouterr().err
    assert main([*arguments, "--data.image_size", "32"]) == 1  # the encoder takes 24
    output = capsys.readouterr()
    assert "images must be (24, 24) (height, width), got (32, 32)" in output.err
    assert output.out == ""
    assert main([*arguments, "--data.batch_size", "0"]) == 1
    assert "must be at least 1, got 0" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main([*arguments, "--run", str(tmp_path / "file" / "run")]) == 1
    output = capsys.readouterr()
    assert "cannot be written" in output.err
    assert output.out == ""


def test_nothing_is_downloaded(
    tiny: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloads: list[object] = []
    monkeypatch.setattr(torchvision.datasets.MNIST, "download", downloads.append)
    arguments = ["--data", "TorchvisionDataModule", "--data.dataset", "MNIST"]
    arguments += ["--data.root", str(tmp_path), "--data.download", "true", "--dry-run"]
    assert main(["fit", "--config", str(tiny), *arguments]) == 1
    assert "does not hold MNIST" in capsys.readouterr().err
    assert downloads == []
