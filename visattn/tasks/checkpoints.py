"""From a training checkpoint back to its model."""

import copy
import os
import pickletools
import zipfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from visattn.models.descriptions import restore
from visattn.models.weight_files import check_room, local_file

_LONGEST = 2**26  # bytes of the part that says what the weights belong to
_GREEDY = ("bytearray", "torch Tensor")  # these take as much memory as a number says
_SLACK = 2**20


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
        _check_archive(source)
        # Mapped, not read: what a tensor promises beyond the end of the file fails here.
        mapped = torch.load(source, map_location="cpu", weights_only=True, mmap=True)
        _check_tensors(mapped, source.stat().st_size)
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


def _check_archive(source: Path) -> None:
    """Refuse an archive that would unpack to more than it is, or whose index makes memory.

    Raises:
        ValueError: With the reason.
    """
    length = source.stat().st_size
    check_room(length, "it")
    with zipfile.ZipFile(source) as archive:
        parts = archive.infolist()
        if sum(part.file_size for part in parts) > length:
            raise ValueError("it unpacks to more than it is long")
        if any(part.compress_type != zipfile.ZIP_STORED for part in parts):
            raise ValueError("a part of it is packed, which no checkpoint is")
        for part in parts:
            if part.filename.endswith("data.pkl"):
                if part.file_size > _LONGEST:
                    raise ValueError(f"its index is longer than {_LONGEST:,} bytes")
                _check_index(archive.read(part))


def _check_index(index: bytes) -> None:
    """Refuse an index that names what takes memory by a mere number; nothing of it is run."""
    for step, value, _ in pickletools.genops(index):
        if step.name == "GLOBAL" and str(value).endswith(_GREEDY):
            raise ValueError(f"it names {value}, which no checkpoint needs")


def _check_tensors(held: object, length: int) -> None:
    """Refuse tensors that take more memory than their file is long, or are of an odd kind."""
    tensors = _tensors(held)
    odd = [one for one in tensors if one.layout != torch.strided or one.is_quantized]
    if odd or any(type(one) not in (Tensor, nn.Parameter) for one in tensors):
        raise ValueError("it holds tensors of a kind that no checkpoint needs")
    storages = [one.untyped_storage() for one in tensors]
    kept = {one._cdata: one.nbytes() for one in storages}  # noqa: SLF001 (which ones are shared)
    unfolded = sum(one.numel() * one.element_size() for one in tensors)
    if max(sum(kept.values()), unfolded) > 4 * length + _SLACK:
        raise ValueError(f"its tensors would take {unfolded:,} bytes, far more than it is long")


def _tensors(held: object) -> list[Tensor]:
    """Return every tensor in lists and mappings, each once, however they hold each other."""
    waiting, seen, found = [held], set[int](), list[Tensor]()
    while waiting:
        one = waiting.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, Tensor):
            found.append(one)
        elif isinstance(one, dict):
            waiting += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set):
            waiting += one
    return found
