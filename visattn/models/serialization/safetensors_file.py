"""Trained models as single safetensors files: weights and model description, with a checksum.

Reading a file executes no code. Files are written atomically; damaged files and files of other
libraries are refused.
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

from visattn.io.atomic import atomic_write
from visattn.io.safe_text import parse_json
from visattn.io.written_files import finish_replacements
from visattn.models.serialization.weight_files import (
    Shapes,
    open_safetensors,
    require_local_file,
    tensor_shapes,
)

FORMAT = "visattn-1"


def write_safetensors(
    path: str | os.PathLike[str], weights: Mapping[str, Tensor], description: Mapping[str, Any]
) -> None:
    """Write weights and a description of plain values to one file.

    Raises:
        ValueError: If the name does not end in .safetensors.
        OSError: If the folder is not writable.

    Example:
        >>> folder = getfixture("tmp_path")
        >>> write_safetensors(folder / "m.safetensors", {"w": torch.ones(2)}, {"class": "Net"})
        >>> read_safetensors(folder / "m.safetensors")
        ({'w': tensor([1., 1.])}, {'class': 'Net'})
    """
    target = Path(path)
    if target.suffix != ".safetensors":
        raise ValueError(f"the file name of a model must end in .safetensors, got {target.name}")
    tensors = {  # tied tensors are written separately
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in weights.items()
    }
    described = json.dumps(description, allow_nan=False)
    header = {"format": FORMAT, "checksum": _checksum(tensors, described), "description": described}
    # A single entry: safetensors writes several entries in random order.
    atomic_write(target, save(tensors, metadata={"visattn": json.dumps(header)}))


def read_safetensors(
    path: str | os.PathLike[str], *, check: Callable[[dict[str, Any], Shapes], object] | None = None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights and the description in a file.

    Args:
        path: The file.
        check: Called with the description and the shapes of the weights before any of them is
            read; raises if they do not fit together.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is damaged, was not written by `write_safetensors`, is larger than
            the memory of this machine, or the path is remote.
    """
    if not os.path.lexists(path):  # it may be on its way, with its card
        finish_replacements(Path(path).parent)
    source = require_local_file(path, missing=f"no model at {path}; `visattn export` writes one")
    with open_safetensors(source) as file:
        header = _header(source, (file.metadata() or {}).get("visattn", ""))
        described = _mapping(header["description"])
        if described is None:
            raise ValueError(f"{source} is damaged: its model description is not a mapping")
        if check is not None:
            check(described, tensor_shapes(file))
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if header["checksum"] != _checksum(weights, header["description"]):
        raise ValueError(
            f"{source} is damaged: its checksum does not match; download, export or install it "
            "again"
        )
    return weights, described


def _header(source: Path, text: str) -> dict[str, str]:
    """Return the header written by `write_safetensors`, after checking its format."""
    header = _mapping(text)
    keys = {"format", "checksum", "description"}
    if header is None or set(header) != keys or header["format"] != FORMAT:
        raise ValueError(
            f"{source} is a safetensors file, but not an exported visattn model (format {FORMAT}, "
            "written by `visattn export`); load weights of another model with "
            "--model timm:NAME --weights FILE or --model FILE.py:NAME --weights FILE"
        )
    return {name: str(value) for name, value in header.items()}


def _mapping(text: str) -> dict[str, Any] | None:
    """Return the mapping in a JSON string, or None if it is not valid."""
    try:
        value = parse_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _checksum(weights: Mapping[str, Tensor], description: str) -> str:
    digest = hashlib.sha256(description.encode())
    for name in sorted(weights):
        tensor = weights[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
