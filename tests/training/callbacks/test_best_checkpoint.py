"""A resumed run continues with the best checkpoint in its folder."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from checkpoint_files import write_checkpoint
from lightning.pytorch.callbacks import ModelCheckpoint

from visattn.training.callbacks.checkpoints import BestCheckpoint


def resumed(run: Path, callback: BestCheckpoint) -> BestCheckpoint:
    """Return the callback after the start of `fit` in a folder."""
    strategy = SimpleNamespace(broadcast=lambda value: value)
    trainer: Any = SimpleNamespace(is_global_zero=True, fast_dev_run=False, strategy=strategy)
    task: Any = SimpleNamespace(device=torch.device("cpu"))
    callback.load_state_dict({"dirpath": "/gone", "best_model_path": "/gone/best.ckpt"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("jaxtyping.config.jaxtyping_disable", True)
        callback.on_fit_start(trainer, task)
    return callback


def test_the_best_score_is_read_from_the_file(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "checkpoints"

    def best(mode: str = "max") -> BestCheckpoint:
        return BestCheckpoint(folder, monitor="val/caption_accuracy", mode=mode)

    assert resumed(tmp_path, best()).best_model_path == ""
    theirs = ModelCheckpoint(folder, "best", monitor="val/caption_accuracy", mode="max")
    assert best().state_key != theirs.state_key  # both may be in one run
    state = {theirs.state_key: {"best_model_score": torch.tensor(0.625)}}  # of older runs
    file = write_checkpoint(folder / "best.ckpt", 7, callbacks=state)
    callback = resumed(tmp_path, best())
    assert callback.best_model_path == callback.kth_best_model_path == str(file)
    assert callback.best_model_score == 0.625
    assert callback.best_k_models == {str(file): 0.625}
    assert resumed(tmp_path, best("min")).best_model_score is None
    assert caplog.messages == [f"{file} is kept as {folder}/best.ckpt.step-7"]
    assert [path.name for path in folder.iterdir()] == ["best.ckpt.step-7"]


def test_model_checkpoints_of_a_config_keep_their_scores_after_a_move(tmp_path: Path) -> None:
    def theirs(folder: Path) -> ModelCheckpoint:
        return ModelCheckpoint(folder, "top", monitor="val/loss", save_top_k=1)

    old, new = theirs(tmp_path / "old"), theirs(tmp_path / "new")
    path = str(tmp_path / "old" / "top.ckpt")
    old.best_model_path = old.kth_best_model_path = path
    old.best_model_score, old.best_k_models = torch.tensor(0.25), {path: torch.tensor(0.25)}
    ours = BestCheckpoint(tmp_path / "new", monitor="val/caption_accuracy", mode="max")
    trainer: Any = SimpleNamespace(checkpoint_callbacks=[new, ours])
    task: Any = None
    for there in (False, True):  # where the file did not come along, the run is another one
        states: dict[str, Any] = {new.state_key: old.state_dict()}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("jaxtyping.config.jaxtyping_disable", True)
            ours.on_load_checkpoint(trainer, task, {"callbacks": states})
        assert (states[new.state_key]["dirpath"] == new.dirpath) == there
        (tmp_path / "new").mkdir(exist_ok=True)
        (tmp_path / "new" / "top.ckpt").touch()
    new.load_state_dict(states[new.state_key])
    assert new.best_model_path == str(tmp_path / "new" / "top.ckpt")
    assert new.best_model_score == 0.25
