"""Folders of runs, and the scores that are left in them."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from visattn.tasks.runs import ScoresFile, next_run, run_of


def test_no_run_gets_the_folder_of_another(tmp_path: Path) -> None:
    assert next_run("a", tmp_path) == tmp_path / "a" / "1"
    for name in ("1", "2", "10", "notes"):
        (tmp_path / "a" / name).mkdir(parents=True)
    assert next_run("a", tmp_path).name == "11"
    assert next_run("b", tmp_path).name == "1"


@pytest.mark.parametrize(
    ("checkpoint", "run"),
    [("runs/a/1/checkpoints/best.ckpt", "runs/a/1"), ("elsewhere/my.ckpt", "elsewhere")],
)
def test_a_checkpoint_belongs_to_a_run(checkpoint: str, run: str) -> None:
    assert run_of(Path(checkpoint)) == Path(run)


def trainer(word: str, **changes: Any) -> Any:
    scores = {"b": torch.tensor(0.5), "a": torch.tensor(torch.nan), "c": torch.tensor(torch.inf)}
    state = SimpleNamespace(fn=word)
    notes = {"signature": "n:2", "test_captions": [{"image_id": "a", "caption": "Ein Hündchen"}]}
    task = SimpleNamespace(notes=notes)
    whole = {"callback_metrics": scores, "is_global_zero": True, "state": state}
    whole["lightning_module"] = task
    return SimpleNamespace(**{**whole, **changes})


@pytest.fixture(autouse=True)
def _any_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)


def test_scores_are_json_that_everybody_reads(tmp_path: Path) -> None:
    file: Any = ScoresFile(tmp_path / "new")
    file.on_test_end(trainer("test"), None)
    text = (tmp_path / "new" / "test.json").read_text()
    held = [("a", None), ("b", 0.5), ("c", None), ("signature", "n:2")]
    assert list(json.loads(text).items()) == held
    told = (tmp_path / "new" / "test_captions.json").read_text(encoding="utf-8")
    assert json.loads(told) == [{"image_id": "a", "caption": "Ein Hündchen"}]
    file.on_validation_end(trainer("validate"), None)
    assert (tmp_path / "new" / "validate.json").exists()


def test_only_one_process_writes_and_only_real_scores(tmp_path: Path) -> None:
    file: Any = ScoresFile(tmp_path / "new")
    file.on_test_end(trainer("test", is_global_zero=False), None)
    file.on_test_end(trainer("test", fast_dev_run=1), None)
    file.on_validation_end(trainer("fit"), None)
    assert not (tmp_path / "new").exists()
