"""What was read off a model once, kept while the model lives."""

import re
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.blocks.tap import Tap
from visattn.recording.feature_pooling import PooledFeatures, pooled_features
from visattn.recording.frozen_model import evaluating
from visattn.recording.grid_probe import IMAGES
from visattn.recording.image_marks import marked_images
from visattn.recording.marked_probe import MarkedReader, MarkedReading
from visattn.recording.model_outputs import output_layout
from visattn.recording.probe import ModelProbe, ProbeResult
from visattn.recording.user_errors import raised_at

_READ: WeakKeyDictionary[nn.Module, dict[Any, ProbeResult]] = WeakKeyDictionary()
_POOLED: WeakKeyDictionary[nn.Module, dict[Any, PooledFeatures]] = WeakKeyDictionary()
_ROLES = {
    "class": re.compile(r"(^|\.)(cls|class)_(token|embedding)s?(_\d+)?(\.\d+)?$"),
    "distillation": re.compile(r"(^|\.)(dist|distillation)_token$"),
    "register": re.compile(r"(^|\.)(reg|register|storage)_tokens?$"),
}


@runtime_checkable
class Classifying(Protocol):
    """A classifier that normalizes images itself, as those of this package do."""

    classes: tuple[str, ...]
    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalized(self, images: Tensor) -> Tensor:
        """Return images as the network wants them."""
        ...

    def classify(self, images: Tensor) -> Tensor:
        """Return the score of each class for normalized images."""
        ...


def forward_of(model: nn.Module) -> Callable[..., Any]:
    """Return what takes normalized images.

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
) -> ProbeResult:
    """Return what is read off a model when it runs on noise; at once if that was done before.

    It runs on noise with a mark in each quarter, and, if it attends to something, on zeros. It
    is in evaluation mode meanwhile and comes back as it was.

    Args:
        model: To be read.
        size: Height and width of the images.
        channels: Of the images.
        run: Calls the model, if it takes more than images.
        way: What tells that call from others.
    """
    kept = _READ.setdefault(model, {})
    key = (size, channels, way, _shape(model))
    if key not in kept:
        kept[key] = _read(model, size, channels, run or forward_of(model))
    return kept[key]


def features_of(model: nn.Module, size: tuple[int, int], channels: int) -> PooledFeatures:
    """Return what the scores of a model are pooled from; at once if that was done before.

    Args:
        model: To be read.
        size: Height and width of the images.
        channels: Of the images.
    """
    kept = _POOLED.setdefault(model, {})
    key = (size, channels, _shape(model))
    if key not in kept:
        reading = reading_of(model, size, channels)
        kept[key] = _pooled(model, size, channels, forward_of(model), reading.marked)
        if kept[key].sites:
            last = kept[key].sites[-1]
            runs = reading.marked.order(last.site)
            earlier = [one for one in reading.inputs if reading.marked.order(one.site) < runs]
            kept[key].sites = (*earlier, last) if earlier else kept[key].sites
    return kept[key]


def _pooled(
    model: nn.Module,
    size: tuple[int, int],
    channels: int,
    run: Callable[[Tensor], Any],
    marked: MarkedReading,
) -> PooledFeatures:
    image = marked_images(channels, size, _like(model))[:1]
    try:
        return pooled_features(model, image, run, marked)
    except (RuntimeError, NotImplementedError) as error:  # of operations without a gradient
        return PooledFeatures(refusal=f"no gradient of its scores can be taken ({error})")


def _like(model: nn.Module) -> Tensor:
    """Return a tensor of the type, and on the device, of a model's weights."""
    weights = (one.detach() for one in model.parameters() if one.is_floating_point())
    return next(weights, torch.zeros(1))


def _read(
    model: nn.Module, size: tuple[int, int], channels: int, run: Callable[[Tensor], Any]
) -> ProbeResult:
    like = _like(model)
    devices = [like.device] if like.device.type == "cuda" else []
    images = marked_images(channels, size, like)
    zeros = torch.zeros_like(images[:IMAGES])
    with torch.random.fork_rng(devices=devices), torch.no_grad(), evaluating(model):
        try:
            outputs: list[Any] = []
            marked = MarkedReader(model, size).read(lambda: outputs.append(run(images)))
            roles = roles_of(model)
            count = max(marked.prefixes.values(), default=0)
            if count > len(roles):  # of which nobody said by a name what they are
                roles = _by_use(count, _pooled(model, size, channels, run, marked).read)
            if not marked.attending and not any(isinstance(one, Tap) for one in model.modules()):
                layout = output_layout(outputs[-1], len(images))
                return ProbeResult(roles=roles, marked=marked, output=layout)
            return ModelProbe(model, size, roles, marked).read(lambda: run(zeros))
        except Exception as error:  # noqa: BLE001 - whatever a foreign model raises is told
            place = f" in {where}" if (where := raised_at(error)) else ""
            return ProbeResult(failure=f"{type(error).__name__}{place}: {error}")


def _by_use(count: int, read: tuple[int, ...] | None) -> tuple[str, ...]:
    """Return the roles of tokens before the grid by which of them the scores are made of.

    Args:
        count: How many there are.
        read: Numbers of the tokens that the scores are made of, if that is known.
    """
    names = iter(("class", "distillation"))
    return tuple(
        next(names, "register") if number in (read or ()) else "register" for number in range(count)
    )


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
