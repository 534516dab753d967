"""Contexts in which a model is run and then restored: evaluation mode, frozen, unrounded."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import Lock
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import checkpoint

from visattn.functional.numerics import without_autocast
from visattn.geometry.affine import Geometry
from visattn.insertion.sites import modes_restored

_DEVICES = ("cpu", "cuda", "mps", "xpu")


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and restore the mode of each of its modules afterwards.

    Gradient checkpointing is switched off meanwhile (see `without_checkpointing`).

    Example:
        >>> model = torch.nn.Dropout().train()
        >>> with eval_mode(model):
        ...     model.training
        False
        >>> model.training
        True
    """
    with modes_restored(model), without_checkpointing(model):
        yield


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode with frozen parameters and enabled gradients.

    With frozen parameters, a backward pass only computes gradients with respect to the inputs or
    activations of interest. Training modes, `requires_grad` of each parameter and the random state
    are restored afterwards, also after an exception.

    Example:
        >>> model = torch.nn.Linear(2, 1).train()
        >>> with frozen(model):
        ...     model.training, model.weight.requires_grad
        (False, False)
        >>> model.training, model.weight.requires_grad
        (True, True)
    """
    states = [(weight, weight.requires_grad) for weight in model.parameters()]
    with (
        _random_state_kept(model),
        torch.inference_mode(mode=False),
        torch.enable_grad(),
        eval_mode(model),
    ):
        try:
            for weight, _ in states:
                weight.requires_grad = False
            yield
        finally:
            for weight, requires_grad in states:
                weight.requires_grad = requires_grad


@contextmanager
def without_grad(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode without gradients; modes and random state are restored.

    Example:
        >>> with without_grad(torch.nn.Linear(2, 1)):
        ...     torch.is_grad_enabled()
        False
    """
    with _random_state_kept(model), torch.no_grad(), eval_mode(model):
        yield


def _random_state_kept(model: nn.Module) -> AbstractContextManager[None]:
    devices = {weight.device for weight in model.parameters() if weight.device.type == "cuda"}
    return torch.random.fork_rng(devices=list(devices))


def first_weight(model: nn.Module) -> Tensor:
    """Return a tensor with dtype and device of the weights of a model.

    Example:
        >>> first_weight(torch.nn.Linear(2, 1).double()).dtype, first_weight(nn.Identity()).dtype
        (torch.float64, torch.float32)
    """
    weights = (weight.detach() for weight in model.parameters() if weight.is_floating_point())
    return next(weights, torch.zeros(1))


@contextmanager
def unrounded() -> Iterator[None]:
    """Disable autocast on every device, for analyses of a model; also a decorator.

    What depends on what is decided by comparing values and gradients, which 16 bits would hide. The
    result is cached, too, and later runs may be without autocast.

    Example:
        >>> with torch.autocast("cpu"), unrounded():
        ...     torch.nn.Linear(2, 1)(torch.ones(1, 2)).dtype
        torch.float32
    """
    with ExitStack() as stack:
        for device in _DEVICES:
            stack.enter_context(without_autocast(torch.device(device)))
        yield


def with_grad(images: Tensor) -> Tensor:
    """Return a detached copy of images that requires a gradient.

    Example:
        >>> with_grad(torch.zeros(2)).requires_grad
        True
    """
    return images.detach().clone().requires_grad_()


HALF = (torch.float16, torch.bfloat16)
_NARROWING = frozenset({Tensor.half, Tensor.bfloat16})
_LOOKUPS = frozenset({F.embedding, torch.embedding})
_ATTRIBUTES = frozenset(
    {"__get__", "__set__", "__setitem__", "__getitem__", "size", "dim", "numel"}
)

Call = tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]


def in_float32(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
    """Return a call of a torch function on float32 copies of its 16-bit tensors.

    It is for a torch-function mode that hears all calls of a model: weights are copied one at a
    time, while a function reads them, and what the model computes from them stays in float32.

    Example:
        >>> half = torch.ones(2, dtype=torch.float16)
        >>> add, args, kwargs = in_float32(torch.add, (half, 2**-20), {})
        >>> add(*args, **kwargs).dtype
        torch.float32
    """
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    first = args[0] if args else None
    if name in _ATTRIBUTES or (in_place and isinstance(first, Tensor) and first.dtype in HALF):
        return func, args, kwargs
    if func in _NARROWING:
        return Tensor.float, args, {}
    if func in _LOOKUPS:  # copies the chosen rows alone
        return (lambda *a, **k: _wide(func(*a, **k))), args, kwargs
    return func, _wide(args), _wide(kwargs)


def _wide(value: Any) -> Any:
    """Return a nested value with 16-bit tensors in float32, and float32 for 16-bit types."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype in HALF else value
    if isinstance(value, torch.dtype):
        return torch.float32 if value in HALF else value
    if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
        return type(value)(map(_wide, value))
    if isinstance(value, Mapping):
        return {key: _wide(item) for key, item in value.items()}
    return value


_FLAG_NAMES = ("with_cp",)
_GENERATORS = (
    "_checkpoint_without_reentrant_generator",
    "_checkpoint_without_reentrant_generator_impl",  # torch 2.15 and later
)


@contextmanager
def without_checkpointing(model: nn.Module) -> Iterator[None]:
    """Let a model keep its activations for the backward pass instead of computing them again.

    A block that runs again in the backward pass runs without the hooks and interceptors of the
    forward pass. And a model that checkpoints may call the layers of a stage one by one, so that
    the hooks of the stage never run. So attributes of modules that switch checkpointing on
    (`grad_checkpointing` of timm, `gradient_checkpointing` of Hugging Face, `use_checkpoint`,
    `with_cp`) are false meanwhile, and `torch.utils.checkpoint` calls its function directly.

    Example:
        >>> model = nn.Identity()
        >>> model.grad_checkpointing = True
        >>> with without_checkpointing(model):
        ...     model.grad_checkpointing
        False
        >>> model.grad_checkpointing
        True
    """
    flags = [
        (module, name)
        for module in model.modules()
        for name, value in vars(module).items()
        if value is True and ("checkpoint" in name or name in _FLAG_NAMES)
    ]
    try:
        for module, name in flags:
            setattr(module, name, False)
        with _direct_calls.active():
            yield
    finally:
        for module, name in flags:
            setattr(module, name, True)


class _DirectCalls:
    """Makes `torch.utils.checkpoint` call its function directly, also in code that imported it.

    Threads share the module, so the last one to leave restores it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = 0
        self._originals: dict[str, Any] = {}

    @contextmanager
    def active(self) -> Iterator[None]:
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._replace()
        try:
            yield
        finally:
            with self._lock:
                self._count -= 1
                if self._count == 0:
                    self._set(self._originals)

    def _replace(self) -> None:
        replacements: dict[str, Any] = dict.fromkeys(_GENERATORS, _keep_activations)
        replacements["CheckpointFunction"] = _ReentrantCall
        names = [name for name in replacements if hasattr(checkpoint, name)]
        self._originals = {name: getattr(checkpoint, name) for name in names}
        self._set({name: replacements[name] for name in names})

    @staticmethod
    def _set(functions: dict[str, Any]) -> None:
        for name, function in functions.items():
            setattr(checkpoint, name, function)


def _keep_activations(*_: Any, **__: Any) -> Iterator[None]:
    """Run around the function of a checkpoint without reentrance; do nothing before and after."""
    yield


class _ReentrantCall:
    """In place of the autograd function of a checkpoint with reentrance."""

    @staticmethod
    def apply(function: Callable[..., Any], _: bool, *args: Any) -> Any:
        return function(*args)


_direct_calls = _DirectCalls()


def internal_transform(model: nn.Module) -> Any:
    """Return the module of a torchvision detector that resizes and pads; None if there is none."""
    name = "GeneralizedRCNNTransform"
    return next((module for module in model.modules() if type(module).__name__ == name), None)


def internal_geometry(model: nn.Module, size: tuple[int, int]) -> Geometry:
    """Return the geometry from the input of a model to the canvas that its layers see.

    It is measured: the resizing module of the model runs on a blank image.

    Example:
        >>> from torchvision.models.detection.transform import GeneralizedRCNNTransform
        >>> model = nn.Sequential(GeneralizedRCNNTransform(320, 640, [0.5] * 3, [0.5] * 3))
        >>> geometry = internal_geometry(model, (120, 200))
        >>> geometry.input_size, geometry.to_input(torch.tensor([[200.0, 120.0]]))
        ((320, 544), tensor([[533., 320.]]))
    """
    identity = Geometry.identity(size)
    transform = internal_transform(model)
    if transform is None:
        return identity
    blank = first_weight(model).new_zeros(len(transform.image_mean), *size)
    with torch.no_grad(), eval_mode(transform):
        images, _ = transform([blank])
    [resized] = images.image_sizes
    canvas = cast("Tensor", images.tensors).shape[-2:]
    return identity.resized(resized).padded(0, 0, (canvas[0], canvas[1]))
