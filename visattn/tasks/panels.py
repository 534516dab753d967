"""Caption panels as pictures in the log, so that one sees attention being learnt."""

from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from visattn import seeing
from visattn.models.captioners import Captioner
from visattn.tasks.bases import Data, Task


class CaptionPanels(Callback):
    """Log a panel for the first validation pictures, each time the model is validated.

    It draws before the first batch, when averaged weights stand in for those that are trained: from
    the start of a validation to its end, whichever callback comes first in the config.

    Args:
        pictures: How many.
        width: Of a panel, in pixels.
    """

    def __init__(self, pictures: int = 4, width: int = 900) -> None:
        self.pictures, self.width = pictures, width

    def on_validation_batch_start(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Caption and draw, on the first process only."""
        if batch_idx or dataloader_idx:
            return
        if not trainer.is_global_zero or not isinstance(pl_module, Task):
            return
        boards = [log for log in trainer.loggers if isinstance(log, TensorBoardLogger)]
        if not boards or not isinstance(pl_module.model, Captioner):
            return
        data = trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, Data):
            return
        for index, picture in enumerate(data.examples(self.pictures)):
            (told,) = seeing.caption(pl_module.model, [picture])
            panel = torch.from_numpy(seeing.panel(picture, told, width=self.width))
            for board in boards:
                board.experiment.add_image(
                    f"captions/{index}", panel, trainer.global_step, dataformats="HWC"
                )
