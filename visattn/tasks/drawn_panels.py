"""Pictures in the log each time a model is validated, whatever they show."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger
from torch import nn

from visattn.tasks.bases import Data, Task


class DrawnPanels(Callback, ABC):
    """Draw before the first validation batch, on the first process, where a log takes pictures.

    Then averaged weights stand in for those that are trained: from the start of a validation to its
    end, whichever callback comes first in the config.
    """

    @abstractmethod
    def panels(self, model: nn.Module, data: Data) -> Iterator[tuple[str, np.ndarray]]:
        """Give panels with their names in the log, RGB bytes; none for a model of another kind."""

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Draw."""
        first = trainer.is_global_zero and not batch_idx and not dataloader_idx
        data = trainer.datamodule  # type: ignore[attr-defined]
        boards = [log for log in trainer.loggers if isinstance(log, TensorBoardLogger)]
        if not (first and boards and isinstance(pl_module, Task) and isinstance(data, Data)):
            return
        for name, drawn in self.panels(pl_module.model, data):
            for board in boards:
                board.experiment.add_image(
                    name, torch.from_numpy(drawn), trainer.global_step, dataformats="HWC"
                )
