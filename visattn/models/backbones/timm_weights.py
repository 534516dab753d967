"""Backbones of timm: by name, with weights of their own or from a file."""

import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, cast

import timm
from torch import nn

from visattn.models.serialization.state_dicts import State, read_state_dict, without_prefix
from visattn.models.serialization.weight_files import Shapes, check_finite

_FEW = 4  # tensors that one argument changes
_HEAD = re.compile(r"(^|\.)(head|fc|classifier|last_linear)(\.fc|\.l)?\.weight$")
# What timm would load by itself, or give in another form than one grid.
_NOT_ARGUMENTS = (
    "cache_dir",
    "checkpoint_path",
    "features_only",
    "pretrained",
    "pretrained_cfg",
    "pretrained_cfg_overlay",
)


def timm_backbone(name: str, arguments: dict[str, Any], *, pretrained: bool) -> nn.Module:
    """Return a backbone by its timm name, without its classifier.

    Raises:
        ValueError: If timm knows no such name, or the backbone does not take an argument.
    """
    if not timm.is_model(name):
        close = get_close_matches(name, timm.list_models(), n=3)
        hint = f"; did you mean {', '.join(close)}?" if close else ""
        raise ValueError(f"timm knows no model {name!r}{hint}")
    if wrong := sorted(set(arguments) & set(_NOT_ARGUMENTS)):
        raise ValueError(
            f"arguments may not hold {', '.join(wrong)}: weights come by pretrained=True or "
            "weights=FILE, a stage by stage=NUMBER"
        )
    try:
        return timm.create_model(name, pretrained=pretrained, **{"num_classes": 0, **arguments})
    except TypeError as error:
        raise ValueError(f"{name} does not take these arguments: {error}") from error


def load_timm_weights(
    model: nn.Module, name: str, file: Path, arguments: Mapping[str, Any]
) -> tuple[str, ...]:
    """Load weights into a model of timm, also under the names of the repository they come from.

    Where the model has no classifier, that of the weights is left out.

    Args:
        model: Without weights.
        name: Of the model.
        file: As `read_state_dict` takes it.
        arguments: With which the model was created.

    Returns:
        What was removed around the weights or converted, in sentences.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it holds no weights, or they do not fit.
    """
    without = () if getattr(model, "num_classes", 1) else _classifier(model)
    convert = partial(_converted, name, arguments)
    return load_weights(model, file, without=without, convert=convert)


def load_weights(
    model: nn.Module,
    file: Path,
    *,
    without: tuple[str, ...] = (),
    convert: Callable[[State], State] | None = None,
) -> tuple[str, ...]:
    """Load the weights of a network from a file or folder that `read_state_dict` reads.

    Args:
        model: What is filled.
        file: Weights by name; counters of batches may be left out.
        without: Beginnings of names in the file that are passed over.
        convert: Brings weights that do not fit to the names and shapes of the model.

    Returns:
        What was removed around the weights or converted, in sentences.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it holds no weights, they do not fit or are NaN, or it lies on another
            machine.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    held = without_prefix(read_state_dict(file), wanted)
    tensors, notes = held.tensors, held.notes
    if convert and _mismatch(wanted, _shapes(tensors, without)):
        try:
            tensors = convert(dict(tensors))
        except Exception:  # noqa: BLE001 - whatever a conversion makes of weights of another model
            tensors = held.tensors
        else:
            notes = (*notes, "the weights are converted by timm from their original names")
    if _mismatch(wanted, _shapes(tensors, without)):
        raise ValueError(_explained(model, wanted, _shapes(tensors, without), file))
    weights = {name: tensors[name] for name in _shapes(tensors, without)}
    model.load_state_dict(weights, strict=False)
    check_finite(model, file)
    return notes


def _classifier(model: nn.Module) -> tuple[str, ...]:
    """Return how the names of a timm model's classifier begin."""
    config = cast("dict[str, Any]", model.pretrained_cfg)
    named = config.get("classifier") or "classifier"
    return tuple(f"{head}." for head in ((named,) if isinstance(named, str) else named))


def _converted(name: str, arguments: Mapping[str, Any], state: State) -> State:
    """Return weights as timm converts them when it loads its own pretrained models."""
    heads = [weight for key, weight in state.items() if _HEAD.search(key) and weight.ndim == 2]
    classes = len(heads[-1]) if heads else 0
    # With as many classes as the weights have, timm loads all of them or raises.
    overlay = {"state_dict": state, "num_classes": classes, "label_offset": 0}
    made = timm.create_model(
        name,
        pretrained=True,
        pretrained_cfg_overlay=overlay,
        **{**arguments, "num_classes": classes},
    )
    return made.state_dict()


def _shapes(tensors: State, without: tuple[str, ...]) -> Shapes:
    return {
        name: tuple(tensor.shape)
        for name, tensor in tensors.items()
        if not name.startswith(without)
    }


def _mismatch(wanted: Shapes, shapes: Shapes) -> tuple[list[str], list[str], list[str]] | None:
    """Return the names that are missing, left over and of another shape; None if all fit."""
    counters = {key for key in wanted if key.endswith("num_batches_tracked")}  # often left out
    missing = sorted(set(wanted) - set(shapes) - counters)
    spare = sorted(set(shapes) - set(wanted))
    other = [key for key in wanted if key in shapes and wanted[key] != shapes[key]]
    return (missing, spare, other) if missing or spare or other else None


def _explained(model: nn.Module, wanted: Shapes, shapes: Shapes, file: Path) -> str:
    """Return which weights do not fit, and the likely reason."""
    missing, spare, other = _mismatch(wanted, shapes) or ([], [], [])
    config = cast("dict[str, Any]", getattr(model, "pretrained_cfg", {}))
    shown = [f"{name} {list(shapes[name])} for {list(wanted[name])}" for name in other[:2]]
    return (
        f"{file} does not fit {config.get('architecture', type(model).__name__)}: "
        f"{len(missing)} tensors missing {missing[:2]}, {len(spare)} left over {spare[:2]}, "
        f"{len(other)} of another shape {shown}; {_reason(wanted, shapes, other)}"
    )


def _reason(wanted: Shapes, shapes: Shapes, other: list[str]) -> str:
    """Return why weights probably do not fit, and what to do."""
    if not set(wanted) & set(shapes):
        return "no name is the same: they are of another architecture, or of another library"
    for name in other if len(other) <= _FEW else ():
        found, right = shapes[name], wanted[name]
        if len(found) == len(right) == 2 and found[1:] == right[1:]:
            return f"they are for {found[0]} classes: say num_classes={found[0]}"
        if len(found) == len(right) == 4 and found[0] == right[0] and found[2:] == right[2:]:
            return f"they are for images of {found[1]} channels: say in_chans={found[1]}"
        if "pos" in name:
            return "they are for images of another size: say img_size="
    return "check the name and the arguments of the model"
