"""Checkpoints: atomic writes, safe loading, and states from which a run resumes exactly.

Lightning counts what was started and what was completed, and infers from the differences in which
hook a checkpoint was written. In some hooks this inference loses a validation or an epoch. The
normalized state is one of three that Lightning resumes without loss: some batches of an epoch are
completed; the same, and a validation is due; an epoch is completed.
"""

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lightning import Trainer
from lightning.fabric.plugins import TorchCheckpointIO
from torch import Tensor

from visattn.io.atomic import atomic_replace
from visattn.io.messages import format_names
from visattn.models.weights import read_torch

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


class Progress(NamedTuple):
    """How far training had come; the larger one is the later one."""

    step: int
    """Optimizer steps."""
    batches: int
    """Training batches; several of them may share a step."""


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a checkpoint holds: plain values and weights; nothing in it is executed.

    Raises:
        ValueError: If the file is damaged, or is no checkpoint of visattn's.
    """
    checkpoint = read_torch(Path(path))
    described = checkpoint.get("visattn") if isinstance(checkpoint, dict) else None
    if not (isinstance(described, dict) and "state_dict" in checkpoint):
        raise ValueError(f"{path} is no checkpoint of visattn's; `visattn fit` writes them")
    return checkpoint


def read_progress(path: str | os.PathLike[str]) -> Progress:
    """Return how far training had come when a checkpoint was written; its weights are not read."""
    checkpoint = read_torch(Path(path), mmap=True)
    step: Any = checkpoint.get("global_step") if isinstance(checkpoint, dict) else None
    if type(step) is not int or step < 0:
        raise ValueError(f"{path} is no checkpoint of training: it does not say its step")
    try:
        batches = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["ready"]
    except (LookupError, TypeError):
        batches = 0
    return Progress(step, batches if type(batches) is int else 0)


def read_recorded_score(path: str | os.PathLike[str], key: str) -> float | None:
    """Return the score that a checkpoint says it was kept for, or None if it does not say one.

    The callback that kept it saves its state under `key`.
    """
    try:
        score = read_torch(Path(path), mmap=True)["callbacks"][key]["best_model_score"]
    except (LookupError, TypeError):
        return None
    return float(score) if isinstance(score, Tensor) and score.numel() == 1 else None


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Return whether all tensors are free of NaN and infinity.

    Example:
        >>> all_finite([torch.ones(3), torch.tensor([1e38, -1e38])])
        True
        >>> all_finite([torch.ones(3), torch.tensor([0.0, torch.nan])])
        False
    """
    floating = [tensor for tensor in tensors if tensor.is_floating_point() and tensor.numel()]
    if not floating:
        return True
    # The largest absolute value is NaN or infinite if any is, and a GPU is waited for only once.
    largest = torch.nn.utils.get_total_norm(floating, norm_type=torch.inf)
    return bool(largest.isfinite())


def check_weights_before_saving(state: Mapping[str, Tensor], parameters: Collection[str]) -> None:
    """Refuse to save weights that are not finite, so that earlier checkpoints stay.

    Args:
        state: Weights and buffers by name.
        parameters: Names of the parameters. Buffers, such as attention masks, may be infinite, but
            for running statistics.

    Raises:
        FloatingPointError: If a tensor holds NaN, or a parameter infinity.

    Example:
        >>> check_weights_before_saving({"mask": torch.tensor([-torch.inf])}, {})
    """
    names = [
        name
        for name, tensor in state.items()
        if not all_finite([tensor])
        and (name in parameters or "running_" in name or bool(tensor.isnan().any()))
    ]
    if names:
        raise FloatingPointError(
            f"{format_names(names, 5)} {'is' if len(names) == 1 else 'are'} not finite, so nothing "
            "is saved, and earlier checkpoints are kept. Lower the learning rate, or clip "
            "gradients (--trainer.gradient_clip_val)"
        )
