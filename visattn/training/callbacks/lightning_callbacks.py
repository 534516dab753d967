"""Callbacks of Lightning in a config: refused before the first step where they cannot work."""

from collections.abc import Sequence
from pathlib import Path

from lightning import Callback
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    EarlyStopping,
    LearningRateFinder,
    ModelCheckpoint,
    ModelPruning,
    StochasticWeightAveraging,
)
from lightning.pytorch.utilities import rank_zero_warn

from visattn.training.task import Task, monitor_with_mode

REFUSED: dict[type[Callback], str] = {
    LearningRateFinder: (
        "it sets one learning rate for all parameters, which have their own here: set "
        "model.optim.optimizer.lr"
    ),
    BatchSizeFinder: (
        "a run resumes only with the batch size that it began with: set data.batch_size"
    ),
    BackboneFinetuning: (
        "it needs a module called backbone and its own schedule: set the learning rate of the "
        "pretrained part (model.optim.lr_mults) or freeze it (unfreeze_from_stage)"
    ),
    StochasticWeightAveraging: (
        "its averages are made after the last checkpoint is written, so they would be lost: use "
        "EMA of visattn, or WeightAveraging"
    ),
    ModelPruning: (
        "it replaces parameters that checkpoints of visattn describe: prune after training"
    ),
}
"""Callbacks that a config may not name, with the reason and what to use instead."""
_RESERVED = ("best", "last")


def prepare_callbacks(callbacks: Sequence[Callback], task: Task, folder: Path) -> None:
    """Refuse callbacks of a config that would fail, or lose their result, during training.

    `EarlyStopping` and `ModelCheckpoint` are set to act right after a validation, not at the end of
    the epoch: `last.ckpt` is written between the two, and a run that resumes from there has no
    scores. `folder` has the checkpoints of the run.

    Raises:
        ValueError: If a callback cannot work here, monitors a metric that is not logged, or writes
            files of visattn's names.

    Example:
        >>> prepare_callbacks([LearningRateFinder()], None, Path("checkpoints"))
        Traceback (most recent call last):
        ValueError: trainer.callbacks must not have LearningRateFinder: it sets one learning ...
    """
    for callback in callbacks:
        for refused, reason in REFUSED.items():
            if isinstance(callback, refused):
                name = refused.__name__
                raise ValueError(f"trainer.callbacks must not have {name}: {reason}")  # noqa: TRY004
        if isinstance(callback, EarlyStopping | ModelCheckpoint):
            _check_metric(callback, task)
            _act_after_validation(callback)
        if isinstance(callback, ModelCheckpoint):
            _check_files(callback, folder)


def _check_metric(callback: EarlyStopping | ModelCheckpoint, task: Task) -> None:
    """Refuse metrics that validation does not log; warn of the wrong direction."""
    metric = callback.monitor
    logged = task.val_scores
    name = type(callback).__name__
    if metric is None:
        return
    if logged and metric not in logged and not metric.startswith("train/"):
        raise ValueError(
            f"{name}: monitor must name a validation metric, or one of the training (train/loss), "
            f"got {metric!r}; with these data {type(task).__name__} logs {', '.join(logged)}"
        )
    better = monitor_with_mode(metric)[1]
    if callback.mode != better and metric in logged:
        rank_zero_warn(
            f"{name} takes the {callback.mode} of {metric} for its best value, but it is the "
            f"{better}: set mode: {better}"
        )


def _act_after_validation(callback: EarlyStopping | ModelCheckpoint) -> None:
    # By default these callbacks act at the end of a training epoch if each epoch ends with a
    # validation. A run resumed from the checkpoint of that validation does not repeat it, and would
    # find no scores at the end of this epoch.
    if isinstance(callback, ModelCheckpoint):
        if callback.monitor is not None and callback._save_on_train_epoch_end is None:  # noqa: SLF001
            callback._save_on_train_epoch_end = False  # noqa: SLF001
        return
    if callback._check_on_train_epoch_end is None:  # noqa: SLF001
        callback._check_on_train_epoch_end = False  # noqa: SLF001
    if callback.monitor.startswith("train/"):
        callback.strict = False  # it is missing if a resumed run begins with a validation


def _check_files(callback: ModelCheckpoint, folder: Path) -> None:
    """Refuse the file names of the checkpoints that visattn writes."""
    own = callback.dirpath is None or Path(callback.dirpath).resolve() == folder.resolve()
    if own and callback.filename in _RESERVED:
        raise ValueError(
            f"ModelCheckpoint: filename must not be {callback.filename!r}, since visattn writes "
            f"{folder / callback.filename}.ckpt; choose another name, or another dirpath"
        )
