"""Progress of a run as lines of text, for runs without a terminal."""

import math
import sys
import time
from collections.abc import Mapping
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar

from visattn.training.callbacks.pace import RunPace, clock, epoch_text, planned_steps, seconds_left

SECONDS = 30.0
"""Seconds between lines of progress, unless another number is given."""
_SHARE = 0.01  # of the run: long runs get about a hundred lines
_LONGEST = 600.0  # seconds between lines, however long the run


class ProgressReport(ProgressBar):
    """Progress as lines on stderr, for runs without a terminal (nohup, Slurm, CI).

    The first step is reported, the last one, and those between at an interval of `seconds`, or of
    1 % of the run if that is longer, up to ten minutes. Each validation gets a line with its
    scores, and lines in between if it takes longer than that.

    Args:
        seconds: Between lines; 0 reports each step.

    Raises:
        ValueError: If it is below 0.
    """

    def __init__(self, *, seconds: float = SECONDS) -> None:
        super().__init__()
        if not seconds >= 0:
            raise ValueError(f"progress_seconds must be at least 0, got {seconds}")
        self.seconds = seconds
        self._enabled = True
        self._pace = RunPace(first=0, total=math.inf)
        self._due, self._reported, self._saved = 0.0, 0, -1

    def disable(self) -> None:
        """Print nothing."""
        self._enabled = False

    def enable(self) -> None:
        """Print again."""
        self._enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say where the run starts, where it ends, and where its files are."""
        first, total = trainer.global_step, planned_steps(trainer)
        self._pace = RunPace(first=first, total=total)
        self._due, self._reported = 0.0, first
        resumed = f"resumed at step {first:,}" if first else "started"
        self._print(f"training {resumed}, {_count(total)} steps in all: {trainer.default_root_dir}")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Report a step, if it is time to."""
        step, now = trainer.global_step, time.monotonic()
        if step == self._reported or (now < self._due and step < self._pace.total):
            return
        left = seconds_left(trainer, self._pace)
        self._reported = step
        whole = self._pace.elapsed + left
        longest = max(self.seconds, _LONGEST)
        share = _SHARE * whole if math.isfinite(whole) else 0.0
        self._due = now + min(max(self.seconds, share), longest)
        self._print(", ".join(self._step_parts(trainer, step, left)))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say how long training took."""
        steps = trainer.global_step - self._pace.first
        self._print(f"training ended: {steps:,} steps in {clock(self._pace.elapsed)}")

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Remember the step of the newest checkpoint."""
        self._saved = trainer.global_step

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start to count the batches of a validation."""
        self._start_evaluation()

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Report a batch of validation, if it is time to."""
        if not trainer.sanity_checking:
            counts = trainer.num_val_batches
            self._report_batch("validation", batch_idx, dataloader_idx, counts)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report the scores of a validation within training."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        scores = _texts(trainer.callback_metrics, prefix="val/")
        after = f"validation after step {trainer.global_step:,}"
        self._print(f"{after}: {', '.join(scores) or 'no scores'}")

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start to count the batches of a test."""
        self._start_evaluation()

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Report a batch of the test, if it is time to."""
        self._report_batch("test", batch_idx, dataloader_idx, trainer.num_test_batches)

    def _start_evaluation(self) -> None:
        self._evaluated, self._evaluation_started = 0, time.monotonic()
        self._evaluation_due = self._evaluation_started + self.seconds

    def _report_batch(self, name: str, batch: int, loader: int, counts: list[int | float]) -> None:
        self._evaluated += 1
        now = time.monotonic()
        if now < self._evaluation_due:
            return
        self._evaluation_due = now + self.seconds
        total = sum(counts)
        elapsed = now - self._evaluation_started
        left = elapsed * (total - self._evaluated) / self._evaluated
        part = f" (data set {loader + 1} of {len(counts)})" if len(counts) > 1 else ""
        batches = f"batch {self._evaluated:,} of {_count(total)}{part}"
        self._print(f"{name}: {batches}, {clock(left)} left")

    def _step_parts(self, trainer: Trainer, step: int, left: float) -> list[str]:
        total = self._pace.total
        share = f" ({step / total:.0%})" if math.isfinite(total) and total else ""
        parts = [f"step {step:,} of {_count(total)}{share}"]
        parts += [epoch_text(trainer, trainer.current_epoch)]
        parts += _texts(trainer.progress_bar_metrics, without=("val/", "test/"))
        rates = [
            group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups
        ]
        if rates:
            least, most = min(rates), max(rates)
            parts += [f"learning rate {least:.3g}{f' to {most:.3g}' if most > least else ''}"]
        if math.isfinite(left):
            parts += [f"{clock(left)} left"]
        if self._saved >= 0:
            parts += [f"checkpoint of step {self._saved:,}"]
        return parts

    def _print(self, line: str) -> None:
        if not self._enabled:
            return
        try:
            print(line, file=sys.stderr, flush=True)  # noqa: T201
        except OSError:  # nobody reads it any more, which is no reason to stop training
            self._enabled = False


def _texts(
    metrics: Mapping[str, Any], *, prefix: str = "", without: tuple[str, ...] = ()
) -> list[str]:
    """Return metrics as texts, without the name of their split."""
    chosen = {
        name: float(value)
        for name, value in metrics.items()
        if name.startswith(prefix) and not name.startswith(without or ("\0",))
    }
    return [
        f"{name.removeprefix('val/').removeprefix('train/')} {value:.4g}"
        for name, value in chosen.items()
    ]


def _count(number: float) -> str:
    return f"{int(number):,}" if math.isfinite(number) else "unlimited"
