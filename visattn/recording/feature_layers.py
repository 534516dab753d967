"""Any module of a model as a layer of gradient maps: found by name, its place measured."""

from difflib import get_close_matches
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from visattn.recording.layer_place import measured_site
from visattn.recording.model_info import ExplainedModel, FeatureSite

Layer = int | str | nn.Module

_PLACES: WeakKeyDictionary[nn.Module, dict[Any, FeatureSite]] = WeakKeyDictionary()


def feature_site(subject: ExplainedModel, layer: Layer) -> FeatureSite:
    """Return a layer whose activations lie on a grid.

    Where the activations of a module lie that is not on the model's card is measured: blocks of an
    image are changed, and must show at their place in what the module puts out.

    Args:
        subject: The model.
        layer: The number of a layer on the card, -1 for the last; or any module of the model, as
            itself or by its path. Of a module that runs several times the last run counts, or the
            one that is named: `layer4.2.relu#2` is the second run of `layer4.2.relu`.

    Raises:
        ValueError: If there is no such module or run, or its output does not lie on the image.

    Example:
        >>> from visattn.attribution.explained_model import subject_of
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 2, 2), nn.ReLU(), nn.Flatten(),
        ...                       nn.Linear(8 * 12 * 20, 2))
        >>> feature_site(subject_of(model, (24, 40)), model[1])
        FeatureSite(site='1', layout='b c y x', grid=(12, 20), before=0, after=0, run=None)
    """
    sites = subject.card.features
    if isinstance(layer, int):
        if -len(sites) <= layer < len(sites):
            return sites[layer]
        raise ValueError(_unknown(subject, layer))
    name = layer_name(subject.model, layer) if isinstance(layer, nn.Module) else layer
    path, mark, number = name.partition("#")
    if path not in dict(subject.model.named_modules()) or (mark and not number.isdecimal()):
        raise ValueError(_unknown(subject, name))
    if resizes_images(subject.model):
        raise ValueError(
            f"{subject.card.name} resizes and pads images itself, so that no layer covers the "
            "image exactly; take input_gradient, smoothgrad, occlusion or rise"
        )
    kept = _PLACES.setdefault(subject.model, {})
    key = (id(subject.model.get_submodule(path)), name, subject.card)
    if key not in kept:
        kept[key] = measured_site(subject, path, int(number) if mark else None)
    return kept[key]


def layer_name(model: nn.Module, module: nn.Module) -> str:
    """Return the path of a module in a model.

    Args:
        model: That holds it.
        module: Part of the model.

    Raises:
        ValueError: If it is not.

    Example:
        >>> model = nn.Sequential(nn.Linear(1, 1), nn.ReLU())
        >>> layer_name(model, model[1])
        '1'
    """
    path = next((name for name, part in model.named_modules() if part is module), None)
    if path is None:
        raise ValueError(
            f"layer must be a module of the {type(model).__name__}, got a {type(module).__name__} "
            "that is no part of it"
        )
    return path


def resizes_images(model: nn.Module) -> bool:
    """Whether a model resizes and pads images itself, so that its grids do not cover them.

    Args:
        model: Any; the detectors of torchvision do.
    """
    return any(type(part).__name__ == "GeneralizedRCNNTransform" for part in model.modules())


def _unknown(subject: ExplainedModel, layer: int | str) -> str:
    sites = [site.site for site in subject.card.features]
    names = [name for name, _ in subject.model.named_modules() if name]
    if isinstance(layer, int):
        known = ", ".join(sites) or "none"
        return (
            f"{subject.card.name} has no features at layer {layer}; there are {len(sites)}: {known}"
        )
    close = get_close_matches(layer.partition("#")[0], names, n=3, cutoff=0.5)
    hint = (
        f"did you mean {' or '.join(close)}?"
        if close
        else f"its modules are {', '.join(names[:6])}"
    )
    return f"{subject.card.name} has no features at layer {layer!r}; {hint}"
