"""`LastCheckpoint`: its intervals, and runs that early stopping ended."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lightning.pytorch.callbacks import EarlyStopping

from visattn.training.callbacks.checkpoints import LastCheckpoint


def test_negative_intervals_are_refused(tmp_path: Path) -> None:
    for wrong in ({"steps": -1}, {"minutes": -0.1}, {"minutes": float("nan")}):
        with pytest.raises(ValueError, match="steps and minutes must be at least 0"):
            LastCheckpoint(tmp_path, **wrong)  # type: ignore[arg-type]


def test_a_run_ended_by_early_stopping_is_not_continued(
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
