"""From a training checkpoint back to its model."""

import copy
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from visattn.io.messages import format_names
from visattn.models.saving.config import restore_model
from visattn.models.saving.state_dicts import check_archive, check_tensors
from visattn.models.saving.weight_files import nonfinite_weights, require_local_file


class Progress(NamedTuple):
    """How far training had come; the larger one is the later one."""

    step: int
    """Optimizer steps."""
    batches: int
    """Training batches; several of them may share a step."""


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a checkpoint holds: plain values and weights; nothing in it is executed.

    It is unpacked only after it was found to take no more memory than the file is long.

    Raises:
        FileNotFoundError: If there is no such file.
        PermissionError: If this user may not read it.
        ValueError: If the file is damaged, is no checkpoint of visattn's, promises more than it
            holds, lies on another machine, or holds weights that are NaN.
    """
    source = _source(path)
    with _damage_reported(source):
        checkpoint = copy.deepcopy(_mapped(source))
    _check_contents(checkpoint, source)
    return checkpoint


def read_progress(path: str | os.PathLike[str]) -> Progress:
    """Return how far training had come when a checkpoint was written; its weights are not read.

    Raises what `read_checkpoint` raises.
    """
    source = _source(path)
    with _damage_reported(source):
        checkpoint = _mapped(source)
    step: Any = checkpoint.get("global_step") if isinstance(checkpoint, dict) else None
    if type(step) is not int or step < 0:
        raise ValueError(f"{source} is no checkpoint of training: it does not say its step")
    try:
        batches = checkpoint["loops"]["fit_loop"]["epoch_loop.batch_progress"]["total"]["ready"]
    except (LookupError, TypeError):
        batches = 0
    return Progress(step, batches if type(batches) is int else 0)


def read_recorded_score(path: str | os.PathLike[str], key: str) -> float | None:
    """Return the score that a checkpoint says it was kept for, or None if it does not say one.

    The callback that kept it saves its state under `key`. Raises what `read_checkpoint` raises.
    """
    source = _source(path)
    with _damage_reported(source):
        checkpoint = _mapped(source)
    try:
        score = checkpoint["callbacks"][key]["best_model_score"]
    except (LookupError, TypeError):
        return None
    return float(score) if isinstance(score, Tensor) and score.numel() == 1 else None


def read_model(path: str | os.PathLike[str]) -> nn.Module:
    """Return the trained model of a checkpoint, in evaluation mode.

    Raises what `read_checkpoint` raises.
    """
    checkpoint = read_checkpoint(path)
    prefix = "model."
    weights = {
        name.removeprefix(prefix): tensor
        for name, tensor in checkpoint["state_dict"].items()
        if name.startswith(prefix)
    }
    model = restore_model(checkpoint["visattn"]["model"], weights, source=path)
    _refuse_nonfinite(model.state_dict(), path, dict(model.named_parameters()))
    return model


def _source(path: str | os.PathLike[str]) -> Path:
    """Return a checkpoint's file, once it is known that this user may read it."""
    source = require_local_file(
        path, missing=f"no checkpoint at {path}; `visattn fit` says where it saves them"
    )
    with source.open("rb"):
        return source


@contextmanager
def _damage_reported(source: Path) -> Iterator[None]:
    """Turn whatever rubbish raises (IndexError, KeyError, OSError ...) into one kind of error."""
    try:
        yield
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else "it is empty"
        raise ValueError(
            f"{source} is damaged or no checkpoint: {type(error).__name__}, {reason}"
        ) from error


def _mapped(source: Path) -> Any:
    """Return what a file holds, its tensors mapped, not read.

    What a tensor promises beyond the end of the file fails here.
    """
    check_archive(source)
    mapped = torch.load(source, map_location="cpu", weights_only=True, mmap=True)
    check_tensors(mapped, source.stat().st_size)
    return mapped


def _check_contents(checkpoint: Any, source: Path) -> None:
    """Raise unless the checkpoint has a model description and weights that can be loaded."""
    if not isinstance(checkpoint, dict) or not checkpoint.get("visattn"):
        raise ValueError(f"{source} is no checkpoint of visattn's; `visattn fit` writes them")
    described = checkpoint["visattn"]
    state = checkpoint.get("state_dict")
    if not isinstance(described, dict) or not isinstance(described.get("model"), dict):
        raise ValueError(f"{source} is damaged: it does not say what its model is")  # noqa: TRY004 (a file's fault)
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in state.items()
    ):
        raise ValueError(f"{source} is damaged: its weights are no tensors with names")
    _refuse_nonfinite(state, source)


def _refuse_nonfinite(
    state: Mapping[str, Tensor], source: object, parameters: Collection[str] = ()
) -> None:
    """Refuse weights that no model can work with."""
    if names := nonfinite_weights(state, parameters):
        raise ValueError(
            f"{source} cannot be used: {len(names)} of its {len(state)} weight tensors hold NaN "
            f"or infinity ({format_names(names, 5)}); name an earlier checkpoint of the run"
        )
