"""Models as files, and files as models."""

import os
from functools import partial

from torch import nn

from visattn import store
from visattn.models.descriptions import check_fit, describe, filled
from visattn.models.weight_files import check_finite


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a model as one safetensors file that `load` needs nothing else for.

    Raises:
        ValueError: If the model is none of visattn's, or the name does not end in .safetensors.

    Example:
        >>> from visattn.models.encoders import SmallEncoder
        >>> file = getfixture("tmp_path") / "encoder.safetensors"
        >>> save(SmallEncoder((24, 24), channels=8), file)
        >>> load(file).channels
        8
    """
    store.write_model(path, model.state_dict(), describe(model))


def load(path: str | os.PathLike[str]) -> nn.Module:
    """Return the model that a file holds, ready to look: in evaluation mode, on the CPU.

    Nothing in the file is executed, and no memory is taken for weights before it is known that they
    are those of the model that it describes.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, holds no model of visattn's or NaN weights, or lies on
            another machine.

    Example:
        >>> load("nowhere.safetensors")
        Traceback (most recent call last):
        FileNotFoundError: no model at nowhere.safetensors; `visattn export` writes one
    """
    fits = partial(check_fit, source=path)
    weights, description = store.read_model(path, check=fits)
    model = filled(description, weights)
    check_finite(model, path)
    return model
