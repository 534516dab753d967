"""EMA: its update, frozen weights, and panels with averaged weights."""

import copy
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

from visattn.training.callbacks import logging
from visattn.training.callbacks.ema import EMA
from visattn.training.data_module import DataModule
from visattn.training.optim import OptimConfig
from visattn.training.task import Task


class Falling(Task):
    """One weight that falls by one in each step."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(1, 1, bias=False))

    def training_step(self, batch: Tensor, batch_idx: int) -> Tensor:
        return self.model(torch.ones(1, 1)).sum()

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        pass

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


class Blank(DataModule):
    """A black image, and a few batches of nothing."""

    @property
    def data_info(self) -> dict[str, Any]:
        return {}

    def open_dataset(self, split: str) -> Tensor:
        return torch.zeros(3)

    def examples(self, count: int) -> list[np.ndarray]:
        return [np.zeros((5, 7, 3), np.uint8)]

    def train_dataloader(self) -> DataLoader[Tensor]:
        return DataLoader(torch.zeros(3))  # pyright: ignore[reportArgumentType]

    def val_dataloader(self) -> DataLoader[Tensor]:
        return DataLoader(torch.zeros(2))  # pyright: ignore[reportArgumentType]


class Mixed(LightningModule):
    """Weights of two dtypes, one frozen; statistics; a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.trained = nn.Parameter(torch.zeros(3))
        self.wide = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.frozen = nn.Parameter(torch.randn(1000), requires_grad=False)
        self.register_buffer("running_mean", torch.zeros(2))
        self.register_buffer("steps", torch.tensor(0))

    def step(self, amount: int = 1) -> None:
        """Add to all that changes in training."""
        changing: Any = (self.trained, self.wide, self.running_mean, self.steps)
        for tensor in changing:
            tensor.detach().add_(amount)


def average_of(model: Any, callback: EMA) -> AveragedModel:
    """Return the averaged copy that the callback updates."""
    trainer: Any = SimpleNamespace(strategy=SimpleNamespace(root_device=torch.device("cpu")))
    callback.setup(trainer, model, "fit")
    assert callback._average_model is not None
    return callback._average_model


def test_a_model_of_mixed_tensors_is_averaged_tensor_by_tensor() -> None:
    model = Mixed()
    average = average_of(model, EMA(0.5, use_warmup=False))
    for _ in range(3):
        model.step()
        average.update_parameters(model)
    copied: Any = average.module
    for name in ("trained", "wide", "running_mean"):  # 1, then (1 + 2) / 2, then (1.5 + 3) / 2
        assert getattr(copied, name).tolist() == [2.25] * getattr(model, name).numel(), name
    assert int(copied.steps) == 3


def test_the_decay_is_warmed_up() -> None:
    model = Mixed()
    average = average_of(model, EMA(0.998))
    expected = 0.0
    for number in range(40):
        model.step()
        average.update_parameters(model)
        decay = min(0.998, (1 + number) / (10 + number)) if number else 0.0
        expected = decay * expected + (1 - decay) * (number + 1)
    assert average.module.get_parameter("wide").tolist() == pytest.approx([expected] * 2)


def test_frozen_weights_stay_bit_identical() -> None:
    model = Mixed()
    average = average_of(model, EMA(0.998))
    for _ in range(300):
        average.update_parameters(model)
    assert torch.equal(average.module.get_parameter("frozen"), model.frozen)


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_that_averages_nothing_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match="decay must be"):
        EMA(decay)


def test_deepcopy_of_a_task_shares_its_optimizer() -> None:
    """What the command line makes of an optimizer leads to the processes that it started."""
    task = Falling()
    task.trainer = SimpleNamespace(lock=threading.Lock())  # type: ignore[assignment]
    task.optim = OptimConfig(partial(torch.optim.SGD, foreach=task.trainer))  # type: ignore[arg-type]
    task.data = Blank()
    copied = copy.deepcopy(task)
    assert copied.optim is task.optim
    assert copied.data is task.data
    assert copied._trainer is None
    assert copied.model.get_parameter("weight") is not task.model.get_parameter("weight")
    assert torch.equal(copied.state_dict()["model.weight"], task.state_dict()["model.weight"])


@pytest.mark.parametrize("averaged_first", [False, True])
@pytest.mark.parametrize("drawing", [logging.CropPanels, logging.CaptionPanels])
def test_panels_show_averaged_weights_in_any_callback_order(
    drawing: type[Callback], averaged_first: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drawn: list[float] = []

    def draw(model: nn.Linear, *_: object, **__: object) -> np.ndarray:
        drawn.append(model.weight.item())
        return np.zeros((3, 5, 3), np.uint8)

    stub = SimpleNamespace(
        caption=lambda *args: [draw(*args)],
        caption_figure=lambda *args, width: SimpleNamespace(image=args[1]),
    )
    monkeypatch.setattr(logging, "ImageClassifier", nn.Linear)
    monkeypatch.setattr(logging, "draw_crops", draw)
    monkeypatch.setattr(logging, "Captioner", nn.Linear)
    monkeypatch.setattr(logging, "pipelines", stub)
    monkeypatch.setattr(logging, "viz", stub)
    task, callbacks = Falling(), [drawing(), EMA(0.998)]
    start = task.model.get_parameter("weight").item()
    trainer = Trainer(
        accelerator="cpu",
        max_epochs=2,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        logger=TensorBoardLogger(tmp_path),
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks[::-1] if averaged_first else callbacks,
    )
    trainer.fit(task, datamodule=Blank())
    assert len(drawn) == 2  # once in each validation
    assert drawn[-1] == task.model.get_parameter("weight").item()  # training leaves it averaged
    assert drawn[-1] - (start - 6) > 0.05
