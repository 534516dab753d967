"""From a training checkpoint back to its model."""

import os
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from visattn.io.messages import format_names
from visattn.models.saving.config import restore_model
from visattn.models.saving.weight_files import (
    check_loaded_weights,
    nonfinite_weights,
    require_local_file,
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
        FileNotFoundError: If there is no such file.
        PermissionError: If this user may not read it.
        ValueError: If the file is damaged, is no checkpoint of visattn's, holds weights that are
            NaN, or lies on another machine.
    """
    checkpoint = _load(path)
    if not isinstance(checkpoint, dict) or not checkpoint.get("visattn"):
        raise ValueError(f"{path} is no checkpoint of visattn's; `visattn fit` writes them")
    described = checkpoint["visattn"]
    state = checkpoint.get("state_dict")
    if not isinstance(described, dict) or not isinstance(described.get("model"), dict):
        raise ValueError(f"{path} is damaged: it does not say what its model is")  # noqa: TRY004 (a file's fault)
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in state.items()
    ):
        raise ValueError(f"{path} is damaged: its weights are no tensors with names")
    if names := nonfinite_weights(state):
        raise ValueError(
            f"{path} holds NaN or infinity in {format_names(names, 5)}: training diverged; name an "
            "earlier checkpoint of the run"
        )
    return checkpoint


def read_progress(path: str | os.PathLike[str]) -> Progress:
    """Return how far training had come when a checkpoint was written; its weights are not read.

    Raises what `read_checkpoint` raises.
    """
    checkpoint = _load(path, mapped=True)
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

    The callback that kept it saves its state under `key`. Raises what `read_checkpoint` raises.
    """
    checkpoint = _load(path, mapped=True)
    try:
        score = checkpoint["callbacks"][key]["best_model_score"]
    except (LookupError, TypeError):
        return None
    return float(score) if isinstance(score, Tensor) and score.numel() == 1 else None


def read_model(path: str | os.PathLike[str]) -> nn.Module:
    """Return the trained model of a checkpoint, in evaluation mode.

    Raises what `read_checkpoint` raises, and `ValueError` for weights that are NaN.
    """
    checkpoint = read_checkpoint(path)
    prefix = "model."
    weights = {
        name.removeprefix(prefix): tensor
        for name, tensor in checkpoint["state_dict"].items()
        if name.startswith(prefix)
    }
    model = restore_model(checkpoint["visattn"]["model"], weights, source=path)
    check_loaded_weights(model, path)
    return model


def _load(path: str | os.PathLike[str], *, mapped: bool = False) -> Any:
    """Return what a file holds; if mapped, its tensors are not read."""
    source: Path = require_local_file(
        path, missing=f"no checkpoint at {path}; `visattn fit` says where it saves them"
    )
    try:
        return torch.load(source, map_location="cpu", weights_only=True, mmap=mapped)
    except PermissionError:
        raise
    except Exception as error:  # rubbish raises IndexError, KeyError, OSError ...
        reason = str(error).splitlines()[0] if str(error) else "it is empty"
        raise ValueError(
            f"{source} is damaged or no checkpoint: {type(error).__name__}, {reason}"
        ) from error
