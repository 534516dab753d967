"""Settings of the trainer with which no step could be done, refused before anything is built."""

from typing import Any

import torch

_PRECISIONS = ("32-true", "16-mixed", "bf16-mixed")
_SHORT_PRECISIONS = {"None", "32", "16", "bf16"}  # as Lightning abbreviates them


def check_trainer(settings: Any, *, fitting: bool) -> None:
    """Refuse settings of the trainer by name, with what they may be.

    Args:
        settings: The group `trainer` of a config.
        fitting: Whether it is to train, not only to score.

    Raises:
        ValueError: With the first that is wrong.

    Example:
        >>> from types import SimpleNamespace
        >>> check_trainer(SimpleNamespace(precision="bf16-true", devices="auto"), fitting=False)
        Traceback (most recent call last):
        ValueError: trainer.precision must be 32-true, 16-mixed or bf16-mixed, got bf16-true: ...
    """
    precision = str(settings.precision)
    if precision not in {*_PRECISIONS, *_SHORT_PRECISIONS}:
        *first, last = _PRECISIONS
        raise ValueError(
            f"trainer.precision must be {', '.join(first)} or {last}, got {precision}: the weights "
            "of our models stay in 32 bits"
        )
    _check_devices(str(settings.devices), str(settings.accelerator))
    if not fitting:
        return
    for name in ("max_steps", "max_epochs"):
        value = getattr(settings, name)
        if value is not None and value != -1 and value < 1:
            raise ValueError(f"trainer.{name} must be at least 1, or -1 for no limit, got {value}")
    for name in ("accumulate_grad_batches", "check_val_every_n_epoch", "num_nodes"):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ValueError(f"trainer.{name} must be at least 1, got {value}")
    interval = settings.val_check_interval
    if isinstance(interval, int | float) and not (interval >= 1 or 0 < interval < 1):
        raise ValueError(
            "trainer.val_check_interval must be a number of batches, at least 1, or a share of an "
            f"epoch, above 0 and up to 1.0, got {interval}; trainer.limit_val_batches 0 leaves "
            "validation out"
        )


def _check_devices(devices: str, accelerator: str) -> None:
    """Refuse numbers of devices that there cannot be, and lists of GPUs where there is none."""
    number = devices.removeprefix("-").isdecimal()
    gpus = accelerator != "cpu" and torch.accelerator.is_available()
    if devices == "auto" or (number and int(devices) >= 1) or (gpus and not number):
        return
    if gpus and devices == "-1":
        return
    known = "auto, a list of GPUs, -1 for all of them" if gpus else "auto"
    counted = "devices" if gpus else "processes, as no GPU is used"
    raise ValueError(
        f"trainer.devices must be {known}, or a number from 1 on (of {counted}), got {devices}"
    )
