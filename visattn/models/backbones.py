"""Backbones of timm: by name, with weights of their own or from a file."""

from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

import timm
from torch import nn

from visattn.models.weight_files import Shapes, local_file, opened_weights, shapes_in

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


def load_backbone(model: nn.Module, file: Path) -> None:
    """Load weights of the whole network, of which only the classifier may be left over.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no safetensors file, or does not fit.
    """
    config = cast("dict[str, Any]", model.pretrained_cfg)
    named = config.get("classifier") or "classifier"
    heads = tuple(f"{head}." for head in ((named,) if isinstance(named, str) else named))
    load_weights(model, file, without=heads)


def load_weights(model: nn.Module, file: Path, *, without: tuple[str, ...] = ()) -> None:
    """Load the weights of a network from a safetensors file that holds nothing else.

    Args:
        model: What is filled.
        file: Weights by name; counters of batches may be left out.
        without: Beginnings of names in the file that are passed over.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If it is no safetensors file, does not fit, or lies on another machine.
    """
    file = local_file(file, missing=f"weights {file} do not exist")
    with opened_weights(file) as opened:
        shapes = {
            name: shape for name, shape in shapes_in(opened).items() if not name.startswith(without)
        }
        _check_shapes(model, shapes, file)
        weights = {name: opened.get_tensor(name) for name in shapes}
    model.load_state_dict(weights, strict=False)


def _check_shapes(model: nn.Module, shapes: Shapes, file: Path) -> None:
    """Refuse weights of another model before any of them is read."""
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    counters = {key for key in wanted if key.endswith("num_batches_tracked")}  # often left out
    missing = sorted(set(wanted) - set(shapes) - counters)
    spare = sorted(set(shapes) - set(wanted))
    other = [key for key in wanted if key in shapes and wanted[key] != shapes[key]]
    if missing or spare or other:
        config = cast("dict[str, Any]", getattr(model, "pretrained_cfg", {}))
        raise ValueError(
            f"{file} does not fit {config.get('architecture', type(model).__name__)}: "
            f"{len(missing)} tensors missing {missing[:2]}, {len(spare)} left over {spare[:2]}, "
            f"{len(other)} of another shape {other[:2]}; check the name and the arguments"
        )
