"""Models as files, and files as models."""

import os
from functools import partial

from torch import nn

from visattn.models.serialization import safetensors_file as store
from visattn.models.serialization.config import CLASSES, check_fit, describe, filled
from visattn.models.serialization.weight_files import check_finite


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a model as one safetensors file that `load` needs nothing else for.

    Raises:
        ValueError: If the model is none of visattn's, or the name does not end in .safetensors.

    Example:
        >>> from visattn.models.encoder import SmallEncoder
        >>> file = getfixture("tmp_path") / "encoder.safetensors"
        >>> save(SmallEncoder((24, 24), channels=8), file)
        >>> load(file).channels
        8
    """
    if CLASSES.get(type(model).__name__) is not type(model):
        raise ValueError(
            f"only models of visattn ({', '.join(CLASSES)}) can be described and saved, got "
            f"{type(model).__name__}; of others save the weights, "
            "torch.save(model.state_dict(), 'weights.pth'), and name the code that builds it: "
            "--model FILE.py:NAME --weights weights.pth"
        )
    store.write_model(path, model.state_dict(), describe(model))


def load(path: str | os.PathLike[str]) -> nn.Module:
    """Return the model that a file holds, ready to look: in evaluation mode, on the CPU.

    Only models of visattn say how they are built. Weights of others go into a model that you build,
    with `model.load_state_dict`, or on the command line with `--model SPEC --weights FILE`.

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
