"""Dry runs: all is built and looked at, nothing is written."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torchvision.datasets

from visattn.cli import main
from visattn.training.cli.dry_run import _limited, _parts, _without_cache

Capsys = pytest.CaptureFixture[str]


def rows(out: str) -> dict[str, str]:
    """What a dry run says, by the first word of its lines."""
    told: dict[str, str] = {}
    for line in out.splitlines():
        if line[:12].strip():
            told[line[:12].strip()] = line[13:]
    return told


def everything(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_fit_says_what_it_would_do_and_writes_nothing(
    tiny: Path, tmp_path: Path, capsys: Capsys
) -> None:
    before = everything(tmp_path)
    assert main(["fit", "--config", str(tiny), "--dry-run"]) == 0
    out = capsys.readouterr().out
    told = rows(out)
    assert out.startswith("visattn fit, dry run: all is built, nothing is written\n")
    assert told["task"] == "CaptioningTask"
    assert told["model"] == "ShowAttendTell"
    assert told["parameters"].endswith(", all of them trained (0.0 MB)")
    assert told["data"] == "ScenesDataModule"
    assert told["train"] == "2 batches; the first:"
    assert told["validation"] == "1 batch; the first:"
    assert "images   uint8 7 x 3 x 24 x 24" in out
    assert "images   uint8 3 x 3 x 24 x 24" in out
    assert told["training"] == "2 steps an epoch, 4 in all: 2 epochs"
    assert told["device"].startswith("cpu, precision 32")
    assert told["folder"].startswith("runs/tiny/1 (new); ")
    assert max(map(len, out.splitlines())) <= 80
    assert everything(tmp_path) == before


def test_the_steps_are_those_that_training_takes(tiny: Path, capsys: Capsys) -> None:
    words = ["fit", "--config", str(tiny), "--dry-run", "--trainer.max_steps", "-1"]
    words += ["--trainer.accumulate_grad_batches", "2", "--trainer.devices", "2"]
    assert main([*words, "--trainer.strategy", "ddp", "--data.batch", "2"]) == 0
    told = rows(capsys.readouterr().out)
    # 3 scenes of 5 captions: 15 captions in batches of 2 for each of 2 processes are 3 batches
    assert told["train"] == "3 batches; the first:"
    assert told["training"] == "2 steps an epoch, 4 in all: 2 epochs"
    assert "; 2 processes, of which each takes its share" in told["device"]


@pytest.mark.parametrize("word", ["validate", "test"])
def test_scoring_a_run_needs_nothing_else_and_is_rehearsed(
    word: str, run: Path, capsys: Capsys
) -> None:
    before = everything(run)
    assert main([word, "--run", str(run), "--dry-run", "--data.batch", "3"]) == 0
    out, said = capsys.readouterr()
    told = rows(out)
    assert f"{word} takes {run}/config.yaml and {run}/checkpoints/best.ckpt" in said
    assert told["folder"].startswith(f"{run}/{word}.json; ")
    assert "training" not in told
    assert {"validate": {"validation"}, "test": {"test", "test 2"}}[word] <= set(told)
    assert everything(run) == before


def test_mistakes_are_found_as_if_it_were_meant(
    tiny: Path, run: Path, tmp_path: Path, capsys: Capsys
) -> None:
    words = ["fit", "--config", str(tiny), "--dry-run"]
    assert main([*words, "--data.sise", "3"]) == 2
    assert main([*words, "--run", str(run)]) == 1
    assert "already holds a run" in capsys.readouterr().err
    assert main([*words, "--data.size", "32"]) == 1  # the encoder is made for 24
    said = capsys.readouterr()
    assert "images must be (24, 24) (height, width), got (32, 32)" in said.err
    assert said.out == ""
    assert main([*words, "--data.batch", "0"]) == 1
    assert "batch and pool must be at least 1, got 0 and 1" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main([*words, "--run", str(tmp_path / "file" / "run")]) == 1
    said = capsys.readouterr()
    assert "cannot be written" in said.err
    assert said.out == ""


def test_nothing_is_fetched(
    tiny: Path, tmp_path: Path, capsys: Capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched = []
    monkeypatch.setattr(torchvision.datasets.MNIST, "download", fetched.append)
    words = [
        "--data",
        "TorchvisionDataModule",
        "--data.source",
        "MNIST",
        "--data.root",
        str(tmp_path),
    ]
    words += ["--data.download", "true", "--dry-run"]
    assert main(["fit", "--config", str(tiny), *words]) == 1
    assert "does not hold MNIST" in capsys.readouterr().err
    assert fetched == []


def test_features_are_not_kept_and_it_is_said_where_they_would_be() -> None:
    data = SimpleNamespace(cache="kept/features")
    assert _without_cache(data) == "features of the frozen encoder in kept/features, computed once"
    assert data.cache is None
    assert _without_cache(data) == _without_cache(SimpleNamespace()) == ""


def test_batches_are_told_by_their_parts() -> None:
    batch = (torch.zeros(2, 3, dtype=torch.uint8), {"boxes": [torch.ones(4)]}, None, ("a", "b"), [])
    assert list(_parts(batch)) == [
        ("0", "uint8 2 x 3"),
        ("boxes 0", "float32 4"),
        ("3", "2 x str"),
    ]


@pytest.mark.parametrize(
    ("limit", "left"), [(None, 7), (1.0, 7), (0.5, 3), (3, 3), (99, 7), (0.0, 0)]
)
def test_limits_are_numbers_or_shares(limit: float | None, left: int) -> None:
    assert _limited(7, limit) == left
