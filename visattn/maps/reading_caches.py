"""What was read off a model once, kept while the model lives."""

import re
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.maps.error_places import raised_at
from visattn.maps.frozen_models import evaluating
from visattn.maps.grid_watches import PICTURES
from visattn.maps.model_readings import ModelReader, ModelReading

_READ: WeakKeyDictionary[nn.Module, dict[Any, ModelReading]] = WeakKeyDictionary()
_ROLES = {
    "class": re.compile(r"(^|\.)(cls|class)_(token|embedding)s?(_\d+)?(\.\d+)?$"),
    "distillation": re.compile(r"(^|\.)(dist|distillation)_token$"),
    "register": re.compile(r"(^|\.)(reg|register|storage)_tokens?$"),
}


@runtime_checkable
class Classifying(Protocol):
    """A classifier that normalises pictures itself, as those of this package do."""

    classes: tuple[str, ...]
    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalised(self, pictures: Tensor) -> Tensor:
        """Return pictures as the network wants them."""
        ...

    def classify(self, pictures: Tensor) -> Tensor:
        """Return the score of each class for normalised pictures."""
        ...


def forward_of(model: nn.Module) -> Callable[..., Any]:
    """Return what takes normalised pictures.

    Args:
        model: Any.
    """
    return model.classify if isinstance(model, Classifying) else model


def reading_of(
    model: nn.Module,
    size: tuple[int, int],
    channels: int,
    run: Callable[[Float[Tensor, "b c y x"]], Any] | None = None,
    *,
    way: str = "",
) -> ModelReading:
    """Return what is read off a model when it runs on zeros; at once if that was done before.

    The model is in evaluation mode meanwhile and comes back as it was.

    Args:
        model: To be read.
        size: Height and width of the pictures.
        channels: Of the pictures.
        run: Calls the model, if it takes more than pictures.
        way: What tells that call from others.
    """
    kept = _READ.setdefault(model, {})
    key = (size, channels, way, _shape(model))
    if key not in kept:
        weight = next((one for one in model.parameters() if one.is_floating_point()), None)
        zeros = torch.zeros(PICTURES, channels, *size) if weight is None else torch.zeros(
            PICTURES, channels, *size, device=weight.device, dtype=weight.dtype
        )  # fmt: skip
        kept[key] = _read(model, size, zeros, run or forward_of(model))
    return kept[key]


def _read(
    model: nn.Module, size: tuple[int, int], zeros: Tensor, run: Callable[[Tensor], Any]
) -> ModelReading:
    devices = [zeros.device] if zeros.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad(), evaluating(model):
        try:
            return ModelReader(model, size, roles_of(model)).read(lambda: run(zeros))
        except Exception as error:  # noqa: BLE001 - whatever a foreign model raises is told
            place = f" in {where}" if (where := raised_at(error)) else ""
            return ModelReading(failure=f"{type(error).__name__}{place}: {error}")


def _shape(model: nn.Module) -> int:
    """Return a number that changes when the parts of a model, or their windows, do."""
    parts = (
        (site, id(type(part)), str(getattr(part, "window_size", "")))
        for site, part in model.named_modules()
    )
    return hash(tuple(parts))


def roles_of(model: nn.Module) -> tuple[str, ...]:
    """Return the roles of the tokens that a model puts before its grid.

    Args:
        model: Any.

    Example:
        >>> model = nn.Module()
        >>> model.cls_token, model.reg_token = (nn.Parameter(torch.zeros(1, n, 8)) for n in (1, 2))
        >>> roles_of(model)
        ('class', 'register', 'register')
    """
    counts = dict.fromkeys(_ROLES, 0)
    for name, weight in model.named_parameters():
        for role, pattern in _ROLES.items():
            if pattern.search(name):
                count = weight.shape[-2] if weight.ndim > 1 else 1
                counts[role] = max(counts[role], count if role == "register" else 1)
    return tuple(role for role, count in counts.items() for _ in range(count))
