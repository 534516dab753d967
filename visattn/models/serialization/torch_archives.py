"""Files of `torch.save`: archives whose pickle is read as plain values and tensors alone."""

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

_LONGEST = 2**26  # bytes of the part that says what the weights belong to
_GREEDY = ("bytearray", "torch Tensor")  # these take as much memory as a number says
_SLACK = 2**20
_LEGACY_START = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the magic number, pickled
_LEGACY_PICKLES = 5  # of a file before torch 1.6: magic, protocol, system, contents, names
# Plain containers that training scripts keep beside the weights; making one runs nothing.
_HARMLESS: list[Any] = [argparse.Namespace]


def read_archive(source: Path) -> Any:
    """Return what a file of `torch.save` holds: plain values and tensors; nothing in it is run.

    Tensors of an archive are mapped, not read: those that are not used take no memory.

    Args:
        source: A .pth, .pt, .ckpt or .bin file; also those that torch wrote before version 1.6.

    Raises:
        ValueError: If the file is damaged, promises more than it holds, or its pickle names
            anything that would have to be imported and run.

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
    with source.open("rb") as opened:
        zipped = opened.read(2) == b"PK"
    try:
        if zipped:
            _check_kind(source)
            check_archive(source)
        else:
            _check_legacy(source)
        with torch.serialization.safe_globals(_HARMLESS):
            held = torch.load(source, map_location="cpu", weights_only=True, mmap=zipped)
        check_tensors(held, source.stat().st_size)
    except Exception as error:  # rubbish makes torch leak IndexError, KeyError, OSError ...
        raise ValueError(_reason(source, error)) from error
    return held if zipped else copy.deepcopy(held)


def _reason(source: Path, error: Exception) -> str:
    text = str(error)
    named = re.search(r"GLOBAL ([\w.]+)", text)
    if isinstance(error, UnpicklingError) and named:
        return (
            f"{source} is a pickle that would import and run {named[1]}, so it is not loaded; of a "
            "model that you trust, save the weights alone: "
            "torch.save(model.state_dict(), 'weights.pth')"
        )
    if "TorchScript" in text:
        return (
            f"{source} is a TorchScript program, not weights; save those: "
            "torch.save(torch.jit.load(FILE).state_dict(), 'weights.pth')"
        )
    if isinstance(error, UnpicklingError):
        return (
            f"{source} is a pickle of more than plain values and tensors, which might run "
            "anything, so it is not loaded"
        )
    line = text.splitlines()[0] if text else "it is empty"
    return f"{source} is damaged or no file of torch.save: {line}"


def _check_kind(source: Path) -> None:
    """Refuse an archive whose end is missing, or that holds a program."""
    if not zipfile.is_zipfile(source):
        raise ValueError("its end is missing, as after a download that broke off")
    with zipfile.ZipFile(source) as archive:
        if any(name.endswith("/constants.pkl") for name in archive.namelist()):
            raise ValueError("it holds TorchScript")


def _check_legacy(source: Path) -> None:
    """Refuse a file of before torch 1.6 whose index makes memory."""
    check_memory(source.stat().st_size, "it")
    with source.open("rb") as opened:
        if opened.read(len(_LEGACY_START)) != _LEGACY_START:
            raise UnpicklingError("a pickle, but not of torch.save")
        opened.seek(0)
        for _ in range(_LEGACY_PICKLES):
            _check_index(opened)


def check_archive(source: Path) -> None:
    """Refuse an archive that would unpack to more than it is, or whose index makes memory.

    Args:
        source: A file as `torch.save` writes it.

    Raises:
        ValueError: With the reason.
    """
    length = source.stat().st_size
    check_memory(length, "it")
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


def _check_index(index: bytes | IO[bytes]) -> None:
    """Refuse an index that names what takes memory by a mere number; nothing of it is run."""
    for step, value, _ in pickletools.genops(index):
        if step.name == "GLOBAL" and str(value).endswith(_GREEDY):
            raise ValueError(f"it names {value}, which no checkpoint needs")


def check_tensors(held: object, length: int) -> None:
    """Refuse tensors that take more memory than their file is long, or are of an odd kind.

    Args:
        held: What the file holds.
        length: Of the file, in bytes.

    Raises:
        ValueError: With the reason.
    """
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
