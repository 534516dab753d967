"""Progress of a run: a bar on a terminal, lines of text without one."""

import math
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar, Timer
from lightning.pytorch.callbacks.progress.rich_progress import CustomTimeColumn
from rich import get_console
from rich.text import Text

from visattn.io.safe_text import terminal_text

PROGRESS_SECONDS = 30.0
"""Default interval between progress lines, in seconds."""
_INTERVAL_FRACTION = 0.01  # of the run: about a hundred lines
_MAX_INTERVAL = 600.0  # seconds


class RunPace:
    """Optimizer steps of a run and an estimate of the remaining time.

    The time of a step is the mean since training started or resumed, validation included.

    Args:
        first_step: Steps before this session; more than 0 if the run is resumed.
        total_steps: Steps of the whole run; infinite without a limit.

    Example:
        >>> pace = RunPace(first_step=40, total_steps=60)
        >>> pace.started -= 7.0  # as if 7 seconds had passed
        >>> round(pace.seconds_left(54))
        3
    """

    def __init__(self, *, first_step: int, total_steps: float) -> None:
        self.first_step = first_step
        self.total_steps = total_steps
        self.started = time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since training started or resumed."""
        return time.monotonic() - self.started

    def seconds_left(self, done: int) -> float:
        """Return the remaining seconds; infinite before the second step and without a limit."""
        steps = done - self.first_step
        if steps < 2 or not math.isfinite(self.total_steps):
            return math.inf
        return self.elapsed * max(0.0, self.total_steps - done) / steps


def planned_steps(trainer: Trainer) -> float:
    """Return the last step by `max_steps` or `max_epochs`; infinite without either."""
    steps = trainer.estimated_stepping_batches
    return steps if steps >= 0 else math.inf


def planned_epochs(trainer: Trainer) -> int | None:
    """Return the number of epochs, the last of which may be partial; None if unknown."""
    steps = planned_steps(trainer)
    batches = trainer.num_training_batches
    if not math.isfinite(steps) or not math.isfinite(batches) or not batches:
        return None
    return math.ceil(steps / math.ceil(batches / trainer.accumulate_grad_batches))


def seconds_left(trainer: Trainer, pace: RunPace) -> float:
    """Return the remaining seconds until the last step or `max_time`, whichever comes first."""
    timers = [callback for callback in trainer.callbacks if isinstance(callback, Timer)]  # type: ignore[attr-defined]
    limits = [left for timer in timers if (left := timer.time_remaining()) is not None]
    return min([pace.seconds_left(trainer.global_step), *limits])


def format_epoch(trainer: Trainer, epoch: int) -> str:
    """Return the number of an epoch, counted from 1, and the number of epochs if known."""
    epochs = planned_epochs(trainer)
    return f"epoch {epoch + 1}" + (f" of {max(epochs, epoch + 1)}" if epochs else "")


def format_duration(seconds: float) -> str:
    """Return a duration as hours, minutes and seconds.

    Example:
        >>> format_duration(3725.5), format_duration(math.inf)
        ('1:02:05', '-:--:--')
    """
    return str(timedelta(seconds=int(seconds))) if math.isfinite(seconds) else "-:--:--"


class ProgressReport(ProgressBar):
    """Progress as lines on stderr, for runs without a terminal (nohup, Slurm, CI).

    Lines report the first and the last step, and steps in between at an interval of `seconds`, or
    of 1 % of the run if that is longer, up to ten minutes. Each validation gets a line with its
    scores, and lines with its progress at the interval.

    Args:
        seconds: Interval between lines; 0 reports each step.

    Raises:
        ValueError: If the interval is negative.
    """

    def __init__(self, *, seconds: float = PROGRESS_SECONDS) -> None:
        super().__init__()
        if not seconds >= 0:
            raise ValueError(f"progress_seconds must be at least 0, got {seconds}")
        self.seconds = seconds
        self._enabled = True
        self._pace = RunPace(first_step=0, total_steps=math.inf)
        self._due = 0.0
        self._reported = 0
        self._saved_step = -1

    def disable(self) -> None:
        """Print nothing."""
        self._enabled = False

    def enable(self) -> None:
        """Print again."""
        self._enabled = True

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the first and the last step, and the folder of the run."""
        first = trainer.global_step
        total = planned_steps(trainer)
        self._pace = RunPace(first_step=first, total_steps=total)
        self._due = 0.0
        self._reported = first
        resumed = f"resumed at step {first:,}" if first else "started"
        self._print(f"training {resumed}, {_count(total)} steps in all: {trainer.default_root_dir}")

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Print a step at the interval."""
        step = trainer.global_step
        now = time.monotonic()
        if step == self._reported or (now < self._due and step < self._pace.total_steps):
            return
        left = seconds_left(trainer, self._pace)
        self._reported = step
        duration = self._pace.elapsed + left
        interval = _INTERVAL_FRACTION * duration if math.isfinite(duration) else 0.0
        longest = max(self.seconds, _MAX_INTERVAL)
        self._due = now + min(max(self.seconds, interval), longest)
        self._print(", ".join(self._step_parts(trainer, step, left)))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the number of steps and the time they took."""
        steps = trainer.global_step - self._pace.first_step
        self._print(f"training ended: {steps:,} steps in {format_duration(self._pace.elapsed)}")

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the step of the newest checkpoint."""
        self._saved_step = trainer.global_step

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Reset the count of batches."""
        self._evaluated = 0
        self._evaluation_started = time.monotonic()
        self._evaluation_due = self._evaluation_started + self.seconds

    on_test_start = on_validation_start

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Print the progress of validation at the interval."""
        if not trainer.sanity_checking:
            counts = trainer.num_val_batches
            self._report_batch("validation", batch_idx, dataloader_idx, counts)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print the scores of a validation during training."""
        if trainer.state.fn != "fit" or trainer.sanity_checking:
            return
        scores = _texts(trainer.callback_metrics, prefix="val/")
        after = f"validation after step {trainer.global_step:,}"
        self._print(f"{after}: {', '.join(scores) or 'no scores'}")

    def on_test_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Print the progress of a test at the interval."""
        self._report_batch("test", batch_idx, dataloader_idx, trainer.num_test_batches)

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
        self._print(f"{name}: {batches}, {format_duration(left)} left")

    def _step_parts(self, trainer: Trainer, step: int, left: float) -> list[str]:
        total = self._pace.total_steps
        percent = f" ({step / total:.0%})" if math.isfinite(total) and total else ""
        parts = [f"step {step:,} of {_count(total)}{percent}"]
        parts += [format_epoch(trainer, trainer.current_epoch)]
        parts += _texts(trainer.progress_bar_metrics, without=("val/", "test/"))
        rates = [
            group["lr"] for optimizer in trainer.optimizers for group in optimizer.param_groups
        ]
        if rates:
            low = min(rates)
            high = max(rates)
            parts += [f"learning rate {low:.3g}{f' to {high:.3g}' if high > low else ''}"]
        if math.isfinite(left):
            parts += [f"{format_duration(left)} left"]
        if self._saved_step >= 0:
            parts += [f"checkpoint of step {self._saved_step:,}"]
        return parts

    def _print(self, line: str) -> None:
        if not self._enabled:
            return
        try:
            print(terminal_text(line), file=sys.stderr, flush=True)  # noqa: T201
        except OSError:  # stderr was closed; training continues
            self._enabled = False


def _texts(
    metrics: Mapping[str, Any], *, prefix: str = "", without: tuple[str, ...] = ()
) -> list[str]:
    """Return names and values of metrics, without the split."""
    return [
        f"{name.removeprefix('val/').removeprefix('train/')} {float(value):.4g}"
        for name, value in metrics.items()
        if name.startswith(prefix) and not name.startswith(without)
    ]


def _count(number: float) -> str:
    return f"{int(number):,}" if math.isfinite(number) else "unlimited"


def progress_callback(
    trainer_options: Any, *, seconds: float = PROGRESS_SECONDS
) -> ProgressBar | None:
    """Return a progress bar if stdout is a terminal, and progress lines otherwise.

    It is None if the trainer section of a config has `enable_progress_bar: false`, or a progress
    bar among its `callbacks`.
    """
    callbacks = trainer_options.callbacks or []
    if trainer_options.enable_progress_bar is False:
        return None
    if any(isinstance(callback, ProgressBar) for callback in callbacks):
        return None
    if sys.stdout.isatty() and get_console().is_interactive:
        return RunProgressBar()
    return ProgressReport(seconds=seconds)


class RunProgressBar(RichProgressBar):
    """Rich progress bar over the optimizer steps of the whole run, not the batches of an epoch.

    The total and the remaining time follow `max_steps` or `max_epochs`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pace: RunPace | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        super().on_train_start(trainer, pl_module)
        self.pace = RunPace(first_step=trainer.global_step, total_steps=planned_steps(trainer))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show the number of the epoch; the step count continues."""
        if self.is_disabled or self.progress is None:
            return
        if self.train_progress_bar_id is None:
            self._initialize_train_progress_bar_id()
        else:
            description = self._get_train_description(trainer.current_epoch)
            self.progress.update(self.train_progress_bar_id, description=description)
        self.refresh()

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Show the completed steps."""
        # Lightning shows this number plus 1.
        super().on_train_batch_end(trainer, pl_module, outputs, batch, trainer.global_step - 1)

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Return the metrics beside the bar, without the version of the logger."""
        return {k: v for k, v in super().get_metrics(trainer, pl_module).items() if k != "v_num"}

    def configure_columns(self, trainer: Trainer) -> list[Any]:
        """Return Lightning's columns, with the remaining time of the whole run."""
        columns = super().configure_columns(trainer)
        return [
            _RunTimeColumn(self) if isinstance(column, CustomTimeColumn) else column
            for column in columns
        ]

    def _initialize_train_progress_bar_id(self) -> None:
        if self.progress is None or self.pace is None:
            return
        self.train_progress_bar_id = self.progress.add_task(
            self._get_train_description(self.trainer.current_epoch),
            total=self.pace.total_steps,
            completed=self.trainer.global_step,
        )

    def _get_train_description(self, current_epoch: int) -> str:
        width = len(self.validation_description)  # else the bar jumps when validation starts
        return f"{format_epoch(self.trainer, current_epoch).capitalize():{width}}"


class _RunTimeColumn(CustomTimeColumn):
    """Elapsed and remaining time of the run, in the row of its steps."""

    def __init__(self, bar: RunProgressBar) -> None:
        super().__init__(style=bar.theme.time)
        self._bar = bar

    def render(self, task: Any) -> Text:
        pace = self._bar.pace
        if pace is None or task.id != self._bar.train_progress_bar_id:
            return super().render(task)
        left = seconds_left(self._bar.trainer, pace)
        return Text(f"{format_duration(pace.elapsed)} • {format_duration(left)}", style=self.style)
