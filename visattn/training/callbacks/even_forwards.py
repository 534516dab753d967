"""Callback that lets all processes run a sharded model equally often."""

from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer

from visattn.training.distributed.reduce import all_reduce_max

_ENDLESS = 2**31  # batches: more than any evaluation has


class EvenForwards(Callback):
    """Repeat the forward pass in processes that have fewer batches to evaluate than others.

    Each sample is evaluated once, so that the last batches are missing in some processes. With
    sharded weights a forward pass needs all processes. The results of repeated ones are dropped.
    """

    def __init__(self) -> None:
        self.missing = 0
        self.batch: Any = None

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare the numbers of batches."""
        checked = trainer.sanity_checking
        batches = trainer.num_sanity_val_batches if checked else trainer.num_val_batches
        self._compare(batches, pl_module.device)

    def on_test_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Compare the numbers of batches."""
        self._compare(trainer.num_test_batches, pl_module.device)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Keep the batch."""
        self.batch = batch

    on_test_batch_end = on_validation_batch_end

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Repeat the forward pass, before any metric is shared."""
        self._repeat(pl_module)

    on_test_epoch_end = on_validation_epoch_end

    def _compare(self, batches: list[int | float], device: torch.device) -> None:
        own = int(min(sum(batches), _ENDLESS))
        if own == _ENDLESS:
            raise ValueError("fsdp2 needs data of known size to evaluate, got a stream; use ddp")
        self.missing = all_reduce_max(own, device) - own

    def _repeat(self, pl_module: LightningModule) -> None:
        model: Any = pl_module.model
        for _ in range(self.missing):
            model(self.batch.images[:1])
        self.batch = None
