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
    state = {best().state_key: {"best_model_score": torch.tensor(0.625)}}
    file = write_checkpoint(folder / "best.ckpt", 7, callbacks=state)
    callback = resumed(tmp_path, best())
    assert callback.best_model_path == callback.kth_best_model_path == str(file)
    assert callback.best_model_score == 0.625
    assert callback.best_k_models == {str(file): 0.625}
    assert resumed(tmp_path, best("min")).best_model_score is None
    assert caplog.messages == [f"{file} is kept as {folder}/best.ckpt.step-7"]
    assert [path.name for path in folder.iterdir()] == ["best.ckpt.step-7"]
