"""Folders of runs, and the scores that are left in them."""

import json
import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from visattn.training.run_dir.create import (
    ScoresFile,
    claim,
    held,
    latest_run,
    next_run,
    refuse_taken,
)
from visattn.training.run_dir.find import run_of


def test_no_run_gets_the_folder_of_another(tmp_path: Path) -> None:
    assert next_run("a", tmp_path) == tmp_path / "a" / "1"
    for name in ("1", "2", "10", "notes"):
        (tmp_path / "a" / name).mkdir(parents=True)
    assert next_run("a", tmp_path).name == "11"
    assert next_run("b", tmp_path).name == "1"


def test_the_latest_run_is_the_one_with_the_highest_number(tmp_path: Path) -> None:
    assert latest_run("a", tmp_path).name == "1"
    for name in ("2", "10", "notes"):
        (tmp_path / "a" / name).mkdir(parents=True)
    assert latest_run("a", tmp_path).name == "10"


def test_a_folder_belongs_to_one_run(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    claim(folder, new=True)
    refuse_taken(folder, "--way on")
    claim(folder, new=True)  # made by hand, and empty
    (folder / "config.yaml").touch()
    claim(folder, new=False)
    with pytest.raises(FileExistsError, match="was taken by a run that began at the same moment"):
        claim(folder, new=True)
    with pytest.raises(FileExistsError, match=r"already holds a run; .* or go on with it by --way"):
        refuse_taken(folder, "--way on")


def test_two_processes_do_not_train_in_one_folder(tmp_path: Path) -> None:
    with held(tmp_path):
        child = os.fork()
        if not child:
            with suppress(BlockingIOError), held(tmp_path):
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with held(tmp_path) as again:
        assert again


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
