"""What each process of a run saw, written down for a test to read."""

import json
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback


class RunDiary(Callback):
    """Write the losses, the samples and the scores that a process saw to RUN/diary/RANK.json.

    Samples are the labels of labeled images, and the names of images with captions.
    """

    def __init__(self) -> None:
        self.told: dict[str, list[Any]] = {"loss": [], "trained": [], "validated": [], "scores": []}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        data.evaluated_at_once = 5  # so that two processes need other numbers of batches for 11

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.told["loss"].append(float(outputs["loss"]))
        self.told["trained"].append(_seen(batch))

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self.told["validated"].append(_seen(batch))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        named = trainer.callback_metrics.items()
        self.told["scores"].append({name: float(score) for name, score in named if "val/" in name})

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = Path(trainer.default_root_dir) / "diary"
        folder.mkdir(parents=True, exist_ok=True)
        trained = [one.detach().double().flatten() for one in pl_module.parameters()]
        weights = {
            "sum": float(torch.cat(trained).sum()),
            "squares": float(torch.cat(trained).square().sum()),
        }
        told = {**self.told, "weights": weights, "seed": torch.initial_seed()}
        (folder / f"{trainer.global_rank}.json").write_text(json.dumps(told))


def _seen(batch: Any) -> list[Any]:
    labels = getattr(batch, "labels", None)
    return [one.id for one in batch.samples] if labels is None else labels.tolist()
