"""Exponential moving average of the weights, used for validation, checkpoints and export."""

# pyright: reportPrivateImportUsage=false

from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import WeightAveraging
from torch import Tensor


class EMA(WeightAveraging):
    """Exponential moving average of the weights.

    Unlike with Lightning's `EMAWeightAveraging`, the decay can warm up, frozen weights stay
    bit-identical, so that cached features remain valid, and a run that is stopped during validation
    saves its trained weights.

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
        super().__init__(multi_avg_fn=self._average)
        self.decay = decay
        self.use_warmup = use_warmup
        self._swapped = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Create the averaged copy of the model, where the model is going to be."""
        self._device = trainer.strategy.root_device
        super().setup(trainer, pl_module, stage)
        if self._average_model is not None:
            # In host memory, so that no step waits for a GPU.
            self._average_model.n_averaged = self._average_model.n_averaged.cpu()

    def _average(self, averages: list[Tensor], values: list[Tensor], _: Tensor) -> None:
        """Update averages of one dtype in place; integers are copied."""
        if not averages[0].is_floating_point():
            torch._foreach_copy_(averages, values)
            return
        model: Any = self._average_model
        updates = int(model.n_averaged)
        warmup = (1 + updates) / (10 + updates) if self.use_warmup else 1.0
        torch._foreach_lerp_(averages, values, 1 - min(self.decay, warmup))  # exact if equal

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
