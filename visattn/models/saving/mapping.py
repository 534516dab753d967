"""Conversion of models between libraries: key renaming, heads, option checks."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from torch import Tensor, nn

TensorDict = dict[str, Tensor]
ConvertedModel = tuple[dict[str, Any], TensorDict]
"""The constructor arguments of a model, and its state dict."""
ModelT = TypeVar("ModelT", bound=nn.Module)


def build_converted(
    model_class: type[ModelT], arguments: Mapping[str, Any], state: Mapping[str, Tensor]
) -> ModelT:
    """Build a model and load a state dict; only the weights of its heads may be missing."""
    model = model_class(**arguments)
    result = model.load_state_dict(state, strict=False)
    missing = [key for key in result.missing_keys if not key.startswith("head")]
    if missing or result.unexpected_keys:
        raise ValueError(
            f"the state dict does not fit {model_class.__name__}: missing keys {missing[:3]}, "
            f"unexpected keys {result.unexpected_keys[:3]}"
        )
    return model


def resolve_timm_model(model: nn.Module | str, *, pretrained: bool) -> nn.Module:
    """Return a timm model; a name is built."""
    if not isinstance(model, str):
        return model
    import timm  # slow to import

    if not timm.is_model(model):
        raise ValueError(f"unknown timm model {model!r}")
    return timm.create_model(model, pretrained=pretrained)


def resolve_torchvision_model(
    model: nn.Module | str, model_class: type[nn.Module], *, include: str, weights: Any
) -> nn.Module:
    """Return a torchvision model; a name, one of those that `include` selects, is built."""
    if isinstance(model, str):
        from torchvision.models import get_model, list_models  # slow to import

        names = list_models(include=include)
        if model not in names:
            raise ValueError(f"model must be one of {names}, got {model!r}")
        model = get_model(model, weights=weights)
    if type(model) is not model_class:
        raise ValueError(
            f"only torchvision's {model_class.__name__} can be converted, got "
            f"{type(model).__name__}"
        )
    return model


def refuse_unsupported(unsupported: Mapping[str, bool], title: str, hint: str = "") -> None:
    """Refuse to convert a model of another library that uses options which visattn's lacks."""
    if options := [option for option, is_used in unsupported.items() if is_used]:
        raise ValueError(
            f"this {title} cannot be converted: visattn's does not support its "
            f"{', '.join(options)}{hint}"
        )


def copy_state_dict(model: nn.Module) -> TensorDict:
    """Return a copy of the state dict."""
    return {key: value.detach().clone() for key, value in model.state_dict().items()}


def match_head(
    state: TensorDict, class_names: Sequence[str] | None, num_classes: int
) -> tuple[tuple[str, ...], TensorDict]:
    """Return the class names, and the state dict without a head of another number of classes.

    Without names, classes are named by their index in the head.
    """
    if class_names is None:
        if num_classes < 2:
            raise ValueError("the model has no head: set class_names for a new one")
        return tuple(map(str, range(num_classes))), state
    if len(class_names) == num_classes:
        return tuple(class_names), state
    return tuple(class_names), {key: v for key, v in state.items() if not key.startswith("head")}


def check_supported_options(model: nn.Module, other: str, **allowed: tuple[object, ...]) -> None:
    """Refuse a model with options that another class lacks; `allowed` are the values it has."""
    unsupported = [
        f"{name}={getattr(model, name)!r}"
        for name, values in allowed.items()
        if getattr(model, name) not in values
    ]
    if unsupported:
        raise ValueError(
            f"{other} does not support {', '.join(unsupported)}, so this {type(model).__name__} "
            "cannot be converted"
        )


def rename_keys(state: Mapping[str, Tensor], names: Mapping[str, str]) -> TensorDict:
    """Return a state dict with renamed keys; `names` maps patterns to replacements."""
    return {rename_key(key, names): value for key, value in state.items()}


def rename_key(key: str, names: Mapping[str, str]) -> str:
    r"""Return the new name of a key; the key itself if no pattern matches.

    Example:
        >>> rename_key("encoder.ln.bias", {r"encoder\.ln\.(\w+)": r"norm.\1"})
        'norm.bias'
    """
    for pattern, replacement in names.items():
        if re.fullmatch(pattern, key):
            return re.sub(pattern, replacement, key)
    return key
