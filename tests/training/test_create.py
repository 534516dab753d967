"""Run folders: numbering, locks, and the scores written to them."""

import json
import os
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from visattn.models.model_files import checkpoint_run
from visattn.training.run_dir import (
    ScoreWriter,
    create_run_dir,
    latest_run_dir,
    lock_run_dir,
    next_run_dir,
    require_empty_run_dir,
)


def test_no_run_gets_the_folder_of_another(tmp_path: Path) -> None:
    assert next_run_dir("a", tmp_path) == tmp_path / "a" / "1"
    for name in ("1", "2", "10", "notes"):
        (tmp_path / "a" / name).mkdir(parents=True)
    assert next_run_dir("a", tmp_path).name == "11"
    assert next_run_dir("b", tmp_path).name == "1"


def test_the_latest_run_is_the_one_with_the_highest_number(tmp_path: Path) -> None:
    assert latest_run_dir("a", tmp_path).name == "1"
    for name in ("2", "10", "notes"):
        (tmp_path / "a" / name).mkdir(parents=True)
    assert latest_run_dir("a", tmp_path).name == "10"


def test_a_folder_belongs_to_one_run(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "a"
    create_run_dir(folder, new=True)
    require_empty_run_dir(folder, "--way on")
    create_run_dir(folder, new=True)  # made by hand, and empty
    (folder / "config.yaml").touch()
    create_run_dir(folder, new=False)
    with pytest.raises(FileExistsError, match="was created by another run at the same time"):
        create_run_dir(folder, new=True)
    with pytest.raises(
        FileExistsError, match=r"already holds a run; .* or resume the run with --way"
    ):
        require_empty_run_dir(folder, "--way on")


def test_a_run_folder_is_locked_by_one_process(tmp_path: Path) -> None:
    with lock_run_dir(tmp_path):
        child = os.fork()
        if not child:
            with suppress(BlockingIOError), lock_run_dir(tmp_path):
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with lock_run_dir(tmp_path) as again:
        assert again


@pytest.mark.parametrize(
    ("checkpoint", "run"),
    [("runs/a/1/checkpoints/best.ckpt", "runs/a/1"), ("elsewhere/my.ckpt", "elsewhere")],
)
def test_a_checkpoint_belongs_to_a_run(checkpoint: str, run: str) -> None:
    assert checkpoint_run(Path(checkpoint)) == Path(run)


def trainer(word: str, **changes: Any) -> Any:
    scores = {"b": torch.tensor(0.5), "a": torch.tensor(torch.nan), "c": torch.tensor(torch.inf)}
    state = SimpleNamespace(fn=word)
    notes = {"signature": "n:2", "test_captions": [{"image_id": "a", "caption": "Ein Hündchen"}]}
    task = SimpleNamespace(notes=notes)
    attributes = {"callback_metrics": scores, "is_global_zero": True, "state": state}
    attributes["lightning_module"] = task
    return SimpleNamespace(**{**attributes, **changes})


@pytest.fixture(autouse=True)
def _any_trainer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jaxtyping.config.jaxtyping_disable", True)


def test_scores_are_standard_json(tmp_path: Path) -> None:
    file: Any = ScoreWriter(tmp_path / "new")
    file.on_test_end(trainer("test"), None)
    text = (tmp_path / "new" / "test.json").read_text()
    expected = [("a", None), ("b", 0.5), ("c", None), ("signature", "n:2")]
    assert list(json.loads(text).items()) == expected
    captions = (tmp_path / "new" / "test_captions.json").read_text(encoding="utf-8")
    assert json.loads(captions) == [{"image_id": "a", "caption": "Ein Hündchen"}]
    file.on_validation_end(trainer("validate"), None)
    assert (tmp_path / "new" / "validate.json").exists()


def test_only_one_process_writes_and_only_real_scores(tmp_path: Path) -> None:
    file: Any = ScoreWriter(tmp_path / "new")
    file.on_test_end(trainer("test", is_global_zero=False), None)
    file.on_test_end(trainer("test", fast_dev_run=1), None)
    file.on_validation_end(trainer("fit"), None)
    assert not (tmp_path / "new").exists()
