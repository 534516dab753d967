"""Checkpoints: the monitored metric, the best one, and the last one."""

import time
from pathlib import Path
from typing import Any

import torch
from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import Checkpoint, EarlyStopping, ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import distributed

from visattn.io.atomic import remove_partial_files
from visattn.training.callbacks.guards import GracefulExit, SignalHandler
from visattn.training.checkpoint import (
    is_accumulation_complete,
    read_progress,
    read_recorded_score,
    validates_after_batch,
)
from visattn.training.run_dir import set_aside
from visattn.training.task import Task


def check_monitor(task: Task) -> None:
    """Refuse a monitored metric that validation does not log, if the task lists its metrics."""
    metric = task.monitor[0]
    logged = task.val_scores
    if logged and metric not in logged:
        raise ValueError(
            f"monitor must name a validation metric, got {metric!r}; with these data "
            f"{type(task).__name__} logs {', '.join(logged)}"
        )


class MonitorFallback(Callback):
    """Continue training without a best checkpoint if the task does not log the monitored metric.

    This happens with user-defined tasks, which do not list their metrics. Otherwise Lightning would
    end the run at the first validation, before a checkpoint is written.
    """

    def __init__(self, checkpoint: ModelCheckpoint) -> None:
        self.checkpoint = checkpoint

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check whether the metric was logged."""
        metric = self.checkpoint.monitor
        logged = trainer.callback_metrics
        if trainer.sanity_checking or metric in logged or not self.checkpoint.save_top_k:
            return
        self.checkpoint.save_top_k = 0
        rank_zero_warn(
            f"validation did not log {metric!r}, so there will be no best.ckpt; last.ckpt is "
            f"written. It logged {', '.join(sorted(logged)) or 'nothing'}"
        )


class BestCheckpoint(ModelCheckpoint):
    """Keep the state with the best score of a run as `best.ckpt`.

    When a run is resumed, the best score so far is read from the `best.ckpt` in its folder.
    Lightning's `ModelCheckpoint` takes it from an absolute path in the resumed checkpoint, and
    loses it if the folder was moved or copied.
    """

    def __init__(self, folder: Path, *, monitor: str, mode: str) -> None:
        super().__init__(
            folder,
            "best",
            monitor=monitor,
            mode=mode,
            enable_version_counter=False,
            save_on_train_epoch_end=False,
        )
        self.run = folder.parent
        self.file = Path(self.format_checkpoint_name({}))

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Ignore the saved state; `on_fit_start` reads `best.ckpt` instead."""

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Continue with the best checkpoint of a resumed run.

        A checkpoint that was selected by another metric is renamed and kept.
        """
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        # Rank 0 only, since the file may be renamed here.
        score = self._recorded_score() if trainer.is_global_zero else None
        score = trainer.strategy.broadcast(score)
        if score is not None:
            self.best_model_path = self.kth_best_model_path = str(self.file)
            self.best_model_score = self.kth_value = torch.tensor(score, device=pl_module.device)
            self.best_k_models = {str(self.file): self.best_model_score}

    def _recorded_score(self) -> float | None:
        """Return the score of the best checkpoint in the folder; None without one."""
        if not self.file.is_file():
            return None
        score = read_recorded_score(self.file, self.state_key)
        if score is None:
            set_aside([self.file], self.run, f".step-{read_progress(self.file).step}")
        return score


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
        self.file = folder / "last.ckpt"
        self.steps = steps
        self.minutes = minutes
        self.watch = SignalHandler()
        self._written = -1
        self._time = 0.0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Remove the temporary files of a run that was killed."""
        if stage == "fit" and trainer.is_global_zero:
            remove_partial_files(self.file.parent, older_than=0)

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
        """Install the signal handler and start the clock."""
        self._written = trainer.fit_loop.total_batch_idx
        self._time = time.monotonic()
        self.watch.install()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Write the state at the intervals and on a signal.

        Raises:
            GracefulExit: On a signal.
        """
        signal = self._agreed(trainer)
        # Gradients are not part of a checkpoint, so that a step is not divided.
        if not is_accumulation_complete(trainer):
            return
        if signal > _DUE:
            self._save(trainer)
            raise GracefulExit(signal)
        due = self.steps and trainer.global_step % self.steps == 0
        final = trainer.global_step == trainer.max_steps
        last = trainer.fit_loop.epoch_loop.batch_progress.is_last_batch
        # Before a validation and at the end of an epoch there is nothing to do: their hooks write.
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
            # A signal during training has written the state, one during a validation has not.
            # Lightning moves checkpoint callbacks to the end, so that `EMA` has put the trained
            # weights back by now.
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
        # A signal (2 or 15) outweighs a due write (1), in whichever process either occurs. Clocks
        # differ, and every process takes part in a write.
        shared = torch.tensor(local, device=trainer.strategy.root_device)
        distributed.all_reduce(shared, distributed.ReduceOp.MAX)
        return int(shared)

    def _save(self, trainer: Trainer) -> None:
        if not getattr(trainer, "fast_dev_run", False):
            trainer.save_checkpoint(self.file, weights_only=False)
        self._written = trainer.fit_loop.total_batch_idx
        self._time = time.monotonic()


def _may_stop(trainer: Trainer) -> bool:
    """Return whether the run has an early-stopping callback."""
    return any(isinstance(callback, EarlyStopping) for callback in trainer.callbacks)  # type: ignore[attr-defined]
