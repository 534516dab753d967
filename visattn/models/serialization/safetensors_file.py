"""A trained model as one safetensors file: weights, how to build it, how to feed it.

The file executes nothing when it is read. It is written whole or not at all, carries a checksum
of its weights, and is refused when it is damaged or somebody else's.
"""

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from visattn.io.atomic import write_whole
from visattn.models.serialization.weight_files import Shapes, local_file, opened_weights, shapes_in

FORMAT = "visattn-1"


def write_model(
    path: str | os.PathLike[str], weights: Mapping[str, Tensor], description: Mapping[str, Any]
) -> None:
    """Write weights and a description of plain values as one file.

    Raises:
        ValueError: If the name does not end in .safetensors.
        OSError: If the folder cannot be written.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> write_model(folder / "m.safetensors", {"w": torch.ones(2)}, {"class": "SceneObject"})
        >>> read_model(folder / "m.safetensors")
        ({'w': tensor([1., 1.])}, {'class': 'Thing'})
    """
    target = Path(path)
    if target.suffix != ".safetensors":
        raise ValueError(f"a model is saved as NAME.safetensors, got {target.name}")
    whole = {  # tied tensors are written each
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in weights.items()
    }
    described = json.dumps(description, allow_nan=False)
    header = {"format": FORMAT, "checksum": _checksum(whole, described), "description": described}
    # One entry: safetensors writes several in an order that changes from call to call.
    write_whole(target, save(whole, metadata={"visattn": json.dumps(header)}))


def read_model(
    path: str | os.PathLike[str], *, check: Callable[[dict[str, Any], Shapes], object] | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights and the description that a file holds.

    Args:
        path: The file.
        check: Is shown the description and the shapes of the weights before any of them is read,
            and raises if they do not fit together.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, was not written by `write_model`, holds more than the
            memory of this machine, or lies on another one.
    """
    source = local_file(path, missing=f"no model at {path}; `visattn export` writes one")
    with opened_weights(source) as file:
        header = _header(source, (file.metadata() or {}).get("visattn", ""))
        described = _mapping(header["description"])
        if described is None:
            raise ValueError(f"{source} describes no model: its description is no mapping")
        if check is not None:
            check(described, shapes_in(file))
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if header["checksum"] != _checksum(weights, header["description"]):
        raise ValueError(
            f"{source} is damaged: its checksum does not match; fetch or export it anew"
        )
    return weights, described


def _header(source: Path, text: str) -> dict[str, str]:
    """Return what `write_model` noted beside the weights, checked for its form."""
    header = _mapping(text)
    wanted = {"format", "checksum", "description"}
    if header is None or set(header) != wanted or header["format"] != FORMAT:
        raise ValueError(
            f"{source} is a safetensors file, but none of visattn's in the format {FORMAT}, which "
            "`visattn export` writes; weights of another model go to that model: "
            "--model timm:NAME --weights FILE, or --model FILE.py:NAME --weights FILE"
        )
    return {name: str(value) for name, value in header.items()}


def _mapping(text: str) -> dict[str, Any] | None:
    """Return what JSON holds, or None if that is no mapping."""
    try:
        told = json.loads(text)
    except (ValueError, RecursionError):  # no JSON, too many digits, lists within lists within ...
        return None
    return told if isinstance(told, dict) else None


def _checksum(weights: Mapping[str, Tensor], description: str) -> str:
    digest = hashlib.sha256(description.encode())
    for name in sorted(weights):
        tensor = weights[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
