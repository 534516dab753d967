"""What shows the progress of a run: a bar on a terminal, lines without one."""

import sys
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar, RichProgressBar
from lightning.pytorch.callbacks.progress.rich_progress import CustomTimeColumn
from rich import get_console
from rich.text import Text

from visattn.training.callbacks.pace import RunPace, clock, epoch_text, planned_steps, seconds_left
from visattn.training.callbacks.progress_lines import SECONDS, ProgressReport


def progress_callback(trainer_options: Any, *, seconds: float = SECONDS) -> ProgressBar | None:
    """Return what shows progress here: a bar if stdout is a terminal, else lines.

    Args:
        trainer_options: The trainer's options in a config. With `enable_progress_bar: false`, or
            with a progress bar among its `callbacks`, there is nothing to add.
        seconds: Between lines.
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
    """Lightning's bar, counting the optimizer steps of the whole run instead of an epoch's batches.

    It ends where training ends, by `max_steps` or by `max_epochs`, and so does the time left.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pace: RunPace | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start to measure the time of a step."""
        super().on_train_start(trainer, pl_module)
        self.pace = RunPace(first=trainer.global_step, total=planned_steps(trainer))

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Name the epoch; the count goes on."""
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
        """Show the steps done so far."""
        super().on_train_batch_end(trainer, pl_module, outputs, batch, trainer.global_step - 1)

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Return what is shown beside the bar; the number of a log's file is not."""
        return {k: v for k, v in super().get_metrics(trainer, pl_module).items() if k != "v_num"}

    def configure_columns(self, trainer: Trainer) -> list[Any]:
        """Return Lightning's columns, with the time left of the whole run."""
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
            total=self.pace.total,
            completed=self.trainer.global_step,
        )

    def _get_train_description(self, current_epoch: int) -> str:
        width = len(self.validation_description)  # else the bar jumps when validation starts
        return f"{epoch_text(self.trainer, current_epoch).capitalize():{width}}"


class _RunTimeColumn(CustomTimeColumn):
    """Elapsed and remaining time: those of the run beside its steps."""

    def __init__(self, bar: RunProgressBar) -> None:
        super().__init__(style=bar.theme.time)
        self._bar = bar

    def render(self, task: Any) -> Text:
        pace = self._bar.pace
        if pace is None or task.id != self._bar.train_progress_bar_id:
            return super().render(task)
        left = seconds_left(self._bar.trainer, pace)
        return Text(f"{clock(pace.elapsed)} • {clock(left)}", style=self.style)
