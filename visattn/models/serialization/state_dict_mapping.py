"""Weights that go from one library's model to another's, and what says that they cannot."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import timm
from torch import Tensor, nn

State = dict[str, Tensor]
Parts = tuple[dict[str, Any], State]
"""The arguments of a model, and its weights."""
Made = TypeVar("Made", bound=nn.Module)


def filled(kind: type[Made], arguments: Mapping[str, Any], state: Mapping[str, Tensor]) -> Made:
    """Return a model with weights, of which only those of the heads may be missing.

    Raises:
        ValueError: If the weights do not fit.
    """
    model = kind(**arguments)
    found = model.load_state_dict(state, strict=False)
    missing = [key for key in found.missing_keys if not key.startswith("head")]
    if missing or found.unexpected_keys:
        raise ValueError(
            f"the weights do not fit {kind.__name__}: missing are {missing[:3]}, left over "
            f"{found.unexpected_keys[:3]}"
        )
    return model


def timm_network(model: nn.Module | str, *, pretrained: bool) -> nn.Module:
    """Return a model of timm, built if it is named.

    Raises:
        ValueError: If the name is unknown.
    """
    if not isinstance(model, str):
        return model
    if not timm.is_model(model):
        raise ValueError(f"timm knows no model {model!r}")
    return timm.create_model(model, pretrained=pretrained)


def weights_of(model: nn.Module) -> State:
    """Return copies of all weights, by name."""
    return {key: value.detach().clone() for key, value in model.state_dict().items()}


def head_names(
    state: State, classes: Sequence[str] | None, count: int
) -> tuple[tuple[str, ...], State]:
    """Return the names of the classes, and the weights without a head that has not as many.

    Args:
        state: Weights.
        classes: Their names; None for the numbers of those that the head tells.
        count: How many the head tells.

    Raises:
        ValueError: If there is no head, and no classes are said.
    """
    if classes is None:
        if count < 2:
            raise ValueError("the model has no head: say classes=, those that a new one is to tell")
        return tuple(map(str, range(count))), state
    if len(classes) == count:
        return tuple(classes), state
    return tuple(classes), {key: v for key, v in state.items() if not key.startswith("head")}


def check_options(model: nn.Module, other: str, **allowed: tuple[object, ...]) -> None:
    """Let a model pass whose options another one has too.

    Raises:
        ValueError: If it has others: all of them are named.
    """
    wrong = [
        f"{name}={getattr(model, name)!r}"
        for name, values in allowed.items()
        if getattr(model, name) not in values
    ]
    if wrong:
        raise ValueError(
            f"{other} has no such thing as {', '.join(wrong)}, so this {type(model).__name__} "
            "cannot go over"
        )


def renamed(state: Mapping[str, Tensor], names: Mapping[str, str]) -> State:
    """Return weights under other names; `names` holds patterns and what to put in their place."""
    return {renamed_key(key, names): value for key, value in state.items()}


def renamed_key(key: str, names: Mapping[str, str]) -> str:
    r"""Return the other name of a weight, its own if no pattern fits.

    Example:
        >>> renamed_key("encoder.ln.bias", {r"encoder\.ln\.(\w+)": r"norm.\1"})
        'norm.bias'
    """
    for pattern, other in names.items():
        if re.fullmatch(pattern, key):
            return re.sub(pattern, other, key)
    return key
