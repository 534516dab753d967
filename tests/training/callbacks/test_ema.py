"""EMA: closed form, frozen weights, and panels with averaged weights."""

import copy
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from lightning import Callback, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_avg_fn
from torch.utils.data import DataLoader

from visattn.training.callbacks import logging
from visattn.training.callbacks.ema import EMA, AveragedWeights, ema_decay, ema_update
from visattn.training.data_module import DataModule
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


def averaged(average: Tensor, value: Tensor, decay: float) -> Tensor:
    """Return the average after a step, computed by the callback's update."""
    average = average.clone()
    ema_update([(average, value)], decay)
    return average


def test_late_steps_match_the_closed_form() -> None:
    weights = torch.randn(7, dtype=torch.float64)
    average = weights[0].clone()
    for number, weight in enumerate(weights[1:]):
        average = averaged(average, weight, ema_decay(10_000 + number, decay=0.75))
    shares = torch.tensor([0.75**6, *(0.25 * 0.75 ** (6 - i) for i in range(1, 7))])
    torch.testing.assert_close(average, (weights * shares).sum(), check_dtype=False)


def test_the_decay_is_warmed_up() -> None:
    average = averaged(torch.tensor(0.0), torch.tensor(1.0), ema_decay(1, decay=0.998))
    assert float(average) > 0.8


def test_without_warmup_it_is_the_average_of_torch() -> None:
    averages, weights = torch.randn(2, 101)
    expected = get_ema_avg_fn(0.7)(averages, weights, 1)
    torch.testing.assert_close(averaged(averages, weights, decay=0.7), expected)


def test_constant_weights_stay_bit_identical() -> None:
    weights = torch.randn(1000)
    average = weights.clone()
    for step in range(300):
        average = averaged(average, weights, ema_decay(step, decay=0.998))
    assert torch.equal(average, weights)


def test_integer_buffers_are_copied() -> None:
    assert int(averaged(torch.tensor(3), torch.tensor(5), decay=0.9)) == 5


class Mixed(nn.Module):
    """Weights of two dtypes, one frozen; a mask with infinities; statistics; a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.trained = nn.Parameter(torch.zeros(3))
        self.wide = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        self.register_buffer("running_mean", torch.zeros(2))
        self.register_buffer("steps", torch.tensor(0))

    def step(self) -> None:
        """Add one to all that changes in training."""
        changing: Any = (self.trained, self.wide, self.running_mean, self.steps)
        for tensor in changing:
            tensor.detach().add_(1)


def test_a_model_of_mixed_tensors_is_averaged_tensor_by_tensor() -> None:
    model = Mixed()
    average = AveragedWeights(model, decay=0.5, use_warmup=False)
    for _ in range(3):
        model.step()
        average.update_parameters(model)
    copied: Any = average.module
    for name in ("trained", "wide", "running_mean"):  # 1, then (1 + 2) / 2, then (1.5 + 3) / 2
        assert getattr(copied, name).tolist() == [2.25] * getattr(model, name).numel(), name
    assert int(copied.steps) == 3
    state = model.state_dict()
    assert torch.equal(copied.mask, state["mask"])
    assert torch.equal(copied.frozen, model.frozen)


def test_a_weight_that_is_frozen_later_is_still_averaged() -> None:
    model = Mixed()
    average = AveragedWeights(model, decay=0.5, use_warmup=False)
    average.update_parameters(model)
    model.step()
    model.trained.requires_grad = False
    model.frozen.requires_grad = True
    model.frozen.detach().add_(1)
    for _ in range(40):
        average.update_parameters(model)
    torch.testing.assert_close(average.module.trained, model.trained, check_dtype=False)
    torch.testing.assert_close(average.module.frozen, model.frozen)


def test_a_shared_weight_is_averaged_once_and_modules_are_walked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first = nn.Linear(3, 3)
    model = nn.Sequential(first, nn.Sequential(first), nn.BatchNorm1d(3))
    average = AveragedWeights(model, decay=0.5, use_warmup=False)
    average.update_parameters(model)
    start = first.weight.detach().clone()
    first.weight.detach().add_(1)
    monkeypatch.setattr(nn.Module, "named_modules", None)
    average.update_parameters(model)
    copied: Any = average.module
    torch.testing.assert_close(copied[0].weight, start + 0.5)


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_that_averages_nothing_is_refused(decay: float) -> None:
    with pytest.raises(ValueError, match="decay must be"):
        EMA(decay)


def test_deepcopy_of_a_task_shares_its_optimizer() -> None:
    """What the command line makes of an optimizer leads to the processes that it started."""
    task = Falling()
    task.trainer = SimpleNamespace(lock=threading.Lock())  # type: ignore[assignment]
    task.optimizer = partial(torch.optim.SGD, foreach=task.trainer)  # type: ignore[assignment]
    task.notes = {"seen": [3]}  # type: ignore[assignment]
    copied = copy.deepcopy(task)
    assert copied.optimizer is task.optimizer
    assert copied.notes == task.notes
    assert copied.notes is not task.notes
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
