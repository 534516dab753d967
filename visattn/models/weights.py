"""Weights of any origin: read without running code, wrappers and prefixes removed, or one error."""

import argparse
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping
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
_CLASS_NAMES = ("class_names", "classes", "class_to_idx")


class Weights(NamedTuple):
    """Weights by name, and what else their file says."""

    tensors: TensorDict
    class_names: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read_torch(path: Path, *, mmap: bool = False) -> Any:
    """Return what a file of `torch.save` holds: tensors and plain values; no code is run.

    Raises:
        ValueError: If it is damaged, or holds code.
    """
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):  # creating one runs no code
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except (FileNotFoundError, PermissionError):
        raise
    except Exception as error:  # torch raises IndexError, KeyError, OSError etc. for invalid data
        reason = (str(error).splitlines() or ["it is empty"])[0]
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
        raise ValueError(f"{path} is damaged or no safetensors file: {error}") from error


def read_weights(path: Path) -> Weights:
    """Return the state dict in a file without its wrappers, and the class names beside it.

    Example:
        >>> file = getfixture("tmp_path") / "last.pth"
        >>> torch.save({"state_dict": {"bias": torch.ones(2)}, "classes": ["cat", "dog"]}, file)
        >>> read_weights(file).tensors, read_weights(file).class_names
        ({'bias': tensor([1., 1.])}, ('cat', 'dog'))
    """
    if path.suffix == ".safetensors":
        return Weights(read_safetensors(path)[0])
    held = read_torch(path)
    key, names = _class_names(held) if isinstance(held, Mapping) else ("", ())
    notes = (f"the class names are those in {key}",) if names else ()
    keys: list[str] = []
    while isinstance(held, Mapping) and len(keys) < 5:
        nested = {str(key): each for key, each in held.items() if isinstance(each, Mapping)}
        tensors = {str(key): each for key, each in held.items() if isinstance(each, Tensor)}
        wrapper = next((key for key in _WRAPPERS if nested.get(key)), None)
        if wrapper is None and len(nested) == 1 and not tensors:
            [wrapper] = nested
        if wrapper is None and tensors:
            said = (f"the weights are those in {'.'.join(keys)}",) if keys else ()
            return Weights(tensors, names, (*said, *notes))
        if wrapper is None:
            break
        keys.append(wrapper)
        held = nested[wrapper]
    raise ValueError(f"{path} holds no weights, or several sets of them: save one state dict")


def _class_names(packed: Mapping[Any, Any]) -> tuple[str, tuple[str, ...]]:
    """Return the class names that a training script packed beside the weights, and their key."""
    for key in _CLASS_NAMES:
        names = packed.get(key)
        if isinstance(names, Mapping) and sorted(names.values()) == [*range(len(names))]:
            names = sorted(names, key=names.__getitem__)  # of torchvision's ImageFolder
        if isinstance(names, list | tuple) and all(isinstance(name, str) for name in names):
            return key, tuple(names)
    return "", ()


def strip_prefix(weights: Weights, names: Collection[str]) -> Weights:
    """Return weights without a prefix such as `module.` before the names of a model.

    Example:
        >>> one = torch.ones(1)
        >>> strip_prefix(Weights({"net.fc.bias": one, "loss.scale": one}), ["fc.bias"]).tensors
        {'fc.bias': tensor([1.])}
    """
    tensors = {name.replace("_orig_mod.", ""): each for name, each in weights.tensors.items()}
    # Each key votes for what stands before a name of the model: `module.conv.weight` for `module.`
    votes = Counter(
        name[:start]
        for name in tensors
        for start in (0, *(match.end() for match in re.finditer(r"\.", name)))
        if name[start:] in names
    )
    best = [prefix for prefix, count in votes.items() if count == max(votes.values())]
    prefix = next((each for each in best if "ema" in each), best[0]) if best else ""
    if "" in best or not prefix:
        return weights._replace(tensors=tensors)
    kept = {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
    left = f", {len(tensors) - len(kept)} tensors without it are left out"
    note = f"the prefix {prefix} is removed{left if len(kept) < len(tensors) else ''}"
    return Weights(kept, weights.class_names, (*weights.notes, note))


def describe_mismatch(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> str:
    """Return which weights do not fit those of a model, with examples; "" if all do.

    Example:
        >>> describe_mismatch({"a": torch.ones(2), "b": torch.ones(3)}, {"a": torch.ones(5)})
        "1 missing keys ['b'], 0 unexpected keys [], 1 of another shape ['a [5] instead of [2]']"
    """
    # Batch counters are missing in old files; torch sets them to zero.
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


def load_weights(
    model: nn.Module,
    path: Path,
    *,
    ignored_prefixes: tuple[str, ...] = (),
    convert: Callable[[TensorDict], TensorDict] | None = None,
) -> Weights:
    """Load weights of any origin into a model, all of them, and return what their file says.

    Args:
        model: The model, with all its weights.
        path: A safetensors file, or one of `torch.save`.
        ignored_prefixes: Keys that begin so are left out.
        convert: Gives weights that do not fit the keys of the model.

    Raises:
        ValueError: If they do not fit, or are quantized.
    """
    own = model.state_dict()
    weights = fitted_weights(own, path, ignored_prefixes, convert)
    if mismatch := describe_mismatch(own, weights.tensors):
        raise ValueError(f"{path} does not fit {type(model).__name__}: {mismatch}")
    for name, each in weights.tensors.items():
        # torch would cast numbers that need their scales; so do floats of 8 bits.
        if own[name].is_floating_point() and not (each.is_floating_point() and each.itemsize > 1):
            raise ValueError(f"{path} holds {name} as {each.dtype}: quantized weights do not load")
    model.load_state_dict(weights.tensors, strict=False)
    return weights


def fitted_weights(
    own: Mapping[str, Tensor],
    path: Path,
    ignored_prefixes: tuple[str, ...] = (),
    convert: Callable[[TensorDict], TensorDict] | None = None,
) -> Weights:
    """Return the weights in a file by the keys of a model, converted if they do not fit as is."""
    weights = strip_prefix(read_weights(path), own)
    kept = {k: v for k, v in weights.tensors.items() if not k.startswith(ignored_prefixes)}
    if convert and describe_mismatch(own, kept):
        try:
            converted = convert(dict(weights.tensors))
        except Exception:  # noqa: BLE001 - a conversion may fail in any way on foreign weights
            return weights._replace(tensors=kept)
        kept = {k: v for k, v in converted.items() if not k.startswith(ignored_prefixes)}
        note = "timm converted the weights from their original keys"
        weights = weights._replace(notes=(*weights.notes, note))
    return weights._replace(tensors=kept)


def classes_of(own: Mapping[str, Tensor], tensors: Mapping[str, Tensor]) -> int | None:
    """Return the number of classes of weights that differ from a model in its head alone.

    Example:
        >>> classes_of(nn.Linear(3, 5).state_dict(), nn.Linear(3, 7).state_dict())
        7
    """
    pairs = [(each.shape, tensors[key].shape) for key, each in own.items() if key in tensors]
    pairs = [(mine, its) for mine, its in pairs if mine != its]
    # A head has a row for each class, that of a detector also four for its box.
    rows = [(mine[0], its[0]) for mine, its in pairs if mine[1:] == its[1:] and its]
    ratios = {mine / its for mine, its in rows}
    if own.keys() != tensors.keys() or len(rows) != len(pairs) or len(ratios) != 1:
        return None
    return min(its for _, its in rows)
