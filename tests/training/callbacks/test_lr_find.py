"""Learning-rate range test: rates of all groups, the suggestion, `visattn fit --lr_find`."""

import csv
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning import LightningModule, Trainer
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from visattn.cli import main
from visattn.training.callbacks.lr_find import (
    TRAINER_OPTIONS,
    LearningRateSweep,
    suggest_learning_rate,
)


class TwoGroups(LightningModule):
    """The loss is the distance of two weights from 1; SGD moves each by its rate."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([torch.zeros(()), torch.zeros(())])

    def training_step(self, batch: object, batch_idx: int) -> torch.Tensor:
        return sum(1 - weight for weight in self.weights)  # type: ignore[return-value]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        groups = [
            {"params": [weight], "lr": 0.3 * mult}
            for weight, mult in zip(self.weights, (1.0, 0.1), strict=True)
        ]
        return torch.optim.SGD(groups, lr=0.3)


@pytest.mark.parametrize("accumulated", [1, 2])
def test_a_loss_stands_at_the_rate_of_the_step_before_it(accumulated: int) -> None:
    sweep = LearningRateSweep(37, 1e-3, 1e-1)
    trainer = Trainer(
        accelerator="cpu",
        callbacks=[sweep],
        accumulate_grad_batches=accumulated,
        max_steps=1000,
        **TRAINER_OPTIONS,
    )
    trainer.fit(TwoGroups(), DataLoader(TensorDataset(torch.zeros(12))))
    rates = np.geomspace(1e-3, 1e-1, 37)
    np.testing.assert_allclose(sweep.rates, rates)
    # Both weights move by their rate, the second one by a tenth.
    np.testing.assert_allclose(sweep.losses, 2 - 1.1 * rates.cumsum(), rtol=1e-5)


def test_the_suggestion_is_where_the_loss_falls_fastest_and_none_in_noise() -> None:
    rates = np.geomspace(1e-6, 10, 100)
    noise = 0.02 * np.random.default_rng(3).standard_normal(100)
    curve = 3 - np.tanh(2 * np.log10(rates / 2e-3)) + 1e3 * rates**2
    suggestion = suggest_learning_rate(rates, curve + noise).suggestion
    assert suggestion == pytest.approx(2e-3, rel=0.5)
    assert suggest_learning_rate(rates, 3 + noise).suggestion is None
    assert suggest_learning_rate(rates, 3 + noise + rates).suggestion is None
    with pytest.raises(
        ValueError, match="not finite after 20 steps, at a learning rate of 2.2e-05"
    ):
        suggest_learning_rate(rates, np.where(np.arange(100) < 20, 1.0, np.nan))


def test_the_command_writes_a_curve_and_leaves_the_folder_to_a_run(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "mine"
    fit = ["fit", "--config", str(tiny), "--run", str(run)]
    assert main([*fit, "--lr_find"]) == 1
    assert "needs a run of at least 31 steps, this one has 4" in capsys.readouterr().err
    longer = ["--trainer.max_steps", "41", "--trainer.max_epochs", "41"]
    assert main([*fit, "--lr_find", *longer]) == 0
    assert str(run / "lr_find.csv") in capsys.readouterr().out
    assert {path.name for path in run.iterdir()} == {".lock", "lr_find.csv", "lr_find.png"}
    rows = list(csv.DictReader((run / "lr_find.csv").read_text().splitlines()))
    assert len(rows) == 40
    assert float(rows[0]["lr"]) == 1e-6
    assert len(Image.open(run / "lr_find.png").convert("RGB").getcolors(10**6) or []) > 20
    assert main([*fit, "--dry-run"]) == 0
    assert main([*fit, "--dry-run", "--lr_find"]) == 2
    assert main([*fit, "--lr_find", "--ckpt_path", "last"]) == 1
    assert "leave out --ckpt_path" in capsys.readouterr().err
