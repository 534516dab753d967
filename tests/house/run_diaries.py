"""What each process of a run saw, written down for a test to read."""

import json
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback


class RunDiary(Callback):
    """Write the losses, the labels and the scores that a process saw to FOLDER/RANK.json.

    Args:
        folder: It is made if it is not there.
    """

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.told: dict[str, list[Any]] = {"loss": [], "trained": [], "validated": [], "scores": []}

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.told["loss"].append(float(outputs["loss"]))
        self.told["trained"].append(batch.labels.tolist())

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self.told["validated"].append(batch.labels.tolist())

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        named = trainer.callback_metrics.items()
        self.told["scores"].append({name: float(score) for name, score in named if "val/" in name})

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        weights = {name: value.tolist() for name, value in pl_module.state_dict().items()}
        told = {**self.told, "weights": weights, "seed": torch.initial_seed()}
        (self.folder / f"{trainer.global_rank}.json").write_text(json.dumps(told))
