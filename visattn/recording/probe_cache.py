"""Cached probe results of models, kept as long as the model lives."""

import re
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, runtime_checkable
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.geometry.affine import Margin
from visattn.io.messages import user_code_location
from visattn.recording.cell_strides import CellStrides
from visattn.recording.changed_attention import read_by_change
from visattn.recording.feature_pooling import PooledFeatures, ScoreTracer
from visattn.recording.frozen import first_weight, without_grad
from visattn.recording.interception import probing
from visattn.recording.places import Grid, probe_images
from visattn.recording.probe import ProbeResult, run_probe

T = TypeVar("T")
_KEPT: WeakKeyDictionary[nn.Module, dict[Any, Any]] = WeakKeyDictionary()
_NO_GRADIENT = "its scores are not differentiable"
_PREFIX_PARAMETERS = {
    "class": re.compile(r"(^|\.)(cls|class)_(token|embedding)s?(_\d+)?(\.\d+)?$"),
    "distillation": re.compile(r"(^|\.)(dist|distillation)_token$"),
    "register": re.compile(r"(^|\.)(reg|register|storage)_tokens?$"),
}


def kept(model: nn.Module, key: tuple[Any, ...], compute: Callable[[], T]) -> T:
    """Return what was computed for a model by this key, while it lives and its modules stay.

    Example:
        >>> model = nn.Identity()
        >>> kept(model, ("x",), lambda: 1), kept(model, ("x",), lambda: 2)
        (1, 1)
    """
    known = _KEPT.setdefault(model, {})
    key = (*key, structure_hash(model))
    if key not in known:
        known[key] = compute()
    return known[key]


@runtime_checkable
class NormalizingClassifier(Protocol):
    """A classifier that normalizes images itself, as the classifiers of visattn do."""

    class_names: tuple[str, ...]
    img_size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def normalize(self, images: Tensor) -> Tensor:
        """Return images normalized with mean and std."""
        ...

    def classify(self, images: Tensor) -> Tensor:
        """Return the class scores of normalized images."""
        ...


def forward_function(model: nn.Module) -> Callable[..., Any]:
    """Return the function of a model that takes normalized images."""
    return model.classify if isinstance(model, NormalizingClassifier) else model


def probe_model(
    model: nn.Module,
    input_size: tuple[int, int],
    channels: int,
    forward: Callable[[Float[Tensor, "b c y x"]], Any] | None = None,
    *,
    cache_key: str = "",
) -> ProbeResult:
    """Return the probe result of a model; cached results return at once.

    The model is in evaluation mode meanwhile, and is restored afterwards.

    Args:
        forward: Calls the model, if it takes more than images.
        cache_key: Identifies that call.
    """

    def run() -> ProbeResult:
        with CellStrides().watching(model) as strides:
            result = _probe(model, input_size, channels, forward or forward_function(model))
        if not result.error:
            kept(model, ("strides", input_size, channels), lambda: strides)
        return result

    return kept(model, ("probe", input_size, channels, cache_key), run)


def cell_margin(
    model: nn.Module,
    size: tuple[int, int],
    channels: int,
    grid: Grid,
    forward: Callable[[Tensor], Any] | None = None,
) -> Margin:
    """Return what of the input is free of the cells of a map, of a model that may not be running.

    A model that was not probed runs once on zeros of a size.

    Example:
        >>> cell_margin(nn.Conv2d(3, 2, 5), (28, 32), 3, (24, 28))
        (2, 2)
        >>> cell_margin(nn.Conv2d(3, 2, 5, padding=2), (28, 32), 3, (28, 32))
        (0, 0)
    """

    def run() -> CellStrides:
        zeros = torch.zeros(1, channels, *size).to(first_weight(model))
        with without_grad(model), probing(), CellStrides().watching(model) as strides:
            (forward or forward_function(model))(zeros)
        return strides

    return kept(model, ("strides", size, channels), run).margin(grid, size)


def feature_margin(encoder: nn.Module) -> Margin:
    """Return what of the input is free of the features of an image encoder of visattn.

    Example:
        >>> from visattn.models import SmallEncoder
        >>> feature_margin(SmallEncoder((40, 56), channels=16))
        (0, 0)
    """
    own: Any = encoder
    return cell_margin(encoder, own.img_size, 3, own.grid_size, own.forward_features)


def probe_pooled_features(
    model: nn.Module, input_size: tuple[int, int], channels: int, num_classes: int | None = None
) -> PooledFeatures:
    """Return the features that the scores of a model are pooled from; cached like `probe_model`.

    Args:
        num_classes: Number of classes, if it decides which of several outputs the scores are.
    """
    key = ("pooled", input_size, channels, num_classes)
    return kept(model, key, lambda: _pooled(model, input_size, channels, num_classes))


def _pooled(
    model: nn.Module, input_size: tuple[int, int], channels: int, num_classes: int | None
) -> PooledFeatures:
    result = probe_model(model, input_size, channels)
    forward = forward_function(model)
    image = probe_images(channels, input_size, first_weight(model))[:1]
    try:
        pooled = ScoreTracer(model, forward, result, num_classes).pooled_features(image)
    except (RuntimeError, NotImplementedError) as error:  # of operations without a gradient
        pooled = PooledFeatures(error=f"{_NO_GRADIENT} ({error})")
    if pooled.reading is None and result.attention_layers and not result.output.error:
        pooled.reading = read_by_change(model, image, forward, result.layouts)
    if pooled.layers:
        last = pooled.layers[-1]
        sites = list(result.layers)
        before = sites[: sites.index(last.site)]
        inputs = (result.once(site) for site in result.attention_inputs if site in before)
        earlier = [layer for layer in inputs if layer is not None]
        pooled.layers = (*earlier, last) if earlier else pooled.layers
    return pooled


def _probe(
    model: nn.Module,
    input_size: tuple[int, int],
    channels: int,
    forward: Callable[[Tensor], Any],
) -> ProbeResult:
    def images(seed: int) -> Tensor:
        return probe_images(channels, input_size, first_weight(model), seed)

    with without_grad(model):
        try:
            return run_probe(model, input_size, images, forward, prefix_tokens_of(model))
        except Exception as error:  # noqa: BLE001 - any exception of the user's model is reported
            location = user_code_location(error)
            where = f" in {location}" if location else ""
            return ProbeResult(error=f"{type(error).__name__}{where}: {error}")


def structure_hash(model: nn.Module) -> int:
    """Return a hash that changes when the modules of a model, or their windows, do.

    Example:
        >>> structure_hash(nn.Linear(1, 1)) == structure_hash(nn.Sequential(nn.Linear(1, 1)))
        False
    """
    parts = (
        (name, id(type(module)), str(vars(module).get("window_size", "")))
        for name, module in model.named_modules()
    )
    return hash(tuple(parts))


def prefix_tokens_of(model: nn.Module) -> tuple[str, ...]:
    """Return the kinds of the prefix tokens of a model, by the names of its parameters.

    Example:
        >>> model = nn.Module()
        >>> model.cls_token, model.reg_token = (nn.Parameter(torch.zeros(1, n, 8)) for n in (1, 2))
        >>> prefix_tokens_of(model)
        ('class', 'register', 'register')
    """
    counts = dict.fromkeys(_PREFIX_PARAMETERS, 0)
    for name, weight in model.named_parameters():
        for kind, pattern in _PREFIX_PARAMETERS.items():
            if pattern.search(name):
                count = weight.shape[-2] if weight.ndim > 1 else 1
                counts[kind] = max(counts[kind], count if kind == "register" else 1)
    return tuple(kind for kind, count in counts.items() for _ in range(count))
