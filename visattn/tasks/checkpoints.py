"""From a training checkpoint back to its model."""

import os
from pathlib import Path

import torch
from torch import nn

from visattn.models.descriptions import build


def read_model(path: str | os.PathLike[str]) -> nn.Module:
    """Return the trained model of a checkpoint, in evaluation mode; nothing in it is executed.

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
    ours = checkpoint.get("visattn") if isinstance(checkpoint, dict) else None
    if not ours:
        raise ValueError(f"{source} is no checkpoint of visattn's; `visattn fit` writes them")
    model = build(ours["model"])
    prefix = "model."
    weights = {
        name.removeprefix(prefix): tensor
        for name, tensor in checkpoint["state_dict"].items()
        if name.startswith(prefix)
    }
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items()}
    if wanted != {name: tensor.shape for name, tensor in weights.items()}:
        raise ValueError(f"{source} is damaged: its weights do not fit the model it describes")
    model.load_state_dict(weights)
    return model.eval()
