"""Monitored validation metric: its direction, its check, and a fallback if it is not logged."""

from lightning import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities import rank_zero_warn

from visattn.training.task import Task


def check_monitor(task: Task) -> None:
    """Refuse a monitored metric that validation does not log, before the first step.

    Raises:
        ValueError: If the task lists its metrics and the monitored one is not among them.
    """
    metric, logged = task.monitor[0], task.val_scores
    if logged and metric not in logged:
        raise ValueError(
            f"monitor must name a validation metric, got {metric!r}; with these data "
            f"{type(task).__name__} logs {', '.join(logged)}"
        )


class MonitorFallback(Callback):
    """Continue training without a best checkpoint if the task does not log the monitored metric.

    This happens with user-defined tasks, which do not list their metrics. Otherwise Lightning would
    end the run at the first validation, before a checkpoint is written.

    Args:
        checkpoint: Callback of the best checkpoint; its `save_top_k` becomes 0.
    """

    def __init__(self, checkpoint: ModelCheckpoint) -> None:
        self.checkpoint = checkpoint

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Check whether the metric was logged."""
        metric, logged = self.checkpoint.monitor, trainer.callback_metrics
        if trainer.sanity_checking or metric in logged or not self.checkpoint.save_top_k:
            return
        self.checkpoint.save_top_k = 0
        rank_zero_warn(
            f"validation did not log {metric!r}, so there will be no best.ckpt; last.ckpt is "
            f"written. It logged {', '.join(sorted(logged)) or 'nothing'}"
        )
