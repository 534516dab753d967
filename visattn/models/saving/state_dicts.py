"""Safe loading of `torch.save` files: only plain values and tensors are unpickled."""

import argparse
import copy
import pickletools
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import IO, Any, cast

import torch
from torch import Tensor, nn

from visattn.io.safe_text import read_json
from visattn.models.saving.weight_files import (
    begins_as_safetensors,
    check_memory,
    open_safetensors,
    require_local_file,
)

_MAX_PICKLE_BYTES = 2**26  # limit of data.pkl, which describes the tensors
_ALLOCATING_GLOBALS = ("bytearray", "torch Tensor")  # their argument is the size they allocate
_TENSOR_SLACK_BYTES = 2**20
_LEGACY_MAGIC = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # the pickled magic number
_LEGACY_PICKLES = 5  # before torch 1.6: magic number, protocol, system, object, storage keys
# Plain containers that training scripts save with the weights; creating them executes no code.
_SAFE_GLOBALS: list[Any] = [argparse.Namespace]


def read_archive(source: Path) -> Any:
    """Return the plain values and tensors in a `torch.save` file, without executing its code.

    Tensors of a zip archive are memory-mapped: unused tensors take no memory. The format before
    torch 1.6 is read too.

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
    """Refuse an archive that expands beyond its size, or whose pickle is long or allocates memory.

    It may not be compressed, nor larger than the memory.
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
    """Refuse tensors that take far more bytes than their file, and those of unsupported types.

    These are sparse and quantized tensors, and those of subclasses.
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
    stack = [contents]
    visited = set[int]()
    tensors = list[Tensor]()
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


TensorDict = dict[str, Tensor]

# Keys under which training scripts save the state dict; averaged (EMA) weights come first.
_WRAPPERS = (
    "state_dict_ema", "model_ema", "ema_state_dict", "params_ema", "ema", "state_dict",
    "model_state_dict", "model", "module", "net", "network", "weights", "params", "teacher",
    "student",
)  # fmt: skip
_COMPILE_PREFIX = "_orig_mod."
_COMMON_PREFIX = re.compile(r"^(?:(?:module|model|backbone|encoder|net|network)\.)+")
_WEIGHT_FILES = (
    "model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)  # fmt: skip
_MAX_INDEX_BYTES = 2**26
_MAX_WRAPPERS = 4  # nested mappings around the state dict


@dataclass(frozen=True, eq=False)
class StateDict:
    """A state dict and the file that it was loaded from.

    Args:
        tensors: Weights by name, memory-mapped from the file: unused tensors take no memory.
        source: Path of the file or the index of sharded weights.
        notes: Descriptions of the wrappers and prefixes that were removed.
    """

    tensors: TensorDict
    source: Path
    notes: tuple[str, ...] = ()


def read_state_dict(path: Path) -> StateDict:
    """Return the state dict in a file or a folder, without its wrappers.

    Args:
        path: A safetensors file; a `torch.save` file (.pth, .pt, .ckpt, .bin); the index of
            sharded weights, such as model.safetensors.index.json; or a folder with such a file.

    Raises:
        FileNotFoundError: If the path does not exist.
        ValueError: If the file is damaged, contains no weights, is larger than the memory, would
            execute code, or is the address of a remote file.

    Example:
        >>> import torch
        >>> file = getfixture("tmp_path") / "last.ckpt"
        >>> torch.save({"epoch": 3, "state_dict": {"model.bias": torch.ones(2)}}, file)
        >>> checkpoint = read_state_dict(file)
        >>> checkpoint.tensors, checkpoint.notes
        ({'model.bias': tensor([1., 1.])}, ('the weights are those in state_dict',))
    """
    source = _weight_file(path) if path.is_dir() else path
    source = require_local_file(source, missing=f"weights {path} do not exist")
    if source.suffix == ".json":
        return StateDict(_load_shards(source), source)
    tensors, notes = _unwrap(_load_contents(source), source)
    return StateDict(tensors, source, notes)


def strip_prefix(loaded: StateDict, names: Collection[str]) -> StateDict:
    """Return a state dict whose keys match those of a model, without a prefix such as `module.`.

    The prefix is the one with which most of the model's keys occur; tensors without it are
    dropped. If several prefixes match equally often, the first one with averaged weights (ema) is
    used, otherwise the first one.

    Args:
        loaded: State dict with any keys.
        names: Keys of the model's state dict.

    Example:
        >>> import torch
        >>> ones = torch.ones(1)
        >>> checkpoint = StateDict({"net.fc.bias": ones, "loss.scale": ones}, Path("a.ckpt"))
        >>> stripped = strip_prefix(checkpoint, ["fc.bias"])
        >>> stripped.tensors, stripped.notes[0][:26]
        ({'fc.bias': tensor([1.])}, 'the prefix net. is removed')
    """
    tensors = loaded.tensors
    notes = list(loaded.notes)
    if any(_COMPILE_PREFIX in name for name in tensors):
        tensors = {name.replace(_COMPILE_PREFIX, ""): tensor for name, tensor in tensors.items()}
        notes.append(f"{_COMPILE_PREFIX} of torch.compile is removed from the names")
    prefix = _matching_prefix(tensors, set(names))
    if prefix:
        dropped = [name for name in tensors if not name.startswith(prefix)]
        tensors = {
            name.removeprefix(prefix): tensor
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }
        omission = (
            f", {len(dropped)} tensors without it are left out ({dropped[0]} first)"
            if dropped
            else ""
        )
        notes.append(f"the prefix {prefix} is removed{omission}")
    return StateDict(tensors, loaded.source, tuple(notes))


def _matching_prefix(tensors: TensorDict, names: set[str]) -> str:
    """Return the key prefix with which most names of a model occur, "" for none."""
    counts = Counter[str]()
    # Each key votes for what stands before a name of the model: with `conv.weight` in the model
    # `module.conv.weight` votes for `module.`
    for name in tensors:
        starts = [0, *(match.end() for match in re.finditer(r"\.", name))]
        counts.update(name[:start] for start in starts if name[start:] in names)
    if not counts:  # no key matches: all keys may still share a common wrapper prefix
        shared = {match[0] if (match := _COMMON_PREFIX.match(name)) else "" for name in tensors}
        return shared.pop() if len(shared) == 1 else ""
    highest_count = max(counts.values())
    candidates = [prefix for prefix, count in counts.items() if count == highest_count]
    if "" in candidates:
        return ""
    return next((prefix for prefix in candidates if "ema" in prefix), candidates[0])


def _load_contents(source: Path) -> Any:
    """Return the contents of a weight file, whose format is detected from its first bytes."""
    with source.open("rb") as file:
        first_bytes = file.read(64)
    if not begins_as_safetensors(first_bytes):
        if first_bytes[:2] == b"PK" or first_bytes[:1] == b"\x80":
            return read_archive(source)
        if not first_bytes:
            raise ValueError(f"{source} is empty")
        if first_bytes.startswith(b"version https://git-lfs"):
            raise ValueError(f"{source} is a Git LFS pointer, not the weights: run git lfs pull")
        if first_bytes.lstrip()[:1] == b"<":
            raise ValueError(f"{source} is a web page, not weights: download the file itself")
    with open_safetensors(source) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


def _unwrap(contents: Any, source: Path) -> tuple[TensorDict, tuple[str, ...]]:
    """Return the state dict in the contents of a file, and notes with the keys that lead to it."""
    wrapper_keys: list[str] = []
    while isinstance(contents, Mapping) and len(wrapper_keys) < _MAX_WRAPPERS:
        entries = {str(key): value for key, value in cast("Mapping[Any, Any]", contents).items()}
        nested = {key: value for key, value in entries.items() if _has_tensors(value)}
        tensors = {key: value for key, value in entries.items() if isinstance(value, Tensor)}
        wrapper = next((key for key in _WRAPPERS if key in nested), None)
        if wrapper is None and not tensors and len(nested) == 1:
            wrapper = next(iter(nested))
        if wrapper is None:
            if tensors:
                path = ".".join(wrapper_keys)
                return tensors, (f"the weights are those in {path}",) if wrapper_keys else ()
            if nested:
                raise ValueError(
                    f"{source} holds several sets of weights, {', '.join(nested)}: save only one "
                    "of them"
                )
            break
        wrapper_keys.append(wrapper)
        contents = entries[wrapper]
    raise ValueError(f"{source} holds no weights: it has no mapping from names to tensors")


def _has_tensors(value: Any) -> bool:
    """Return whether a value is a mapping with tensors, directly or in nested mappings."""
    for _ in range(_MAX_WRAPPERS):
        if not isinstance(value, Mapping) or not value:
            return False
        values = list(cast("Mapping[Any, Any]", value).values())
        if any(isinstance(entry, Tensor) for entry in values):
            return True
        value = next((entry for entry in values if isinstance(entry, Mapping) and entry), None)
    return False


def _load_shards(index: Path) -> TensorDict:
    """Return the state dict of sharded weights, each tensor from the file in the index."""
    content = read_json(index, _MAX_INDEX_BYTES)
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{index} is not an index of sharded weights: it has no weight_map")
    files = sorted(set(map(str, weight_map.values())))
    if outside := [name for name in files if Path(name).name != name]:
        raise ValueError(
            f"{index} names {outside[0]!r}; a shard must be in the folder of its index"
        )
    shards = {
        name: require_local_file(
            index.parent / name, missing=f"{index} names {name}, which is missing"
        )
        for name in files
    }
    check_memory(sum(file.stat().st_size for file in shards.values()), index.parent)
    tensors = {name: _unwrap(_load_contents(file), file)[0] for name, file in shards.items()}
    if missing := [name for name, file in weight_map.items() if name not in tensors[str(file)]]:
        raise ValueError(f"{index.parent / str(weight_map[missing[0]])} lacks {missing[0]}")
    return {name: tensors[str(file)][name] for name, file in weight_map.items()}


def _weight_file(folder: Path) -> Path:
    """Return the weight file or the index of sharded weights in a folder."""
    for name in _WEIGHT_FILES:
        if (folder / name).is_file():
            return folder / name
    candidates = sorted(
        file
        for file in folder.iterdir()
        if file.suffix in (".safetensors", ".pth", ".pt", ".ckpt", ".bin")
    )
    if len(candidates) == 1:
        return candidates[0]
    summary = (
        f"{len(candidates)} files of weights, {candidates[0].name} first"
        if candidates
        else "no weights"
    )
    raise ValueError(f"{folder} holds {summary}: name one file, or the index of sharded weights")
