"""Checks of the trainer options that run before anything is built."""

from typing import Any

import torch

_PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")
_SHORT_PRECISIONS = {"None", "32", "16", "bf16"}  # as Lightning abbreviates them


def check_trainer(options: Any, *, fitting: bool) -> None:
    """Refuse invalid trainer options, with the accepted values in the message.

    Args:
        options: Section `trainer` of a config.
        fitting: Whether the command is `fit`; scoring ignores some options.

    Raises:
        ValueError: If an option is invalid; the message names the first one.

    Example:
        >>> from types import SimpleNamespace
        >>> check_trainer(SimpleNamespace(precision="bf16-true", devices="auto"), fitting=False)
        Traceback (most recent call last):
        ValueError: trainer.precision must be 32-true, 16-mixed or bf16-mixed, got bf16-true: ...
    """
    precision = str(options.precision)
    if precision not in {*_PRECISIONS, *_SHORT_PRECISIONS}:
        *first, last = _PRECISIONS
        raise ValueError(
            f"trainer.precision must be {', '.join(first)} or {last}, got {precision}: the weights "
            "of visattn models stay in float32"
        )
    _check_devices(str(options.devices), str(options.accelerator))
    _check_strategy(options.strategy, precision)
    if not fitting:
        return
    for name in ("max_steps", "max_epochs"):
        value = getattr(options, name)
        if value is not None and value != -1 and value < 1:
            raise ValueError(f"trainer.{name} must be at least 1, or -1 for no limit, got {value}")
    for name in ("accumulate_grad_batches", "check_val_every_n_epoch", "num_nodes"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise ValueError(f"trainer.{name} must be at least 1, got {value}")
    interval = options.val_check_interval
    if isinstance(interval, int | float) and not (interval >= 1 or 0 < interval < 1):
        raise ValueError(
            "trainer.val_check_interval must be a number of batches, at least 1, or a fraction of "
            f"an epoch, above 0 and up to 1.0, got {interval}; trainer.limit_val_batches 0 skips "
            "validation"
        )


def _check_devices(devices: str, accelerator: str) -> None:
    """Refuse invalid numbers of devices, and lists of GPUs on a machine without GPUs."""
    is_number = devices.removeprefix("-").isdecimal()
    gpus = accelerator != "cpu" and torch.accelerator.is_available()
    if devices == "auto" or (is_number and int(devices) >= 1) or (gpus and not is_number):
        return
    if gpus and devices == "-1":
        return
    choices = "auto, a list of GPUs, -1 for all of them" if gpus else "auto"
    unit = "devices" if gpus else "processes, as no GPU is used"
    raise ValueError(
        f"trainer.devices must be {choices}, or a number of at least 1 ({unit}), got {devices}"
    )


def _check_strategy(strategy: Any, precision: str) -> None:
    """Refuse strategies that shard the weights of a model, other than `fsdp2`."""
    name = str(getattr(strategy, "class_path", strategy))
    if _is_fsdp2(name):
        if precision in ("16-mixed", "16"):
            raise ValueError(
                f"trainer.precision must be 32-true or bf16-mixed with fsdp2, got {precision}: the "
                "loss scale of float16 does not know sharded gradients"
            )
        return
    words = name.lower().replace("_", "")
    if any(sharded in words for sharded in ("fsdp", "deepspeed", "modelparallel")):
        raise ValueError(
            f"trainer.strategy must be ddp, or fsdp2 to shard the weights, got {name}: its "
            "checkpoints, averages and gradients are not those of one process"
        )


def _is_fsdp2(name: str) -> bool:
    """Return whether a strategy is that of visattn, by its name or its class."""
    return name.rpartition(".")[2] in {"fsdp2", "FSDP2Strategy"}
