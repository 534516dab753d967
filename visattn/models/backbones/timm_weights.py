"""timm backbones by name, and loading of weight files into them."""

import re
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, cast

import timm
from torch import nn

from visattn.io.messages import did_you_mean
from visattn.models.saving.hub import plain_download_errors
from visattn.models.serialization.finite_weights import check_weight_types
from visattn.models.serialization.state_dicts import TensorDict, read_state_dict, strip_prefix
from visattn.models.serialization.weight_files import Shapes, check_loaded_weights

_FEW = 4  # tensors that one argument changes
_HEAD = re.compile(r"(^|\.)(head|fc|classifier|last_linear)(\.fc|\.l)?\.weight$")
# These arguments make timm load files by itself or return other outputs than one grid.
_RESERVED_ARGUMENTS = (
    "cache_dir",
    "checkpoint_path",
    "features_only",
    "pretrained",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
)


def create_timm_backbone(name: str, arguments: dict[str, Any], *, pretrained: bool) -> nn.Module:
    """Create a timm model without its classifier.

    Raises:
        ConnectionError: If pretrained weights cannot be downloaded.
        ValueError: If the name is unknown, or the model does not take an argument.
    """
    if not timm.is_model(name):
        hint = did_you_mean(name, timm.list_models(), otherwise="timm.list_models() lists all")
        raise ValueError(f"unknown timm model {name!r}; {hint}")
    if reserved := sorted(set(arguments) & set(_RESERVED_ARGUMENTS)):
        raise ValueError(
            f"timm_kwargs may not contain {', '.join(reserved)}: set pretrained=True or "
            "weights=FILE for weights, and stage=NUMBER for a stage"
        )
    try:
        with plain_download_errors(f"timm:{name}"):
            return timm.create_model(name, pretrained=pretrained, **{"num_classes": 0, **arguments})
    except TypeError as error:
        raise ValueError(f"{name} does not take these arguments: {error}") from error


def load_timm_weights(
    model: nn.Module, name: str, file: Path, arguments: Mapping[str, Any]
) -> tuple[str, ...]:
    """Load weights into a timm model, converting keys of the original repository if needed.

    If the model has no classifier, that of the file is ignored.

    Args:
        model: Model to load the weights into.
        name: Name of the timm model.
        file: File or folder, as in `read_state_dict`.
        arguments: Arguments with which the model was created.

    Returns:
        What was removed or converted, in sentences.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it holds no weights, or they do not fit.
    """
    ignored_prefixes = () if getattr(model, "num_classes", 1) else _classifier_prefixes(model)
    convert = partial(_convert_with_timm, name, arguments)
    return load_weights(model, file, ignored_prefixes=ignored_prefixes, convert=convert)


def load_weights(
    model: nn.Module,
    file: Path,
    *,
    ignored_prefixes: tuple[str, ...] = (),
    convert: Callable[[TensorDict], TensorDict] | None = None,
) -> tuple[str, ...]:
    """Load weights from a file or folder into a model.

    Args:
        model: Model to load the weights into.
        file: File or folder, as in `read_state_dict`; batch counters may be missing.
        ignored_prefixes: Prefixes of keys that are ignored.
        convert: Converts a state dict that does not fit to the keys and shapes of the model.

    Returns:
        What was removed or converted, in sentences.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If it holds no weights, they do not fit or hold NaN, or the path is remote.
    """
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    state = strip_prefix(read_state_dict(file), expected)
    tensors, notes = state.tensors, state.notes
    if convert and _mismatch(expected, _shapes(tensors, ignored_prefixes)):
        try:
            tensors = convert(dict(tensors))
        except Exception:  # noqa: BLE001 - a conversion may fail in any way on foreign weights
            tensors = state.tensors
        else:
            notes = (*notes, "timm converted the weights from their original keys")
    shapes = _shapes(tensors, ignored_prefixes)
    if _mismatch(expected, shapes):
        raise ValueError(_mismatch_message(model, expected, shapes, file))
    weights = {name: tensors[name] for name in shapes}
    check_weight_types(model.state_dict(), weights, file)
    model.load_state_dict(weights, strict=False)
    check_loaded_weights(model, file)
    return notes


def _classifier_prefixes(model: nn.Module) -> tuple[str, ...]:
    """Return the key prefixes of a timm model's classifier."""
    config = cast("dict[str, Any]", model.pretrained_cfg)
    names = config.get("classifier") or "classifier"
    return tuple(f"{name}." for name in ((names,) if isinstance(names, str) else names))


def _convert_with_timm(name: str, arguments: Mapping[str, Any], state: TensorDict) -> TensorDict:
    """Convert a state dict as timm does when it loads its own pretrained models."""
    heads = [weight for key, weight in state.items() if _HEAD.search(key) and weight.ndim == 2]
    classes = len(heads[-1]) if heads else 0
    # With as many classes as the weights have, timm loads all of them or raises.
    overlay = {"state_dict": state, "num_classes": classes, "label_offset": 0}
    model = timm.create_model(
        name,
        pretrained=True,
        pretrained_cfg_overlay=overlay,
        **{**arguments, "num_classes": classes},
    )
    return model.state_dict()


def _shapes(tensors: TensorDict, ignored_prefixes: tuple[str, ...]) -> Shapes:
    return {
        name: tuple(tensor.shape)
        for name, tensor in tensors.items()
        if not name.startswith(ignored_prefixes)
    }


def _mismatch(expected: Shapes, shapes: Shapes) -> tuple[list[str], list[str], list[str]] | None:
    """Return the keys that are missing, unexpected and of another shape; None if all fit."""
    counters = {key for key in expected if key.endswith("num_batches_tracked")}  # often missing
    missing = sorted(set(expected) - set(shapes) - counters)
    unexpected = sorted(set(shapes) - set(expected))
    reshaped = [key for key in expected if key in shapes and expected[key] != shapes[key]]
    return (missing, unexpected, reshaped) if missing or unexpected or reshaped else None


def _mismatch_message(model: nn.Module, expected: Shapes, shapes: Shapes, file: Path) -> str:
    """Describe which weights do not fit, and the likely reason."""
    missing, unexpected, reshaped = _mismatch(expected, shapes) or ([], [], [])
    config = cast("dict[str, Any]", getattr(model, "pretrained_cfg", {}))
    examples = [
        f"{name} {list(shapes[name])} instead of {list(expected[name])}" for name in reshaped[:2]
    ]
    return (
        f"{file} does not fit {config.get('architecture', type(model).__name__)}: "
        f"{len(missing)} missing keys {missing[:2]}, {len(unexpected)} unexpected keys "
        f"{unexpected[:2]}, {len(reshaped)} of another shape {examples}; "
        f"{_likely_reason(expected, shapes, reshaped)}"
    )


def _likely_reason(expected: Shapes, shapes: Shapes, reshaped: list[str]) -> str:
    """Return why the weights probably do not fit, and what to do."""
    if not set(expected) & set(shapes):
        return "no key matches: the weights are of another architecture or another library"
    for name in reshaped if len(reshaped) <= _FEW else ():
        shape, target = shapes[name], expected[name]
        if len(shape) == len(target) == 2 and shape[1:] == target[1:]:
            return f"the weights are for {shape[0]} classes: set num_classes={shape[0]}"
        if len(shape) == len(target) == 4 and shape[0] == target[0] and shape[2:] == target[2:]:
            return f"the weights are for images with {shape[1]} channels: set in_chans={shape[1]}"
        if "pos" in name:
            return "the weights are for another image size: set img_size"
    return "check the name and the arguments of the model"
