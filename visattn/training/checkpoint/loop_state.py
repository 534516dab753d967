"""Where a run is, in the words of Lightning's loops, made such that going on is exact.

Lightning counts what it began and what it ended, and guesses from the differences at which hook a
checkpoint was written. Its guesses lose a validation, or an epoch, at some of them. So what is
saved says one of three things, which it goes on from without loss: so many batches of an epoch are
done; the same, and a validation is due; an epoch is over.
"""

from typing import Any

from lightning import Trainer


def settle(loops: dict[str, Any], trainer: Trainer) -> None:
    """Change the saved state of the training loops, so that they go on exactly.

    In the middle of a batch it is that before the batch, which is then done once more.

    Args:
        loops: What a checkpoint holds as `loops.fit_loop`.
        trainer: Whose state it is.
    """
    epoch, batch = loops["epoch_progress"], loops["epoch_loop.batch_progress"]
    told = batch["current"]
    kind = "processed" if told["processed"] == told["ready"] else "completed"
    over = epoch["current"]["processed"] == epoch["current"]["ready"]
    if over and told[kind] and not batch["is_last_batch"]:  # stopped in the middle of it
        for part in ("total", "current"):
            epoch[part]["processed"] -= 1
        over = False
    ending = told["completed"] < told[kind]  # in a hook of the batch's end
    for part in ("total", "current"):
        _level(batch[part], batch[part][kind])
        if over:
            _level(epoch[part], epoch[part]["processed"])
        else:
            epoch[part]["completed"] = epoch[part]["processed"]
    for loader in loops["state_dict"].get("combined_loader", []):
        loader["done"] = told[kind]
    due = not over and (validates_next(trainer) if ending else _validates_now(trainer))
    _settle_validation(loops["epoch_loop.val_loop.batch_progress"], due=due)
    if over:
        stepped = loops["epoch_loop.automatic_optimization.optim_progress"]["optimizer"].values()
        for counted in (batch, loops["epoch_loop.scheduler_progress"], *stepped):
            _level(counted["current"], 0)
        batch["is_last_batch"] = False
        loops["epoch_loop.state_dict"]["_batches_that_stepped"] -= _counts_one_more(trainer)
    elif ending and not due and gathered(trainer):
        loops["epoch_loop.state_dict"]["_batches_that_stepped"] += 1


def gathered(trainer: Trainer) -> bool:
    """Return whether no gradient waits for those of further batches to be added to it."""
    return not trainer.fit_loop._should_accumulate()  # noqa: SLF001


def validates_next(trainer: Trainer) -> bool:
    """Return whether validation follows the batch that ends."""
    loop = trainer.fit_loop
    return loop.epoch_loop._should_check_val_fx(loop._data_fetcher)  # type: ignore[arg-type] # noqa: SLF001


def _counts_one_more(trainer: Trainer) -> bool:
    """Return whether the next epoch would count a step that nobody took.

    With a limit of steps Lightning takes a new epoch for one that is gone on with, and finds no
    batch read: where an epoch is validated, it takes this for the place of a validation.
    """
    every, often = trainer.check_val_every_n_epoch, trainer.val_check_batch
    if trainer.max_steps == -1 or not trainer.enable_validation or not isinstance(often, int):
        return False
    if every is None:
        return (trainer.fit_loop.total_batch_idx + 1) % often == 0
    return (trainer.current_epoch + 2) % every == 0


def _validates_now(trainer: Trainer) -> bool:
    """Return whether a validation was begun and is not finished."""
    seen = trainer.fit_loop.epoch_loop.val_loop.batch_progress.current
    return trainer.validating and seen.completed != seen.ready


def _settle_validation(progress: dict[str, Any], *, due: bool) -> None:
    """Say that all of the validation was done, or that it is to be done from its first batch."""
    total = progress["total"]
    _level(total, total["completed"])
    _level(progress["current"], 0 if due else progress["current"]["completed"])
    if due:
        total["ready"] += 1
        total["started"] += 1


def _level(counts: dict[str, int], count: int) -> None:
    """Let all that was begun have been ended."""
    for name in counts:
        counts[name] = count
