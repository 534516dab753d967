"""Callback that writes `last.ckpt` and ends a run on a signal."""

import time
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from lightning.pytorch.utilities import rank_zero_info
from torch import distributed

from visattn.io.atomic import remove_partial_files
from visattn.training.callbacks.signals import GracefulExit, SignalHandler
from visattn.training.checkpoint.loop_state import is_accumulation_complete, validates_after_batch

_DUE = 1  # below the number of any signal that may come


class LastCheckpoint(Checkpoint):
    """Write the newest state of a run to `last.ckpt`, and end the run on SIGTERM or Ctrl-C.

    It is written after each validation, at the end of an epoch without one, after the last step,
    at the given intervals, and before the run ends on a signal. Resuming from it is bit-exact.

    Args:
        folder: Directory of `last.ckpt`.
        steps: Also write after every `steps` steps; 0 for never.
        minutes: Also write `minutes` minutes after the last write; 0 for never.

    Raises:
        ValueError: If a number is negative.
    """

    def __init__(self, folder: Path, *, steps: int = 0, minutes: float = 10.0) -> None:
        if steps < 0 or not minutes >= 0:
            raise ValueError(f"steps and minutes must be at least 0, got {steps} and {minutes}")
        self.file, self.steps, self.minutes = folder / "last.ckpt", steps, minutes
        self.watch = SignalHandler()
        self._written, self._time = -1, 0.0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remove the temporary files of a run that was killed."""
        if stage == "fit" and trainer.is_global_zero:
            remove_partial_files(self.file.parent)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Record whether early stopping ended the run."""
        checkpoint["ended_early"] = trainer.should_stop and _may_stop(trainer)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Do not continue a run that early stopping ended."""
        if trainer.state.fn == "fit" and checkpoint.get("ended_early"):
            trainer.should_stop = _may_stop(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Install the signal handler and start the clock.

        Raises:
            ValueError: If processes begin at different steps.
        """
        first = trainer.strategy.broadcast(trainer.global_step)
        if first != trainer.global_step:
            raise ValueError(
                f"rank {trainer.global_rank} starts at step {trainer.global_step}, rank 0 at "
                f"{first}: all processes must have the same run folder"
            )
        self._written, self._time = trainer.fit_loop.total_batch_idx, time.monotonic()
        self.watch.install()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write the state at the intervals and on a signal.

        Raises:
            GracefulExit: On a signal.
        """
        signal = self._agreed(trainer)
        if not is_accumulation_complete(trainer):
            return
        if signal > _DUE:
            self._save(trainer)
            raise GracefulExit(signal)
        due = self.steps and trainer.global_step % self.steps == 0
        final = trainer.global_step == trainer.max_steps
        last = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        if (signal or due or final) and not last and not validates_after_batch(trainer):
            self._save(trainer)

    def on_validation_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        """End a single-process run on a signal; several processes finish the validation first.

        Raises:
            GracefulExit: On a signal; a resumed run repeats the validation.
        """
        if self.watch.received and trainer.world_size == 1:
            raise GracefulExit(self.watch.received)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the state after a validation."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the state after an epoch without a validation at its end."""
        if self._written != trainer.fit_loop.total_batch_idx:
            self._save(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Restore the signal handlers."""
        self.watch.restore()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Write the state of a run that was stopped; after an error the older one stays."""
        self.watch.restore()
        if isinstance(exception, GracefulExit):
            if self._written != trainer.fit_loop.total_batch_idx:
                self._save(trainer)
            rank_zero_info(
                f"stopped by {exception} after step {trainer.global_step}; to resume, rerun the "
                f"command with --ckpt_path last and --run {self.file.parent.parent}"
            )

    def _agreed(self, trainer: Trainer) -> int:
        """Return the signal that any process received, or `_DUE` if a write is due for any."""
        due = self.minutes and time.monotonic() - self._time >= 60 * self.minutes
        local = self.watch.received or (_DUE if due else 0)
        if trainer.world_size == 1:
            return local
        shared = torch.tensor(local, device=trainer.strategy.root_device)
        distributed.all_reduce(shared, distributed.ReduceOp.MAX)
        return int(shared)

    def _save(self, trainer: Trainer) -> None:
        if not getattr(trainer, "fast_dev_run", False):
            trainer.save_checkpoint(self.file, weights_only=False)
        self._written, self._time = trainer.fit_loop.total_batch_idx, time.monotonic()


def _may_stop(trainer: Trainer) -> bool:
    """Return whether the run has an early-stopping callback."""
    return any(isinstance(callback, EarlyStopping) for callback in trainer.callbacks)  # type: ignore[attr-defined]
