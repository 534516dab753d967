"""Progress bars and progress lines count optimizer steps of the whole run."""

import sys
from typing import Any

import pytest
import torch
from jsonargparse import Namespace
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import TQDMProgressBar
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from visattn.training.callbacks.progress import (
    ProgressReport,
    RunPace,
    RunProgressBar,
    progress_callback,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*does not have many workers")
BATCHES = 7


class LinearModel(LightningModule):
    """Linear regression to zero."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=2**-7)

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        loss = self.layer(*batch).square().mean()
        self.log("train/loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        self.log("val/loss", self.layer(*batch).square().mean())

    def train_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.ones(BATCHES, 3)))

    def val_dataloader(self) -> Any:
        return DataLoader(TensorDataset(torch.ones(2, 3)))


def trainer(callback: Any, **options: Any) -> Trainer:
    quiet = {"enable_model_summary": False, "num_sanity_val_steps": 0, "log_every_n_steps": 1}
    off = {"logger": False, "enable_checkpointing": False, "accelerator": "cpu"}
    return Trainer(callbacks=[callback], **quiet, **off, **options)


def test_step_count_ends_with_training(capsys: pytest.CaptureFixture[str]) -> None:
    """By `max_steps`, by `max_epochs`, and with accumulated gradients."""
    for options, steps, epochs in (
        ({"max_epochs": 1, "max_steps": 5}, 5, 1),
        ({"max_epochs": 19, "max_steps": 17}, 17, 3),
        ({"max_epochs": -1, "max_steps": 11}, 11, 2),
        ({"max_epochs": 2}, 14, 2),
        ({"max_epochs": 2, "accumulate_grad_batches": 3}, 6, 2),
        ({"max_epochs": 3, "limit_train_batches": 5, "max_steps": 11}, 11, 3),
    ):
        bar = RunProgressBar()
        trainer(bar, **options).fit(LinearModel())
        task = bar.train_progress_bar
        assert (task.completed, task.total) == (steps, steps), options
        assert task.description.split() == ["Epoch", str(epochs), "of", str(epochs)], options
        capsys.readouterr()
        trainer(ProgressReport(seconds=0), **options).fit(LinearModel())
        last = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step")][
            -1
        ]
        assert f"step {steps} of {steps} (100%), epoch {epochs} of {epochs}, loss" in last, options
        assert "learning rate 0.00781, 0:00:00 left" in last


def test_lines_of_a_short_run_report_its_ends_and_all_validations(
    capsys: pytest.CaptureFixture[str],
) -> None:
    trainer(ProgressReport(), max_epochs=3).fit(LinearModel())
    lines = [line for line in capsys.readouterr().err.splitlines() if "step" in line]
    events = [line.split(",")[0].split(": ")[0] for line in lines]
    assert events == [
        "training started",
        "step 1 of 21 (5%)",
        *(f"validation after step {step}" for step in (7, 14)),
        "step 21 of 21 (100%)",
        "validation after step 21",
        "training ended",
    ]
    losses = [float(line.rpartition("loss ")[2]) for line in lines if ": loss" in line]
    assert 0 < losses[2] < losses[1] < losses[0]


def test_a_closed_stderr_does_not_end_training(monkeypatch: pytest.MonkeyPatch) -> None:
    class ClosedStream:
        def write(self, _: str) -> int:
            raise BrokenPipeError

    session = trainer(ProgressReport(seconds=0), max_steps=3)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stderr", ClosedStream())
        session.fit(LinearModel())
    assert session.global_step == 3


def test_remaining_time_counts_steps_of_this_session_only() -> None:
    pace = RunPace(first_step=100, total_steps=111)
    pace.started -= 8.0
    assert pace.seconds_left(101) == float("inf")  # one step gives no estimate
    assert pace.seconds_left(104) == pytest.approx(14.0, abs=0.1)


def test_progress_is_a_bar_on_a_terminal_and_lines_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def kind(**options: Any) -> str:
        settings = Namespace(**{"callbacks": None, "enable_progress_bar": None, **options})
        return type(progress_callback(settings)).__name__

    assert kind() == "ProgressReport"
    assert kind(enable_progress_bar=False) == kind(callbacks=[TQDMProgressBar()]) == "NoneType"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setattr("rich._console", None, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert kind() == "RunProgressBar"
    monkeypatch.setattr("rich._console", None, raising=False)
    monkeypatch.setenv("TERM", "dumb")
    assert kind() == "ProgressReport"
    with pytest.raises(ValueError, match=r"progress_seconds must be at least 0, got -1"):
        ProgressReport(seconds=-1)
