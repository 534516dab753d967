"""State dicts of any origin: their files, what wraps them, and prefixes before their names."""

import json
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from torch import Tensor

from visattn.models.serialization.torch_archives import read_archive
from visattn.models.serialization.weight_files import (
    check_memory,
    open_safetensors,
    require_local_file,
)

TensorDict = dict[str, Tensor]

# Where training scripts keep the weights, averaged ones before those of the last step.
_WRAPPERS = (
    "state_dict_ema", "model_ema", "ema_state_dict", "params_ema", "ema", "state_dict",
    "model_state_dict", "model", "module", "net", "network", "weights", "params", "teacher",
    "student",
)  # fmt: skip
_COMPILED = "_orig_mod."
_USUAL = re.compile(r"^(?:(?:module|model|backbone|encoder|net|network)\.)+")
_FOLDER = (
    "model.safetensors.index.json", "model.safetensors", "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)  # fmt: skip
_LONGEST_INDEX = 2**26  # bytes
_DEEPEST = 4  # mappings around the weights


@dataclass(frozen=True, eq=False)
class StateDict:
    """The weights in a file, by name.

    Args:
        tensors: Mapped from the file: those that are not used take no memory.
        source: The file or folder.
        notes: What was removed around them, in sentences.
    """

    tensors: TensorDict
    source: Path
    notes: tuple[str, ...] = ()


def read_state_dict(path: Path) -> StateDict:
    """Return the weights that a file or a folder holds, without what wraps them.

    Args:
        path: A safetensors file; a file of `torch.save` (.pth, .pt, .ckpt, .bin); the index of
            sharded weights, such as model.safetensors.index.json; or the folder of such files.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is damaged, holds no weights, more than the memory, or what would have to
            be run, or lies on another machine.

    Example:
        >>> import torch
        >>> file = getfixture("tmp_path") / "last.ckpt"
        >>> torch.save({"epoch": 3, "state_dict": {"model.bias": torch.ones(2)}}, file)
        >>> held = read_state_dict(file)
        >>> held.tensors, held.notes
        ({'model.bias': tensor([1., 1.])}, ('the weights are those in state_dict',))
    """
    source = _in_folder(path) if path.is_dir() else path
    source = require_local_file(source, missing=f"weights {path} do not exist")
    if source.suffix == ".json":
        return StateDict(_sharded(source), source)
    tensors, notes = _unwrapped(_held(source), source)
    return StateDict(tensors, source, notes)


def strip_prefix(held: StateDict, names: Collection[str]) -> StateDict:
    """Return weights under the names that a model has, without a prefix such as `module.`.

    The prefix is the one behind which most of the model's names stand; other tensors are left out.
    Where two fit alike, averaged weights (ema) are taken, else the first ones.

    Args:
        held: Weights under any names.
        names: Of the model's weights.

    Example:
        >>> import torch
        >>> one = torch.ones(1)
        >>> held = StateDict({"net.fc.bias": one, "loss.scale": one}, Path("a.ckpt"))
        >>> fitted = strip_prefix(held, ["fc.bias"])
        >>> fitted.tensors, fitted.notes[0][:26]
        ({'fc.bias': tensor([1.])}, 'the prefix net. is removed')
    """
    tensors, notes = held.tensors, list(held.notes)
    if any(_COMPILED in name for name in tensors):
        tensors = {name.replace(_COMPILED, ""): tensor for name, tensor in tensors.items()}
        notes.append(f"{_COMPILED} of torch.compile is removed from the names")
    prefix = _prefix(tensors, set(names))
    if prefix:
        rest = [name for name in tensors if not name.startswith(prefix)]
        tensors = {
            name.removeprefix(prefix): tensor
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }
        left = f", {len(rest)} tensors without it are left out ({rest[0]} first)" if rest else ""
        notes.append(f"the prefix {prefix} is removed{left}")
    return StateDict(tensors, held.source, tuple(notes))


def _prefix(tensors: TensorDict, names: set[str]) -> str:
    """Return what stands before the names of a model."""
    counts = Counter[str]()
    for name in tensors:
        starts = [0, *(match.end() for match in re.finditer(r"\.", name))]
        counts.update(name[:start] for start in starts if name[start:] in names)
    if not counts:  # names of another kind altogether: what they share may still be a wrapper's
        shared = {match[0] if (match := _USUAL.match(name)) else "" for name in tensors}
        return shared.pop() if len(shared) == 1 else ""
    most = max(counts.values())
    best = [prefix for prefix, count in counts.items() if count == most]
    if "" in best:
        return ""
    return next((prefix for prefix in best if "ema" in prefix), best[0])


def _held(source: Path) -> Any:
    """Return what a file holds, by its first bytes."""
    with source.open("rb") as opened:
        begun = opened.read(64)
    if begun[:2] == b"PK" or begun[:1] == b"\x80":
        return read_archive(source)
    if not begun:
        raise ValueError(f"{source} is empty")
    if begun.startswith(b"version https://git-lfs"):
        raise ValueError(f"{source} is a pointer of Git LFS, not the weights: run git lfs pull")
    if begun.lstrip()[:1] == b"<":
        raise ValueError(f"{source} is a page of the web, not weights: download the file itself")
    with open_safetensors(source) as opened:
        return {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118


def _unwrapped(held: Any, source: Path) -> tuple[TensorDict, tuple[str, ...]]:
    """Return the tensors with names in what a file holds, and which way led to them."""
    way: list[str] = []
    while isinstance(held, Mapping) and len(way) < _DEEPEST:
        entries = {str(key): value for key, value in cast("Mapping[Any, Any]", held).items()}
        inner = {key: value for key, value in entries.items() if _has_tensors(value)}
        tensors = {key: value for key, value in entries.items() if isinstance(value, Tensor)}
        known = next((key for key in _WRAPPERS if key in inner), None)
        if known is None and not tensors and len(inner) == 1:
            known = next(iter(inner))
        if known is None:
            if tensors:
                notes = (f"the weights are those in {'.'.join(way)}",) if way else ()
                return tensors, notes
            if inner:
                raise ValueError(
                    f"{source} holds several sets of weights, {', '.join(inner)}: save one of "
                    "them alone"
                )
            break
        way.append(known)
        held = entries[known]
    raise ValueError(f"{source} holds no weights: no tensors with names")


def _has_tensors(value: Any) -> bool:
    """Whether a value is a mapping with tensors, at any depth that wrappers have."""
    for _ in range(_DEEPEST):
        if not isinstance(value, Mapping) or not value:
            return False
        values = list(cast("Mapping[Any, Any]", value).values())
        if any(isinstance(one, Tensor) for one in values):
            return True
        value = next((one for one in values if isinstance(one, Mapping) and one), None)
    return False


def _sharded(index: Path) -> TensorDict:
    """Return the weights that an index of shards names, each from the file that it names."""
    if index.stat().st_size > _LONGEST_INDEX:
        raise ValueError(f"{index} is longer than {_LONGEST_INDEX:,} bytes, which no index is")
    try:
        read = json.loads(index.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{index} is no JSON: {error}") from error
    places = read.get("weight_map") if isinstance(read, dict) else None
    if not isinstance(places, dict) or not places:
        raise ValueError(f"{index} is no index of sharded weights: it has no weight_map")
    files = sorted(set(map(str, places.values())))
    if wrong := [name for name in files if Path(name).name != name]:
        raise ValueError(f"{index} names {wrong[0]!r}; a shard must lie beside its index")
    shards = {
        name: require_local_file(
            index.parent / name, missing=f"{index} names {name}, which is missing"
        )
        for name in files
    }
    check_memory(sum(file.stat().st_size for file in shards.values()), index.parent)
    held = {name: _unwrapped(_held(file), file)[0] for name, file in shards.items()}
    if missing := [name for name, file in places.items() if name not in held[str(file)]]:
        raise ValueError(f"{index.parent / str(places[missing[0]])} lacks {missing[0]}")
    return {name: held[str(file)][name] for name, file in places.items()}


def _in_folder(folder: Path) -> Path:
    """Return the file with the weights in a folder."""
    for name in _FOLDER:
        if (folder / name).is_file():
            return folder / name
    found = sorted(
        file
        for file in folder.iterdir()
        if file.suffix in (".safetensors", ".pth", ".pt", ".ckpt", ".bin")
    )
    if len(found) == 1:
        return found[0]
    held = f"{len(found)} files of weights, {found[0].name} first" if found else "no weights"
    raise ValueError(f"{folder} holds {held}: name one file, or the index of sharded weights")
