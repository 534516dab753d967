"""Callback that logs losses, samples and scores of each rank for a test."""

import json
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback


class TrainingLog(Callback):
    """Write losses, samples and scores of a rank to RUN/diary/RANK.json.

    Samples are the labels of labeled images, and the names of images with captions.
    """

    def __init__(self) -> None:
        names = ("loss", "trained", "validated", "scores")
        self.records: dict[str, list[Any]] = {name: [] for name in names}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        data.eval_batch_size = 5  # so that two processes need different numbers of batches for 11

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self.records["loss"].append(float(outputs["loss"]))
        self.records["trained"].append(_sample_ids(batch))

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        self.records["validated"].append(_sample_ids(batch))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        metrics = trainer.callback_metrics.items()
        scores = {name: float(score) for name, score in metrics if "val/" in name}
        self.records["scores"].append(scores)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        folder = Path(trainer.default_root_dir) / "diary"
        folder.mkdir(parents=True, exist_ok=True)
        trained = [weight.detach().double().flatten() for weight in pl_module.parameters()]
        weights = {
            "sum": float(torch.cat(trained).sum()),
            "squares": float(torch.cat(trained).square().sum()),
        }
        record = {**self.records, "weights": weights, "seed": torch.initial_seed()}
        (folder / f"{trainer.global_rank}.json").write_text(json.dumps(record))


def _sample_ids(batch: Any) -> list[Any]:
    labels = getattr(batch, "labels", None)
    return [sample.id for sample in batch.samples] if labels is None else labels.tolist()
