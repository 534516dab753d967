"""From a training checkpoint back to its model."""

import copy
import os
from typing import Any

import torch
from torch import Tensor, nn

from visattn.models.descriptions import restore
from visattn.models.torch_archives import check_archive, check_tensors
from visattn.models.weight_files import local_file


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return what a checkpoint holds: plain values and weights; nothing in it is executed.

    It is unpacked only after it was found to take no more memory than the file is long.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, is no checkpoint of visattn's, promises more than it
            holds, or lies on another machine.
    """
    source = local_file(
        path, missing=f"no checkpoint at {path}; `visattn fit` says where it saves them"
    )
    try:
        check_archive(source)
        # Mapped, not read: what a tensor promises beyond the end of the file fails here.
        mapped = torch.load(source, map_location="cpu", weights_only=True, mmap=True)
        check_tensors(mapped, source.stat().st_size)
        checkpoint = copy.deepcopy(mapped)
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
    told, state = checkpoint["visattn"], checkpoint.get("state_dict")
    if not isinstance(told, dict) or not isinstance(told.get("model"), dict):
        raise ValueError(f"{path} is damaged: it does not say what its model is")  # noqa: TRY004 (a file's fault)
    if not isinstance(state, dict) or not all(isinstance(one, Tensor) for one in state.values()):
        raise ValueError(f"{path} is damaged: its weights are no tensors with names")
    prefix = "model."
    weights = {
        str(name).removeprefix(prefix): tensor
        for name, tensor in state.items()
        if str(name).startswith(prefix)
    }
    return restore(told["model"], weights, source=path)
