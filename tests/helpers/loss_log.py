"""Callback that keeps the loss of every training step."""

from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

LOSSES: list[float] = []


class LossLog(Callback):
    """Append the loss of each step to `LOSSES`, and end the run after the last of them."""

    def __init__(self, last: int) -> None:
        self.last = last

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        LOSSES.append(float(outputs["loss"]))
        trainer.should_stop = len(LOSSES) >= self.last
