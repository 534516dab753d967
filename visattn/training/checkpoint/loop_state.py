"""Normalization of the saved state of Lightning's training loops, for bit-exact resuming.

Lightning counts what was started and what was completed, and infers from the differences in which
hook a checkpoint was written. In some hooks this inference loses a validation or an epoch. The
normalized state is one of three that Lightning resumes without loss: some batches of an epoch are
completed; the same, and a validation is due; an epoch is completed.
"""

from typing import Any

from lightning import Trainer


def normalize_loop_state(loops: dict[str, Any], trainer: Trainer) -> None:
    """Normalize the saved state of the training loops in place, so that resuming is exact.

    A batch that was interrupted is repeated after resuming.

    Args:
        loops: `loops.fit_loop` of a checkpoint.
        trainer: Trainer that writes the checkpoint.
    """
    # Lightning's counts of one batch, and the hooks between them in which a checkpoint is written:
    #
    #     ready -> started -> [training step] -> processed -> [on_train_batch_end] -> completed
    #                  ^ interrupted: the batch is repeated      ^ step counts, batch is done
    #
    # Two hooks are ambiguous. At the end of a batch the step is taken, though not yet "completed";
    # at the end of an epoch all batches are completed, though the epoch is not yet.
    epoch, batch = loops["epoch_progress"], loops["epoch_loop.batch_progress"]
    current = batch["current"]
    kind = "processed" if current["processed"] == current["ready"] else "completed"
    epoch_ended = epoch["current"]["processed"] == epoch["current"]["ready"]
    if epoch_ended and current[kind] and not batch["is_last_batch"]:  # interrupted in the epoch
        for part in ("total", "current"):
            epoch[part]["processed"] -= 1
        epoch_ended = False
    in_end_hook = current["completed"] < current[kind]  # in a hook at the end of a batch
    for part in ("total", "current"):
        _set_counts(batch[part], batch[part][kind])
        if epoch_ended:
            _set_counts(epoch[part], epoch[part]["processed"])
        else:
            epoch[part]["completed"] = epoch[part]["processed"]
    for loader in loops["state_dict"].get("combined_loader", []):
        loader["batches_done"] = current[kind]
    due = not epoch_ended and (
        validates_after_batch(trainer) if in_end_hook else _is_validating(trainer)
    )
    _normalize_validation(loops["epoch_loop.val_loop.batch_progress"], due=due)
    if epoch_ended:
        steps = loops["epoch_loop.automatic_optimization.optim_progress"]["optimizer"].values()
        for progress in (batch, loops["epoch_loop.scheduler_progress"], *steps):
            _set_counts(progress["current"], 0)
        batch["is_last_batch"] = False
        loops["epoch_loop.state_dict"]["_batches_that_stepped"] -= _counts_extra_step(trainer)
    elif in_end_hook and not due and is_accumulation_complete(trainer):
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
    epochs, batches = trainer.check_val_every_n_epoch, trainer.val_check_batch
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
