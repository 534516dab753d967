"""Safe loading of `torch.save` files: only plain values and tensors are unpickled."""

import argparse
import copy
import pickletools
import re
import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any

import torch
from torch import Tensor, nn

from visattn.models.serialization.weight_files import check_memory

_MAX_PICKLE_BYTES = 2**26  # limit of data.pkl, which describes the tensors
_ALLOCATING_GLOBALS = ("bytearray", "torch Tensor")  # their argument is the size they allocate
_TENSOR_SLACK_BYTES = 2**20
_LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the pickled magic number
_LEGACY_PICKLES = 5  # before torch 1.6: magic number, protocol, system, object, storage keys
# Plain containers that training scripts save with the weights; creating them executes no code.
_SAFE_GLOBALS: list[Any] = [argparse.Namespace]


def read_archive(source: Path) -> Any:
    """Return the plain values and tensors in a `torch.save` file, without executing its code.

    Tensors of a zip archive are memory-mapped: unused tensors take no memory.

    Args:
        source: A .pth, .pt, .ckpt or .bin file, including the format before torch 1.6.

    Raises:
        ValueError: If the file is damaged, declares more data than it contains, or its pickle
            refers to a global that would be imported and executed.

    Example:
        >>> file = getfixture("tmp_path") / "weights.pth"
        >>> torch.save({"weight": torch.ones(2)}, file)
        >>> read_archive(file)
        {'weight': tensor([1., 1.])}
        >>> torch.save(nn.Linear(2, 3), file)
        >>> read_archive(file)
        Traceback (most recent call last):
        ValueError: ...weights.pth is a pickle that would import and run torch.nn.modules.linear...
    """
    with source.open("rb") as file:
        is_zip = file.read(2) == b"PK"
    try:
        if is_zip:
            _check_archive_format(source)
            check_archive(source)
        else:
            _check_legacy(source)
        with torch.serialization.safe_globals(_SAFE_GLOBALS):
            contents = torch.load(source, map_location="cpu", weights_only=True, mmap=is_zip)
        check_tensors(contents, source.stat().st_size)
    except Exception as error:  # torch raises IndexError, KeyError, OSError etc. for invalid data
        raise ValueError(_load_error_message(source, error)) from error
    return contents if is_zip else copy.deepcopy(contents)


def _load_error_message(source: Path, error: Exception) -> str:
    """Return an error message that describes why a file cannot be loaded."""
    text = str(error)
    unsafe_global = re.search(r"GLOBAL ([\w.]+)", text)
    if isinstance(error, UnpicklingError) and unsafe_global:
        return (
            f"{source} is a pickle that would import and run {unsafe_global[1]}, so it is not "
            "loaded; if you trust the model, save only its state dict: "
            "torch.save(model.state_dict(), 'weights.pth')"
        )
    if "TorchScript" in text:
        return (
            f"{source} is a TorchScript program, not a state dict; save its weights: "
            "torch.save(torch.jit.load(FILE).state_dict(), 'weights.pth')"
        )
    if isinstance(error, UnpicklingError):
        return (
            f"{source} is a pickle with objects other than plain values and tensors, which might "
            "execute code, so it is not loaded"
        )
    first_line = text.splitlines()[0] if text else "it is empty"
    return f"{source} is damaged or not a torch.save file: {first_line}"


def _check_archive_format(source: Path) -> None:
    """Raise an error if a zip archive is truncated or contains a TorchScript program."""
    if not zipfile.is_zipfile(source):
        raise ValueError("its end is missing, as after an interrupted download")
    with zipfile.ZipFile(source) as archive:
        if any(name.endswith("/constants.pkl") for name in archive.namelist()):
            raise ValueError("it contains TorchScript")


def _check_legacy(source: Path) -> None:
    """Raise an error if a file from before torch 1.6 is invalid or its pickles allocate memory."""
    check_memory(source.stat().st_size, "it")
    with source.open("rb") as file:
        if file.read(len(_LEGACY_MAGIC)) != _LEGACY_MAGIC:
            raise UnpicklingError("a pickle that torch.save did not write")
        file.seek(0)
        for _ in range(_LEGACY_PICKLES):
            _check_pickle(file)


def check_archive(source: Path) -> None:
    """Raise an error if an archive expands beyond its size or its pickle allocates memory.

    Args:
        source: A zip archive in the format of `torch.save`.

    Raises:
        ValueError: If the archive is compressed, expands to more than its own size, is larger
            than the memory, or has a pickle that is too long or allocates memory.
    """
    length = source.stat().st_size
    check_memory(length, "it")
    with zipfile.ZipFile(source) as archive:
        entries = archive.infolist()
        if sum(entry.file_size for entry in entries) > length:
            raise ValueError("it unpacks to more than its own size")
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise ValueError("it has a compressed entry, which torch.save does not write")
        for entry in entries:
            if entry.filename.endswith("data.pkl"):
                if entry.file_size > _MAX_PICKLE_BYTES:
                    raise ValueError(f"its pickle is longer than {_MAX_PICKLE_BYTES:,} bytes")
                _check_pickle(archive.read(entry))


def _check_pickle(pickled: bytes | IO[bytes]) -> None:
    """Raise an error if a pickle refers to a global that allocates memory; it is not executed."""
    for opcode, argument, _ in pickletools.genops(pickled):
        if opcode.name == "GLOBAL" and str(argument).endswith(_ALLOCATING_GLOBALS):
            raise ValueError(f"its pickle names {argument}, which no checkpoint needs")


def check_tensors(contents: object, length: int) -> None:
    """Raise an error if tensors exceed the size of their file or have an unsupported type.

    Args:
        contents: Contents of the file, such as nested dicts and lists.
        length: Size of the file in bytes.

    Raises:
        ValueError: If a tensor is sparse, quantized or of a subclass, or the tensors would take
            far more memory than the size of the file.
    """
    tensors = _nested_tensors(contents)
    unsupported = [
        tensor for tensor in tensors if tensor.layout != torch.strided or tensor.is_quantized
    ]
    if unsupported or any(type(tensor) not in (Tensor, nn.Parameter) for tensor in tensors):
        raise ValueError("it contains tensors of a type that no checkpoint needs")
    storages = [tensor.untyped_storage() for tensor in tensors]
    # Shared storages have the same address and count once.
    storage_bytes = {storage._cdata: storage.nbytes() for storage in storages}  # noqa: SLF001
    dense_bytes = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    if max(sum(storage_bytes.values()), dense_bytes) > 4 * length + _TENSOR_SLACK_BYTES:
        raise ValueError(
            f"its tensors would take {dense_bytes:,} bytes, far more than the size of the file"
        )


def _nested_tensors(contents: object) -> list[Tensor]:
    """Return all tensors in nested containers, each once; containers may contain themselves."""
    stack, visited, tensors = [contents], set[int](), list[Tensor]()
    while stack:
        value = stack.pop()
        if id(value) in visited:
            continue
        visited.add(id(value))
        if isinstance(value, Tensor):
            tensors.append(value)
        elif isinstance(value, dict):
            stack += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set):
            stack += value
    return tensors
