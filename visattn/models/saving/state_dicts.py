"""State dicts of other libraries and training scripts: read without code, wrappers removed."""

import argparse
import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from visattn.models.saving.weight_files import open_safetensors, require_local_file

TensorDict = dict[str, Tensor]

# Keys under which training scripts save the state dict; averaged (EMA) weights come first.
_WRAPPERS = (
    "state_dict_ema", "model_ema", "ema_state_dict", "params_ema", "ema", "state_dict",
    "model_state_dict", "model", "module", "net", "network", "weights", "params", "teacher",
    "student",
)  # fmt: skip
_COMPILE_PREFIX = "_orig_mod."
_COMMON_PREFIX = re.compile(r"^(?:(?:module|model|backbone|encoder|net|network)\.)+")
_MAX_WRAPPERS = 4  # nested mappings around the state dict


@dataclass(frozen=True, eq=False)
class StateDict:
    """A state dict and the file that it was loaded from.

    Args:
        tensors: Weights by name.
        source: Path of the file.
        notes: Descriptions of the wrappers and prefixes that were removed.
    """

    tensors: TensorDict
    source: Path
    notes: tuple[str, ...] = ()


def read_state_dict(path: Path) -> StateDict:
    """Return the state dict in a file, without its wrappers.

    Args:
        path: A safetensors file, or a `torch.save` file (.pth, .pt, .ckpt, .bin).

    Raises:
        FileNotFoundError: If the path does not exist.
        ValueError: If the file is damaged, contains no weights, would execute code, or is the
            address of a remote file.

    Example:
        >>> import torch
        >>> file = getfixture("tmp_path") / "last.ckpt"
        >>> torch.save({"epoch": 3, "state_dict": {"model.bias": torch.ones(2)}}, file)
        >>> checkpoint = read_state_dict(file)
        >>> checkpoint.tensors, checkpoint.notes
        ({'model.bias': tensor([1., 1.])}, ('the weights are those in state_dict',))
    """
    source = require_local_file(path, missing=f"weights {path} do not exist")
    if source.suffix == ".safetensors":
        with open_safetensors(source) as file:
            return StateDict({name: file.get_tensor(name) for name in file.keys()}, source)  # noqa: SIM118
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):  # creating one runs no code
            contents = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises IndexError, KeyError, OSError etc. for invalid data
        raise ValueError(
            f"{source} cannot be read as weights of torch.save: {error or type(error).__name__}. "
            "It may be damaged, or hold code, which is not executed; if you trust it, save its "
            "state dict alone: torch.save(model.state_dict(), 'weights.pth')"
        ) from error
    tensors, keys = _unwrap(contents, source)
    notes = (f"the weights are those in {'.'.join(keys)}",) if keys else ()
    return StateDict(tensors, source, notes)


def _unwrap(contents: Any, source: Path) -> tuple[TensorDict, list[str]]:
    """Return the state dict in the contents of a file, and the keys that lead to it."""
    keys: list[str] = []
    while isinstance(contents, Mapping) and len(keys) < _MAX_WRAPPERS:
        nested = {str(key): value for key, value in contents.items() if isinstance(value, Mapping)}
        tensors = {str(key): value for key, value in contents.items() if isinstance(value, Tensor)}
        wrapper = next((key for key in _WRAPPERS if nested.get(key)), None)
        if wrapper is None and not tensors and len(nested) == 1:
            [wrapper] = nested
        if wrapper is None:
            if tensors:
                return tensors, keys
            break
        keys.append(wrapper)
        contents = nested[wrapper]
    raise ValueError(f"{source} holds no weights, or several sets of them: save one state dict")


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
    if prefix := _matching_prefix(tensors, set(names)):
        dropped = [name for name in tensors if not name.startswith(prefix)]
        tensors = {
            name.removeprefix(prefix): tensor
            for name, tensor in tensors.items()
            if name.startswith(prefix)
        }
        omission = f", {len(dropped)} tensors without it are left out ({dropped[:1]})"
        notes.append(f"the prefix {prefix} is removed{omission if dropped else ''}")
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
