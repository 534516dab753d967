"""Weights of any source: read without running code, with wrappers and prefixes removed."""

import argparse
import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

TensorDict = dict[str, Tensor]

# Keys under which training scripts save the state dict; averaged (EMA) weights come first.
_WRAPPERS = (
    "state_dict_ema", "model_ema", "ema_state_dict", "params_ema", "ema", "state_dict",
    "model_state_dict", "model", "module", "net", "network", "weights", "params", "teacher",
    "student",
)  # fmt: skip


class Weights(NamedTuple):
    """Weights by name, with class names and notes from their file."""

    tensors: TensorDict
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_torch(path: Path, *, mmap: bool = False) -> Any:
    """Return the tensors and plain values in a file of `torch.save`; no code is run.

    Raises:
        ValueError: If it is damaged, or holds code.
    """
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):  # creating these runs no code
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # torch raises IndexError, KeyError, OSError etc. for invalid data
        first = (str(error).splitlines() or ["it is empty"])[0]
        reason = first.partition(". This file can still")[
            0
        ]  # start of torch's advice to run the code
        raise ValueError(
            f"{path} is damaged, or holds code, which is not executed: {reason}. If you trust it, "
            "save its state dict alone: torch.save(model.state_dict(), 'weights.pth')"
        ) from error


def read_safetensors(path: Path) -> tuple[TensorDict, dict[str, str]]:
    """Return the tensors and the metadata of a safetensors file.

    Raises:
        ValueError: If it is damaged.
    """
    try:
        with safe_open(path, "pt") as file:
            return {key: file.get_tensor(key) for key in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"{path} is damaged or not a safetensors file: {error}") from error


def read_weights(path: Path, names: Collection[str]) -> Weights:
    """Return the state dict in a file under the names of a model, without wrappers and prefixes.

    Example:
        >>> file, one = getfixture("tmp_path") / "last.pth", torch.ones(1)
        >>> packed = {"net.bias": one, "loss.scale": one}
        >>> torch.save({"state_dict": packed, "classes": ["cat", "dog"]}, file)
        >>> read_weights(file, ["bias"])[:2]
        ({'bias': tensor([1.])}, ('cat', 'dog'))
    """
    if path.suffix == ".safetensors":
        return _without_prefix(read_safetensors(path)[0], names)
    held = read_torch(path)
    packed = _class_names(held) if isinstance(held, dict) else {}
    keys: list[str] = []
    while isinstance(held, dict) and len(keys) < 5:
        nested = {key: each for key, each in held.items() if isinstance(each, dict) and each}
        tensors = {str(key): each for key, each in held.items() if isinstance(each, Tensor)}
        alone = [*nested] if len(nested) == 1 and not tensors else ()
        wrapper = next((key for key in (*_WRAPPERS, *alone) if key in nested), None)
        if wrapper is None and tensors:
            weights = _without_prefix(tensors, names)
            said = [f"the weights are those in {'.'.join(keys)}"] if keys else []
            more = [f"the class names are those in {key}" for key in packed]
            notes = (*said, *weights.notes, *more)
            return Weights(weights.tensors, next(iter(packed.values()), ()), notes)
        keys.append(str(wrapper))
        held = nested.get(wrapper)
    raise ValueError(f"{path} has no weights, or several sets of them: save one state dict")


def _class_names(packed: Mapping[Any, Any]) -> dict[str, tuple[str, ...]]:
    """Return the class names that a training script saved with the weights, and their key."""
    for key in ("class_names", "classes", "class_to_idx"):
        names = packed.get(key)
        if isinstance(names, dict) and sorted(names.values()) == [*range(len(names))]:
            names = sorted(names, key=names.__getitem__)  # from torchvision's ImageFolder
        if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
            return {key: tuple(names)}
    return {}


def _without_prefix(tensors: TensorDict, names: Collection[str]) -> Weights:
    """Remove a prefix such as `module.` from names, so that they match those of a model."""
    tensors = {name.replace("_orig_mod.", ""): each for name, each in tensors.items()}
    # Each key votes for the prefix before a name of the model: `module.conv.weight` for `module.`
    starts = {name: [0, *(dot.end() for dot in re.finditer(r"\.", name))] for name in tensors}
    votes = Counter(name[:at] for name in tensors for at in starts[name] if name[at:] in names)
    best = [prefix for prefix, count in votes.items() if count == max(votes.values())]
    if not best or "" in best:
        return Weights(tensors)
    prefix = next((each for each in best if "ema" in each), best[0])
    kept = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    left = f", {len(tensors) - len(kept)} tensors without it are ignored"
    note = f"the prefix {prefix} is removed{left if len(kept) < len(tensors) else ''}"
    return Weights(kept, notes=(note,))


def describe_mismatch(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> str:
    """Describe weights that do not fit a model, with examples; "" if all fit.

    Example:
        >>> describe_mismatch({"a": torch.ones(2), "b": torch.ones(3)}, {"a": torch.ones(5)})
        "1 missing keys ['b'], 0 unexpected keys [], 1 of another shape ['a [5] instead of [2]']"
    """
    # Old files lack batch counters, which torch sets to zero.
    missing = [k for k in own if k not in tensors and not k.endswith("num_batches_tracked")]
    unexpected = [key for key in tensors if key not in own]
    reshaped = [
        f"{key} {list(tensors[key].shape)} instead of {list(each.shape)}"
        for key, each in own.items()
        if key in tensors and tensors[key].shape != each.shape
    ]
    if not (missing or unexpected or reshaped):
        return ""
    return (
        f"{len(missing)} missing keys {missing[:2]}, {len(unexpected)} unexpected keys "
        f"{unexpected[:2]}, {len(reshaped)} of another shape {reshaped[:2]}"
    )


def load_weights(model: nn.Module, weights: Weights, path: Path) -> None:
    """Load all weights of a model.

    Raises:
        ValueError: If they do not fit, or are quantized.
    """
    own = model.state_dict()
    if mismatch := describe_mismatch(own, weights.tensors):
        raise ValueError(f"{path} does not fit {type(model).__name__}: {mismatch}")
    for name, each in weights.tensors.items():
        # torch would cast integers and 8-bit floats without their scales.
        if own[name].is_floating_point() and not (each.is_floating_point() and each.itemsize > 1):
            raise ValueError(f"{path} has {name} as {each.dtype}: quantized weights do not load")
    model.load_state_dict(weights.tensors, strict=False)


def classes_of(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> int | None:
    """Return the number of classes of weights that differ from a model only in the head.

    Example:
        >>> classes_of(nn.Linear(3, 5).state_dict(), nn.Linear(3, 7).state_dict())
        7
    """
    pairs = [(each.shape, tensors[key].shape) for key, each in own.items() if key in tensors]
    # A head has a row per class; that of a detector also four per box.
    rows = [(mine, its) for mine, its in pairs if mine != its]
    ratios = {mine[0] / its[0] if mine[1:] == its[1:] else 0 for mine, its in rows}
    fits = own.keys() == tensors.keys() and len(ratios) == 1 and 0 not in ratios
    return min(its[0] for _, its in rows) if fits else None
