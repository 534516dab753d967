"""Checkpoints: atomic writes, safe loading, and states from which a run resumes exactly.

Lightning counts what was started and what was completed, and infers from the differences in which
hook a checkpoint was written. In some hooks this inference loses a validation or an epoch. The
normalized state is one of three that Lightning resumes without loss: some batches of an epoch are
completed; the same, and a validation is due; an epoch is completed.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning import Trainer
from lightning.fabric.plugins import TorchCheckpointIO

from visattn.io.atomic import atomic_replace

_SPANS = ("total", "current")  # of Lightning's counts: the run, and the epoch or validation


class AtomicCheckpointIO(TorchCheckpointIO):
    """Write checkpoints atomically, and load only tensors and plain values.

    Lightning writes a checkpoint to another place and then moves it. If that is a move to another
    disk, which is full, a partial file gets the final name.
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


def normalize_loop_state(loops: dict[str, Any], trainer: Trainer) -> None:
    """Normalize the saved state of the training loops in place, so that resuming is exact.

    A batch that was interrupted is repeated after resuming. The state is `loops.fit_loop` of a
    checkpoint that the trainer writes.
    """
    # Lightning's counts of one batch, and the hooks between them in which a checkpoint is written:
    #
    #     ready -> started -> [training step] -> processed -> [on_train_batch_end] -> completed
    #                  ^ interrupted: the batch is repeated      ^ step counts, batch is done
    #
    # Two hooks are ambiguous. At the end of a batch the step is taken, though not yet "completed";
    # at the end of an epoch all batches are completed, though the epoch is not yet.
    #
    # An example: epochs of two batches, each with a validation of two. Counts over the run, in the
    # order ready, started, processed, completed, as Lightning has them and as they are saved:
    #
    #     saved at the            epoch                 batch                 validation
    #     start of batch 2        1 1 0 0               2 1 1 1 -> 1 1 1 1    0 0 0 0
    #     end of batch 1          1 1 0 0               1 1 1 0 -> 1 1 1 1    0 0 0 0
    #     end of batch 2          1 1 0 0               2 2 2 1 -> 2 2 2 2    0 0 0 0 -> 1 1 0 0
    #     end of val. batch 2     1 1 0 0               2 2 2 2               2 2 2 1 -> 2 2 1 1
    #     end of validation       1 1 0 0               2 2 2 2               2 2 2 2
    #     end of epoch            1 1 1 0 -> 1 1 1 1    2 2 2 2               2 2 2 2
    #
    # Lightning takes `1 1 0 0` and `2 2 1 1` for a validation that was interrupted. It repeats all
    # of it, since the counts of the current validation are set to 0.
    epoch = loops["epoch_progress"]
    batch = loops["epoch_loop.batch_progress"]
    current = batch["current"]
    done = "processed" if current["processed"] == current["ready"] else "completed"
    epoch_ended = epoch["current"]["processed"] == epoch["current"]["ready"]
    # Lightning counts an epoch that `max_steps` or early stopping ends as processed, although
    # batches of it are left, which a run that is resumed with a later end has to read.
    if epoch_ended and current[done] and not batch["is_last_batch"]:  # interrupted in the epoch
        for span in _SPANS:
            epoch[span]["processed"] -= 1
        epoch_ended = False
    in_end_hook = current["completed"] < current[done]  # in a hook at the end of a batch
    for span in _SPANS:
        _set_counts(batch[span], batch[span][done])
        if epoch_ended:
            _set_counts(epoch[span], epoch[span]["processed"])
        else:
            epoch[span]["completed"] = epoch[span]["processed"]
    # The loader has counted a batch that was interrupted, which is to be repeated.
    for loader in loops["state_dict"].get("combined_loader", []):
        loader["batches_done"] = current[done]
    due = not epoch_ended and (
        validates_after_batch(trainer) if in_end_hook else _is_validating(trainer)
    )
    _normalize_validation(loops["epoch_loop.val_loop.batch_progress"], due=due)
    if epoch_ended:
        steps = loops["epoch_loop.automatic_optimization.optim_progress"]["optimizer"].values()
        # With `max_steps`, Lightning takes the next epoch for a resumed one and does not reset
        # these.
        for progress in (batch, loops["epoch_loop.scheduler_progress"], *steps):
            _set_counts(progress["current"], 0)
        batch["is_last_batch"] = False
        loops["epoch_loop.state_dict"]["_batches_that_stepped"] -= _counts_extra_step(trainer)
    elif in_end_hook and not due and is_accumulation_complete(trainer):
        # Lightning counts this step, for the x axis of the logs, after the hook; a resumed run
        # would leave it out. After a validation that is due, the resumed run counts it itself.
        loops["epoch_loop.state_dict"]["_batches_that_stepped"] += 1


def is_accumulation_complete(trainer: Trainer) -> bool:
    """Return whether gradient accumulation is complete, so that no gradient is pending."""
    return not trainer.fit_loop._should_accumulate()  # noqa: SLF001


def validates_after_batch(trainer: Trainer) -> bool:
    """Return whether a validation follows the current batch."""
    loop = trainer.fit_loop
    return loop.epoch_loop._should_check_val_fx(loop._data_fetcher)  # type: ignore[arg-type] # noqa: SLF001


def _counts_extra_step(trainer: Trainer) -> bool:
    """Return whether Lightning will count a step too many in the next epoch.

    With `max_steps`, Lightning treats a new epoch as a resumed one without a batch. If a validation
    falls on this epoch, it assumes that the checkpoint was written during that validation.
    """
    epochs = trainer.check_val_every_n_epoch
    batches = trainer.val_check_batch
    if trainer.max_steps == -1 or not trainer.enable_validation or not isinstance(batches, int):
        return False
    if epochs is None:
        return (trainer.fit_loop.total_batch_idx + 1) % batches == 0
    return (trainer.current_epoch + 2) % epochs == 0


def _is_validating(trainer: Trainer) -> bool:
    """Return whether a validation was started and is not completed."""
    progress = trainer.fit_loop.epoch_loop.val_loop.batch_progress.current
    return trainer.validating and progress.completed != progress.ready


def _normalize_validation(progress: dict[str, Any], *, due: bool) -> None:
    """Mark the validation as completed, or as due from its first batch."""
    total = progress["total"]
    _set_counts(total, total["completed"])
    _set_counts(progress["current"], 0 if due else progress["current"]["completed"])
    if due:
        total["ready"] += 1
        total["started"] += 1


def _set_counts(counts: dict[str, int], count: int) -> None:
    """Set all counts (ready, started, processed, completed) to one value."""
    for name in counts:
        counts[name] = count


_RESUMED = ("global_step", "epoch", "loops", "optimizer_states", "lr_schedulers")


def check_resumable(checkpoint: Mapping[str, Any], source: object) -> None:
    """Refuse a checkpoint without the state of the training, such as one of weights only.

    Example:
        >>> check_resumable({"global_step": 3, "epoch": 0}, "last.ckpt")
        Traceback (most recent call last):
        ValueError: last.ckpt cannot be resumed from: it has no loops, optimizer_states, ...
    """
    if missing := [name for name in _RESUMED if name not in checkpoint]:
        raise ValueError(
            f"{source} cannot be resumed from: it has no {', '.join(missing)}; name a checkpoint "
            "that visattn fit wrote"
        )
