"""Which checkpoint a run goes on from, and what a run that ended early does."""

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping

from visattn.tasks.last_checkpoints import LastCheckpoint, newest_checkpoint, steps_of


def write(file: Path, seconds: int, step: int = 3) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"visattn": {"model": {}}, "global_step": step, "w": torch.zeros(999)}, file)
    os.utime(file, (seconds, seconds))
    return file


def test_the_newest_is_taken_wherever_it_lies(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path / "nowhere") is None
    best = write(tmp_path / "checkpoints" / "best.ckpt", 5)
    assert newest_checkpoint(tmp_path) == best
    last = write(tmp_path / "checkpoints" / "last.ckpt", 5)  # at the same moment
    assert newest_checkpoint(tmp_path) == last
    requeued = write(tmp_path / "hpc_ckpt_1.ckpt", 9, step=7)
    (tmp_path / "checkpoints" / ".last.ckpt.0a.part").write_bytes(b"half")
    assert newest_checkpoint(tmp_path) == requeued
    assert steps_of(requeued) == 7


@pytest.mark.parametrize("damage", ["empty", "cut", "bit", "folder"])
def test_the_newest_that_is_whole_is_taken(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    best = write(tmp_path / "checkpoints" / "best.ckpt", 5)
    last = write(tmp_path / "checkpoints" / "last.ckpt", 9)
    whole = last.read_bytes()
    middle = len(whole) // 2
    if damage == "folder":
        last.unlink()
        last.mkdir()
    else:
        flipped = whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :]
        last.write_bytes({"empty": b"", "cut": whole[:-200], "bit": flipped}[damage])
    os.utime(last, (9, 9))
    with caplog.at_level("INFO"):
        assert newest_checkpoint(tmp_path) == best
    assert f"{last} cannot be used" in caplog.text
    assert f"going on from {best} instead" in caplog.text


def test_numbers_without_sense_are_refused(tmp_path: Path) -> None:
    for wrong in ({"steps": -1}, {"minutes": -0.1}, {"minutes": float("nan")}):
        with pytest.raises(ValueError, match="steps and minutes must be at least 0"):
            LastCheckpoint(tmp_path, **wrong)  # type: ignore[arg-type]


def test_a_run_that_ended_by_its_scores_is_at_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)

    def trainer(*callbacks: Any, stop: bool = False, word: str = "fit") -> Any:
        state = SimpleNamespace(fn=word)
        return SimpleNamespace(should_stop=stop, callbacks=list(callbacks), state=state)

    task: Any = None
    patience = EarlyStopping("val/loss")
    for callbacks, early in (([patience], True), ([], False)):
        saved: dict[str, Any] = {}
        made: Any = LastCheckpoint(tmp_path)
        made.on_save_checkpoint(trainer(*callbacks, stop=True), task, saved)
        assert saved["ended_early"] == early
        again = trainer(patience)
        made.on_load_checkpoint(again, task, saved)
        assert again.should_stop == early
        scored = trainer(patience, word="validate")
        made.on_load_checkpoint(scored, task, saved)
        assert not scored.should_stop
