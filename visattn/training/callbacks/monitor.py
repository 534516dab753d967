"""The validation score by which the best checkpoint is chosen."""

from collections.abc import Sequence
from typing import Literal

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_warn

from visattn.training.base import Task

_LOWER_IS_BETTER = ("loss", "error", "calibration")


def monitor_of(score: str) -> tuple[str, Literal["min", "max"]]:
    """Return a score with its direction, as Lightning's `ModelCheckpoint` takes them.

    Example:
        >>> monitor_of("val/loss"), monitor_of("val/cider-d")
        (('val/loss', 'min'), ('val/cider-d', 'max'))
    """
    name = score.rpartition("/")[2]
    return score, "min" if name.startswith(_LOWER_IS_BETTER) else "max"


def check_monitor(task: Task) -> None:
    """Refuse a score that validation does not log, before the first step.

    Raises:
        ValueError: If the task knows its scores and this is none of them.
    """
    score, known = task.monitor[0], task.val_scores
    if known and score not in known:
        raise ValueError(
            f"best_by must name a score of validation, got {score!r}; with these data "
            f"{type(task).__name__} logs {_listed(known)}"
        )


class MonitorFallback(Callback):
    """Let training go on where a task does not log the score that it said it would.

    For tasks from outside, which do not list their scores: without this, Lightning ends the run at
    its first validation, before a checkpoint is written.

    Args:
        checkpoint: The callback that keeps the best checkpoint; it then keeps none.
    """

    def __init__(self, checkpoint: ModelCheckpoint) -> None:
        self.checkpoint = checkpoint

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Look whether the score was logged."""
        score, logged = self.checkpoint.monitor, trainer.callback_metrics
        if trainer.sanity_checking or score in logged or not self.checkpoint.save_top_k:
            return
        self.checkpoint.save_top_k = 0
        rank_zero_warn(
            f"validation did not log {score!r}, so there will be no best.ckpt; last.ckpt is "
            f"written. It logged {_listed(sorted(logged)) or 'nothing'}"
        )


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names)
