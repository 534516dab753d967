"""The newest state of a run, from which it goes on: when it is written."""

import time
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping
from lightning.pytorch.utilities import rank_zero_info
from torch import distributed

from visattn.io.atomic import remove_parts
from visattn.training.callbacks.signals import GracefulExit, SignalWatch
from visattn.training.checkpoint.loop_state import gathered, validates_next

_DUE = 1  # below the number of any signal that may come


class LastCheckpoint(Checkpoint):
    """Keep the newest state of a run as `last.ckpt`, and end the run when a signal asks for it.

    It is written after each validation, at the end of an epoch without one, after the last step,
    and in between as often as is asked for; and before the run ends by SIGTERM or Ctrl-C. From
    each of these a run goes on exactly.

    Args:
        folder: Where it is kept.
        steps: Write it after so many steps; 0 for never.
        minutes: Write it when so many minutes have gone by since it was written; 0 for never.

    Raises:
        ValueError: If a number is below 0.
    """

    def __init__(self, folder: Path, *, steps: int = 0, minutes: float = 10.0) -> None:
        if steps < 0 or not minutes >= 0:
            raise ValueError(f"steps and minutes must be at least 0, got {steps} and {minutes}")
        self.file, self.steps, self.minutes = folder / "last.ckpt", steps, minutes
        self.watch = SignalWatch()
        self._written, self._time = -1, 0.0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remove what a run that was killed left half written."""
        if stage == "fit" and trainer.is_global_zero:
            remove_parts(self.file.parent)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Remember whether the run had ended by itself, before its last epoch."""
        checkpoint["ended_early"] = trainer.should_stop and _may_stop(trainer)

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Let a run that had ended by itself be at its end."""
        if trainer.state.fn == "fit" and checkpoint.get("ended_early"):
            trainer.should_stop = _may_stop(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Begin to watch for signals and the time.

        Raises:
            ValueError: If processes begin at different steps.
        """
        first = trainer.strategy.broadcast(trainer.global_step)
        if first != trainer.global_step:
            raise ValueError(
                f"process {trainer.global_rank} begins at step {trainer.global_step}, the first "
                f"one at {first}: all must see the same folder of the run"
            )
        self._written, self._time = trainer.fit_loop.total_batch_idx, time.monotonic()
        self.watch.listen()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write the state if it is time to.

        Raises:
            Stopped: If a signal asked for it.
        """
        asked = self._agreed(trainer)
        if not gathered(trainer):
            return
        if asked > _DUE:
            self._save(trainer)
            raise GracefulExit(asked)
        turn = self.steps and trainer.global_step % self.steps == 0
        final = trainer.global_step == trainer.max_steps
        last = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        if (asked or turn or final) and not last and not validates_next(trainer):
            self._save(trainer)

    def on_validation_batch_end(self, trainer: Trainer, *_: Any, **__: Any) -> None:
        """End the run if a signal asked for it; several processes first finish their validation.

        Raises:
            Stopped: Of this, the validation is done again when the run goes on.
        """
        if self.watch.asked and trainer.world_size == 1:
            raise GracefulExit(self.watch.asked)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the state, with what the validation made of it."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._save(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the state after an epoch without a validation at its end."""
        if self._written != trainer.fit_loop.total_batch_idx:
            self._save(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let signals be: the run is at its end."""
        self.watch.rest()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Write the state of a run that was stopped; of one that failed the older one stays."""
        self.watch.rest()
        if isinstance(exception, GracefulExit):
            if self._written != trainer.fit_loop.total_batch_idx:
                self._save(trainer)
            rank_zero_info(
                f"stopped by {exception} after step {trainer.global_step}; the same command with "
                f"--ckpt_path last and --run {self.file.parent.parent} goes on from there"
            )

    def _agreed(self, trainer: Trainer) -> int:
        """Return the signal that any process got, or whether it is time for any to write."""
        due = self.minutes and time.monotonic() - self._time >= 60 * self.minutes
        mine = self.watch.asked or (_DUE if due else 0)
        if trainer.world_size == 1:
            return mine
        told = torch.tensor(mine, device=trainer.strategy.root_device)
        distributed.all_reduce(told, distributed.ReduceOp.MAX)
        return int(told)

    def _save(self, trainer: Trainer) -> None:
        if not getattr(trainer, "fast_dev_run", False):
            trainer.save_checkpoint(self.file, weights_only=False)
        self._written, self._time = trainer.fit_loop.total_batch_idx, time.monotonic()


def _may_stop(trainer: Trainer) -> bool:
    """Return whether something in the run ends it early by what the scores are."""
    return any(isinstance(one, EarlyStopping) for one in trainer.callbacks)  # type: ignore[attr-defined]
