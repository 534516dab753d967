"""From a training checkpoint back to its model."""

import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from visattn.models.descriptions import restore


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a checkpoint holds: plain values and weights; nothing in it is executed.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, or is no checkpoint of visattn's.
    """
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(
            f"no checkpoint at {source}; `visattn fit` says where it saves them"
        )
    try:
        checkpoint = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # rubbish makes torch leak IndexError, KeyError, OSError ...
        reason = str(error).splitlines()[0] if str(error) else "it is empty"
        raise ValueError(
            f"{source} is damaged or no checkpoint: {type(error).__name__}, {reason}"
        ) from error
    if not isinstance(checkpoint, dict) or not checkpoint.get("visattn"):
        raise ValueError(f"{source} is no checkpoint of visattn's; `visattn fit` writes them")
    return checkpoint


def read_model(path: str | os.PathLike[str]) -> nn.Module:
    """Return the trained model of a checkpoint, in evaluation mode.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, or is no checkpoint of visattn's.
    """
    checkpoint = read_checkpoint(path)
    prefix = "model."
    weights = {
        name.removeprefix(prefix): tensor
        for name, tensor in checkpoint["state_dict"].items()
        if name.startswith(prefix)
    }
    return restore(checkpoint["visattn"]["model"], weights, source=path)
