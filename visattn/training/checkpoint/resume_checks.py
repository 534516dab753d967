"""Checks of a checkpoint before training is resumed from it."""

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from torch import Tensor

_COUNTS = {"ready", "completed"}
_BATCHES = {*_COUNTS, "started", "processed"}
_PROGRESS = {  # of the loops, as Lightning names them
    "epoch_progress": _BATCHES,
    "epoch_loop.batch_progress": _BATCHES,
    "epoch_loop.val_loop.batch_progress": _BATCHES,
    "epoch_loop.scheduler_progress": _COUNTS,
}
_OPTIMIZER = "epoch_loop.automatic_optimization.optim_progress"


def check_resumable(checkpoint: Mapping[str, Any], source: object) -> None:
    """Refuse a checkpoint whose training state is incomplete or has other types.

    Args:
        checkpoint: Result of `read_checkpoint`.
        source: The file; the error names it.

    Raises:
        ValueError: With the part that is wrong.

    Example:
        >>> check_resumable({"global_step": 3, "epoch": 0, "callbacks": 3}, "last.ckpt")
        Traceback (most recent call last):
        ValueError: last.ckpt cannot be resumed from: callbacks must be of type dict...
    """
    if wrong := _wrong_part(checkpoint):
        raise ValueError(
            f"{source} cannot be resumed from: {wrong}; name a checkpoint that visattn fit wrote"
        )


def _wrong_part(checkpoint: Mapping[str, Any]) -> str:
    kinds = {"global_step": int, "epoch": int, "callbacks": dict, "loops": dict}
    kinds |= {"optimizer_states": list, "lr_schedulers": list}
    for name, kind in kinds.items():
        if wrong := _wrong_kind(checkpoint.get(name), name, kind):
            return wrong
    seed = checkpoint["visattn"].get("seed")
    if seed is not None and type(seed) is not int:
        return f"visattn.seed must be an integer, got {type(seed).__name__}"
    for number, state in enumerate(checkpoint["lr_schedulers"]):
        if wrong := _wrong_kind(state, f"lr_schedulers[{number}]", dict):
            return wrong
    for number, state in enumerate(checkpoint["optimizer_states"]):
        name = f"optimizer_states[{number}]"
        wrong = _wrong_kind(state, name, dict) or _wrong_kind(
            state.get("param_groups"), f"{name}.param_groups", list
        )
        if wrong := wrong or _wrong_kind(state.get("state"), f"{name}.state", dict):
            return wrong
    return _wrong_loop(checkpoint["loops"].get("fit_loop"))


def _wrong_loop(loop: Any) -> str:
    """Return what is wrong with the counts of the training loop, which say where the run is."""
    for name in ("", *_PROGRESS, _OPTIMIZER, "state_dict", "epoch_loop.state_dict"):
        path = f"loops.fit_loop.{name}".rstrip(".")
        if wrong := _wrong_kind(loop.get(name) if name else loop, path, dict):
            return wrong
    for name, needed in _PROGRESS.items():
        for part in ("total", "current"):
            counts = loop[name].get(part)
            numbers = isinstance(counts, dict) and all(
                type(counts.get(count)) is int and counts[count] >= 0 for count in needed
            )
            if not numbers:
                return f"loops.fit_loop.{name}.{part} must hold counts, got {counts!r:.60}"
    return ""


def _wrong_kind(value: Any, name: str, kind: type) -> str:
    """Return the error message if a value is not of type `kind`; integers must not be negative."""
    if value is None:
        return f"{name} is missing"
    if type(value) is not kind:
        return f"{name} must be of type {kind.__name__}, got {type(value).__name__}"
    return f"{name} must be at least 0, got {value}" if kind is int and value < 0 else ""


def check_scheduler_states(saved: Sequence[Any], fresh: Sequence[Mapping[str, Any]]) -> None:
    """Refuse saved states that do not fit the learning-rate schedulers of the config.

    PyTorch loads such a state without a check, and fails at a later step, or never.

    Args:
        saved: From a checkpoint.
        fresh: The states of the schedules that the config describes, before the first step.

    Raises:
        ValueError: If there are more or fewer of them, if a part of one is of another kind, or if
            its count of steps is missing.

    Example:
        >>> fresh = {"last_epoch": 0, "base_lrs": []}
        >>> check_scheduler_states([{"last_epoch": 7, "base_lrs": 7}], [fresh])
        Traceback (most recent call last):
        ValueError: the checkpoint does not fit ...: base_lrs must be a list of 0, and is an int...
    """
    if len(saved) != len(fresh):
        raise ValueError(_misfit(f"it has {len(saved)} of them, the config {len(fresh)}"))
    for old, new in zip(saved, fresh, strict=True):
        _check_schedule(old, new, "")


def _check_schedule(saved: Mapping[str, Any], fresh: Mapping[str, Any], name: str) -> None:
    """Refuse a state with parts of other kinds; versions of PyTorch differ in which there are."""
    if "last_epoch" in fresh and "last_epoch" not in saved:
        raise ValueError(_misfit(f"{name}last_epoch is missing"))
    for key in sorted(fresh.keys() & saved.keys()):
        _check_alike(saved[key], fresh[key], f"{name}{key}")


def _check_alike(saved: Any, fresh: Any, name: str) -> None:
    """Raise if the types of two values differ; int and float match, None matches any type."""
    if saved is None or fresh is None:
        return
    if isinstance(fresh, dict) and isinstance(saved, dict):
        _check_schedule(saved, fresh, f"{name}.")
    elif isinstance(fresh, list | tuple) and isinstance(saved, list | tuple):
        if len(saved) != len(fresh):
            _refuse(name, saved, fresh)
        for number, pair in enumerate(zip(saved, fresh, strict=True)):
            _check_alike(*pair, f"{name}[{number}]")
    elif not (_is_number(saved) and _is_number(fresh)) and not isinstance(saved, type(fresh)):
        _refuse(name, saved, fresh)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | Tensor) and not isinstance(value, bool)


def _refuse(name: str, saved: Any, fresh: Any) -> NoReturn:
    raise ValueError(_misfit(f"{name} must be {_kind(fresh)}, and is {_kind(saved)}"))


def _kind(value: Any) -> str:
    kind = type(value).__name__
    article = "an" if kind[0] in "aeiou" else "a"
    return f"{article} {kind}" + (f" of {len(value)}" if isinstance(value, list | tuple) else "")


def _misfit(reason: str) -> str:
    return (
        f"the checkpoint does not fit the learning-rate schedules of the config: {reason}; resume "
        "with the config of its run"
    )
