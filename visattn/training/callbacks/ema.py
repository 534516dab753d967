"""Weights averaged over the last steps: what is validated, kept and exported."""

from functools import partial

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor


class EMA(WeightAveraging):
    """Keep a moving average of the weights beside those that are trained.

    It validates better than the weights of any one step. Unlike Lightning's own moving average, it
    follows quickly at first, and what is frozen stays as it is to the last bit: features that were
    kept remain those of the model.

    Args:
        decay: Share of the average that outlives a step; about `1 / (1 - decay)` steps count.

    Raises:
        ValueError: If decay is not between 0 and 1.
    """

    def __init__(self, decay: float = 0.998) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got {decay}")
        super().__init__(avg_fn=partial(moved_average, decay=decay))
        self.decay = decay
        self._shown = False

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let the averaged weights be seen."""
        super().on_validation_epoch_start(trainer, pl_module)
        self._shown = True

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on with those that are trained."""
        super().on_validation_epoch_end(trainer, pl_module)
        self._shown = False

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Put back the weights that are trained, for what is saved of a run that was stopped."""
        if self._shown:
            self.on_validation_epoch_end(trainer, pl_module)


def moved_average(average: Tensor, current: Tensor, updates: Tensor | int, decay: float) -> Tensor:
    """Return an average after one more step.

    Args:
        average: So far.
        current: The weights of the step.
        updates: How many steps came before; the first ones count more.
        decay: Share that outlives a step, once there were many.

    Example:
        >>> float(moved_average(torch.tensor(0.0), torch.tensor(1.0), 10**6, decay=0.75))
        0.25
    """
    if not average.is_floating_point():
        return current
    kept = min(decay, (1 + float(updates)) / (10 + float(updates)))
    return torch.lerp(average, current, 1 - kept)  # of equal values, exactly these
