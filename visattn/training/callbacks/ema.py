"""Exponential moving average of the weights, used for validation, checkpoints and export."""

from functools import partial

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor


class EMA(WeightAveraging):
    """Exponential moving average of the weights.

    Unlike with Lightning's `EMAWeightAveraging`, frozen weights stay bit-identical, so that cached
    features remain valid, and a run that is stopped during validation saves its trained weights.

    Args:
        decay: Decay per step; the average covers about `1 / (1 - decay)` steps.
        use_warmup: Whether the decay is lower in the first steps, at most `(1 + n) / (10 + n)`
            after n steps. Without, it is constant, as in Lightning.

    Raises:
        ValueError: If decay is not between 0 and 1.
    """

    def __init__(self, decay: float = 0.998, *, use_warmup: bool = True) -> None:
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and below 1, got {decay}")
        super().__init__(avg_fn=partial(ema_update, decay=decay, use_warmup=use_warmup))
        self.decay = decay
        self._swapped = False

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Swap in the averaged weights."""
        super().on_validation_epoch_start(trainer, pl_module)
        self._swapped = True

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Swap back the trained weights."""
        super().on_validation_epoch_end(trainer, pl_module)
        self._swapped = False

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Swap back the trained weights, for the checkpoint of a run that is stopped."""
        if self._swapped:
            self.on_validation_epoch_end(trainer, pl_module)


def ema_update(
    average: Tensor,
    current: Tensor,
    updates: Tensor | int,
    decay: float,
    *,
    use_warmup: bool = True,
) -> Tensor:
    """Return the moving average after one more step.

    Args:
        average: Current average.
        current: Weights after the step.
        updates: Number of earlier steps.
        decay: Largest decay.
        use_warmup: Whether the decay is at most `(1 + updates) / (10 + updates)`.

    Example:
        >>> float(ema_update(torch.tensor(0.0), torch.tensor(1.0), 10**6, decay=0.75))
        0.25
    """
    if not average.is_floating_point():
        return current
    if use_warmup:
        decay = min(decay, (1 + float(updates)) / (10 + float(updates)))
    return torch.lerp(average, current, 1 - decay)  # exact for equal values
