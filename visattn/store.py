"""A trained model as one safetensors file: weights, how to build it, how to feed it.

The file executes nothing when it is read. It is written whole or not at all, carries a checksum
of its weights, and is refused when it is damaged or somebody else's.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

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
        >>> write_model(folder / "m.safetensors", {"w": torch.ones(2)}, {"class": "Thing"})
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
    _write_whole(target, save(whole, metadata={"visattn": json.dumps(header)}))


def read_model(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the weights and the description that a file holds.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is damaged, or was not written by `write_model`.
    """
    source = Path(path)
    if not source.is_file():
        raise FileNotFoundError(f"no model at {source}; `visattn export` writes one")
    try:
        with safe_open(source, framework="pt") as file:
            header = _header(source, (file.metadata() or {}).get("visattn", ""))
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{source} is damaged or no safetensors file: {error}") from error
    if header["checksum"] != _checksum(weights, header["description"]):
        raise ValueError(
            f"{source} is damaged: its checksum does not match; fetch or export it anew"
        )
    described = json.loads(header["description"])
    if not isinstance(described, dict):
        raise ValueError(f"{source} describes no model: its description is no mapping")  # noqa: TRY004 (a file's fault)
    return weights, described


def _header(source: Path, text: str) -> dict[str, str]:
    """Return what `write_model` noted beside the weights, checked for its form."""
    try:
        header = json.loads(text)
    except json.JSONDecodeError:
        header = None
    wanted = {"format", "checksum", "description"}
    if not isinstance(header, dict) or set(header) != wanted or header["format"] != FORMAT:
        raise ValueError(
            f"{source} is a safetensors file, but none of visattn's in the format {FORMAT}; "
            "`visattn export` writes them"
        )
    return {name: str(value) for name, value in header.items()}


def _checksum(weights: Mapping[str, Tensor], description: str) -> str:
    digest = hashlib.sha256(description.encode())
    for name in sorted(weights):
        tensor = weights[name].contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _write_whole(target: Path, content: bytes) -> None:
    """Put a file into place in one move, so that a cut-off write leaves the old one."""
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        mask = os.umask(0)
        os.umask(mask)
        Path(name).chmod(0o666 & ~mask)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
