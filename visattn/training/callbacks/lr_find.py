"""Learning-rate range test of `visattn fit --lr_find`."""

import io
import math
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from jaxtyping import Float
from lightning import Callback, LightningModule, Trainer
from scipy.signal import savgol_filter

from visattn.io.atomic import atomic_write
from visattn.training.distributed.fsdp import FSDP2Strategy
from visattn.training.run_dir import LR_FIND_FILES

TRAINER_OPTIONS = {
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "limit_val_batches": 0,
    "num_sanity_val_steps": 0,
    "min_steps": None,
    "min_epochs": None,
}
"""Options of a trainer whose only callback is `LearningRateSweep`."""
_WINDOW = 15  # steps of a local fit, about a factor of 10 of the learning rate
_FEWEST = 2 * _WINDOW


class LearningRateSweep(Callback):
    """Train with learning rates that grow exponentially, and keep the loss after each step.

    The rate of the optimizer grows; groups of parameters keep their multiples of it. The trainer
    keeps the length of the run, on which a task may depend, and is stopped after the last rate, or
    when the loss diverges.

    Args:
        steps: Number of rates, at most the steps of the run.
        min_lr: The first rate.
        max_lr: The last one.

    Source:
        Smith 2017, arXiv:1506.01186, section 3.3.
    """

    def __init__(self, steps: int = 100, min_lr: float = 1e-6, max_lr: float = 10.0) -> None:
        self.steps = steps
        self.range = min_lr, max_lr
        self.rates: list[float] = []
        self.losses: list[float] = []
        """The loss of the batch after the step at each rate."""
        self._mults: list[float] = []
        self._done = 0
        self._batches: list[float] = []

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check that a sweep is possible, and read the multiples of the groups.

        Raises:
            ValueError: With what the sweep needs.
        """
        if not pl_module.automatic_optimization or len(trainer.optimizers) != 1:
            raise ValueError("--lr_find needs a task with one optimizer that Lightning steps")
        if trainer.world_size > 1 or isinstance(trainer.strategy, FSDP2Strategy):
            raise ValueError(
                "--lr_find runs in one process; add --trainer.devices 1 --trainer.strategy auto"
            )
        planned = trainer.estimated_stepping_batches
        self.steps = int(min(self.steps, planned - 1))
        if self.steps < _FEWEST:
            raise ValueError(
                f"--lr_find needs a run of at least {_FEWEST + 1} steps, this one has {planned}; "
                "raise trainer.max_steps or trainer.max_epochs"
            )
        optimizer = trainer.optimizers[0]
        groups = optimizer.param_groups
        largest = max(group.get("initial_lr", group["lr"]) for group in groups)
        if not largest:
            raise ValueError("--lr_find needs a learning rate above 0, to know those of the parts")
        base = optimizer.defaults.get("lr") or largest
        self._mults = [group.get("initial_lr", group["lr"]) / base for group in groups]

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Set the rates of the coming step, in place of those of the schedule."""
        for group, mult in zip(trainer.optimizers[0].param_groups, self._mults, strict=True):
            group["lr"] = self._rate(trainer.global_step) * mult

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep the loss with the rate of the step before; stop after the last rate."""
        # Lightning divides by the batches of a step, of which the end of an epoch may have fewer.
        self._batches.append(float(outputs["loss"]) * trainer.accumulate_grad_batches)
        if trainer.global_step == self._done:
            return  # batches accumulate
        # The loss of the first batch is that of the initial weights, no rate's.
        if self._done:
            self.rates.append(self._rate(self._done - 1))
            self.losses.append(fmean(self._batches))
        self._done = trainer.global_step
        self._batches.clear()
        trainer.should_stop = len(self.rates) == self.steps or self._diverged()

    def _rate(self, step: int) -> float:
        low, high = self.range
        return low * (high / low) ** (step / (self.steps - 1))

    def _diverged(self) -> bool:
        if not self.losses or not math.isfinite(self.losses[-1]):
            return bool(self.losses)
        return len(self.losses) > 10 and min(self.losses[-5:]) > 4 * max(map(abs, self.losses[:5]))

    def result(self) -> "LearningRates":
        """Return the losses with the suggested rate."""
        return suggest_learning_rate(np.array(self.rates), np.array(self.losses))


@dataclass(frozen=True, eq=False)
class LearningRates:
    """Losses at growing learning rates, and the rate at which the loss falls fastest."""

    rates: Float[np.ndarray, " n"]
    losses: Float[np.ndarray, " n"]
    smoothed: Float[np.ndarray, " n"]
    suggestion: float | None
    """None if the loss falls by no more than its noise."""

    def write(self, folder: Path) -> None:
        """Write `lr_find.csv` and `lr_find.png`."""
        columns = zip(self.rates, self.losses, self.smoothed, strict=True)
        rows = "".join(f"{rate:.6g},{loss:.6g},{mean:.6g}\n" for rate, loss, mean in columns)
        atomic_write(folder / LR_FIND_FILES[0], f"lr,loss,smoothed_loss\n{rows}")
        atomic_write(folder / LR_FIND_FILES[1], self._plot())

    def _plot(self) -> bytes:
        from matplotlib.figure import Figure

        figure = Figure((7, 4.2), layout="constrained")
        axes = figure.add_subplot(
            xscale="log", xlabel="learning rate of the step before", ylabel="training loss"
        )
        axes.plot(self.rates, self.losses, color="0.75", label="each step")
        axes.plot(self.rates, self.smoothed, color="tab:blue", label="smoothed")
        if self.suggestion:
            label = f"falls fastest: {self.suggestion:.1e}"
            axes.axvline(self.suggestion, color="tab:red", linestyle="--", label=label)
        low, high = self.smoothed.min(), max(self.losses[:_WINDOW].max(), self.smoothed[0])
        margin = (high - low) or 1.0
        axes.set_ylim(low - 0.2 * margin, high + 0.4 * margin)  # a loss that diverges leaves it
        axes.legend(loc="lower left")
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", dpi=120)
        return buffer.getvalue()


def suggest_learning_rate(
    rates: Float[np.ndarray, " n"], losses: Float[np.ndarray, " n"]
) -> LearningRates:
    """Return the rate of the steepest fall of the smoothed loss over the logarithm of the rate.

    Smoothed values and slopes are those of a line fitted to the 15 losses around each rate, so that
    the curve is not shifted to larger rates, as a running mean would. Rates behind the lowest loss
    are not suggested.

    Args:
        rates: In geometric progression.
        losses: The loss after a step at each of them.

    Raises:
        ValueError: If there are too few finite losses.

    Example:
        >>> rates = np.geomspace(1e-6, 10, 100)
        >>> losses = 2 - np.tanh(np.log10(rates) + 3) + 50 * rates
        >>> round(suggest_learning_rate(rates, losses).suggestion, 3)
        0.001
    """
    finite = int(np.isfinite(losses).cumprod().sum())
    if finite < _FEWEST:
        raise ValueError(
            f"the loss was not finite after {finite} steps, at a learning rate of "
            f"{rates[finite - 1] if finite else rates[0]:.2g}; check the data and the loss"
        )
    rates, losses = rates[:finite], losses[:finite]
    start = losses[:_WINDOW]
    # What diverges counts as a little worse than the start: else it would blur what is beside it.
    capped = np.minimum(losses, start.max() + np.ptp(start) + (start.mean() - losses.min()))
    smoothed = np.asarray(savgol_filter(capped, _WINDOW, 1))
    slopes = np.asarray(savgol_filter(capped, _WINDOW, 1, deriv=1))
    lowest = int(smoothed.argmin())
    steepest = int(slopes[: lowest + 1].argmin())
    noise = float((capped - smoothed)[: lowest + 1].std())
    falls = smoothed[0] - smoothed[lowest] > noise
    suggestion = float(rates[steepest]) if falls and slopes[steepest] < 0 else None
    return LearningRates(rates, losses, smoothed, suggestion)
