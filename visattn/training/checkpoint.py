"""Checkpoints: atomic writes, safe loading, and states from which a run resumes exactly."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer
from lightning.fabric.plugins import TorchCheckpointIO
from torch import Tensor

from visattn.io.atomic import atomic_replace
from visattn.io.messages import format_names
from visattn.models.weights import read_torch


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write checkpoints atomically, and load only tensors and plain values.

    Lightning writes a checkpoint elsewhere and then moves it. If the move is to another disk that
    is full, a partial file gets the final name.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None
    ) -> None:
        """Write a checkpoint and atomically replace an older one.

        Raises:
            OSError: If it cannot be written.
        """
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_replace(target) as part, part.open("wb") as file:
            torch.save(checkpoint, file)

    def load_checkpoint(
        self, path: Any, map_location: Any = "cpu", weights_only: bool | None = None
    ) -> dict[str, Any]:
        """Return the content of a checkpoint, always with `weights_only=True`."""
        return super().load_checkpoint(path, map_location=map_location, weights_only=True)


def read_checkpoint(path: Any) -> dict[str, Any]:
    """Return the plain values and weights in a checkpoint; nothing in it is executed.

    Raises:
        ValueError: If the file is damaged, or is not a checkpoint of visattn.
    """
    checkpoint = read_torch(Path(path))
    described = checkpoint.get("visattn") if isinstance(checkpoint, dict) else None
    if not (isinstance(described, dict) and "state_dict" in checkpoint):
        raise ValueError(f"{path} is not a checkpoint of visattn; `visattn fit` writes them")
    return checkpoint


def normalize_loop_state(loops: dict[str, Any], trainer: Trainer) -> None:
    """Correct the saved state of the training loops, `fit_loop`, where Lightning resumes wrongly.

    Lightning counts what is ready, started, processed and completed, and infers from the
    differences in which hook a checkpoint was written. It skips a validation after a batch,
    continues within one whose metrics are not saved, and misses the end of an epoch with
    `max_steps`.
    """
    epoch, batch = loops["epoch_progress"], loops["epoch_loop.batch_progress"]
    validation = loops["epoch_loop.val_loop.batch_progress"]
    due = trainer.validating and not validation["is_last_batch"]
    if batch["current"]["completed"] < batch["current"]["processed"]:  # saved in a hook at its end
        for span in ("total", "current"):
            batch[span]["completed"] = batch[span]["processed"]
        loop = trainer.fit_loop
        due = loop.epoch_loop._should_check_val_fx(loop._data_fetcher)  # type: ignore[arg-type] # noqa: SLF001
        if batch["is_last_batch"] and not due:
            for span in ("total", "current"):
                epoch[span]["processed"] += 1
    ended = epoch["current"]["processed"] == epoch["current"]["ready"]
    if ended and batch["is_last_batch"]:
        # With `max_steps`, Lightning treats the next epoch as a resumed one and keeps these counts.
        steps = loops["epoch_loop.automatic_optimization.optim_progress"]["optimizer"].values()
        for progress in (batch, loops["epoch_loop.scheduler_progress"], *steps):
            progress["current"] = dict.fromkeys(progress["current"], 0)
        batch["is_last_batch"] = False
        for span in ("total", "current"):
            epoch[span]["completed"] = epoch[span]["processed"]
    elif ended:  # remaining batches, which a run resumed with a later end has to read
        for span in ("total", "current"):
            epoch[span]["processed"] -= 1
            epoch[span]["completed"] = epoch[span]["processed"]
    elif due:  # restart from its first batch
        done = validation["total"]["completed"] - validation["current"]["completed"]
        validation["total"] = {"ready": done + 1, "started": done + 1}
        validation["total"] |= {"processed": done, "completed": done}
        validation["current"] = dict.fromkeys(validation["current"], 0)


def check_weights_before_saving(state: Mapping[str, Tensor], parameters: Collection[str]) -> None:
    """Raise an error before non-finite weights are saved, so that earlier checkpoints are kept.

    Args:
        state: Weights and buffers by name.
        parameters: Names of the parameters. Buffers, such as attention masks, may be infinite,
            except running statistics.

    Raises:
        FloatingPointError: If a tensor has NaN, or a parameter has infinity.
    """
    names = [
        name
        for name, tensor in state.items()
        if not tensor.isfinite().all()
        and (name in parameters or "running_" in name or bool(tensor.isnan().any()))
    ]
    if names:
        raise FloatingPointError(
            f"{format_names(names, 5)} {'is' if len(names) == 1 else 'are'} not finite, so nothing "
            "is saved, and earlier checkpoints are kept. Lower the learning rate, or clip "
            "gradients (--trainer.gradient_clip_val)"
        )
