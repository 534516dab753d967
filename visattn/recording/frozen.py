"""Contexts to explain a model in: evaluation mode, frozen, uncompiled, one thread at a time."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from threading import Lock, RLock, local
from typing import Any, cast
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from visattn.functional.numerics import without_autocast
from visattn.geometry.affine import Geometry
from visattn.insertion.sites import modes_restored

_DEVICES = ("cpu", "cuda", "mps", "xpu")
_RECOMPUTING = ("with_cp", "memory_efficient")  # mmdetection, and DenseNet of torchvision
_WRAPPERS = {"OptimizedModule": "_orig_mod"} | dict.fromkeys(
    ("DataParallel", "DistributedDataParallel", "AveragedModel"), "module"
)
HALF = (torch.float16, torch.bfloat16)
_NARROWING = frozenset({Tensor.half, Tensor.bfloat16})
_LOOKUPS = frozenset({F.embedding, torch.embedding})
_ATTRIBUTES = frozenset(
    {"__get__", "__set__", "__setitem__", "__getitem__", "size", "dim", "numel"}
)
_LOCKS: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()
_LOCKS_GUARD = Lock()
_HELD = local()


@contextmanager
def plain(model: nn.Module) -> Iterator[None]:
    """Run a model uncompiled, without gradient checkpointing, in one thread at a time.

    Hooks do not reach into compiled modules, and the hooks of the forward pass are gone when
    checkpointed blocks run again in the backward pass. Checkpointing is turned off by its flags in
    modules (`grad_checkpointing` of timm, `gradient_checkpointing` of Hugging Face,
    `use_checkpoint`, `with_cp`, `memory_efficient`). Since modes and `requires_grad` are visible to
    all threads, only one at a time explains a model, or models that share modules. Everything is
    restored afterwards.

    Example:
        >>> model = nn.Identity()
        >>> model.grad_checkpointing = True
        >>> with plain(model):
        ...     model.grad_checkpointing
        False
        >>> model.grad_checkpointing
        True
    """
    with _LOCKS_GUARD:  # models that share modules share a reentrant lock
        modules = list(model.modules())
        locks = {id(lock): lock for each in modules if (lock := _LOCKS.get(each))}
        if not locks:
            locks[0] = RLock()
        first = next(iter(locks.values()))
        for module in modules:
            _LOCKS.setdefault(module, first)
    with ExitStack() as stack:
        for number in sorted(locks):  # in a fixed order, to avoid deadlocks
            stack.enter_context(locks[number])
        for module in modules:
            attributes = vars(module)
            changed = {
                name: False if value is True else None
                for name, value in attributes.items()
                if (value is True and ("checkpoint" in name or name in _RECOMPUTING))
                or (name == "_compiled_call_impl" and value is not None)
            }
            if type(module).__name__ == "OptimizedModule":
                changed["forward"] = attributes["_modules"]["_orig_mod"]
            if changed:
                stack.callback(attributes.update, {name: attributes[name] for name in changed})
                attributes.update(changed)
        yield


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside `torch.compile`, `DataParallel` and similar wrappers.

    Example:
        >>> unwrapped(nn.DataParallel(nn.ReLU()))
        ReLU()
    """
    while (name := _WRAPPERS.get(type(model).__name__)) is not None:
        model = getattr(model, name)
    return model


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode, and restore the mode of each module afterwards.

    Inside the context the model is also `plain`.

    Example:
        >>> model, other = torch.nn.Dropout(), torch.nn.Dropout()
        >>> with eval_mode(model), eval_mode(other), eval_mode(model):
        ...     model.training, other.training
        (False, False)
        >>> model.training, other.training
        (True, True)
    """
    held: list[nn.Module] = vars(_HELD).setdefault("models", [])
    if any(each is model for each in held):  # by an enclosing context of the same thread
        yield
        return
    with plain(model), modes_restored(model):
        held.append(model)
        try:
            yield
        finally:
            held.remove(model)


@contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """Put a model into evaluation mode with frozen parameters and enabled gradients.

    With frozen parameters, a backward pass only computes gradients with respect to the inputs or
    activations of interest. Training modes, `requires_grad` of each parameter and the random state
    are restored afterwards, even after an exception.

    Example:
        >>> model = torch.nn.Linear(2, 1).train()
        >>> with frozen(model):
        ...     model.training, model.weight.requires_grad
        (False, False)
        >>> model.training, model.weight.requires_grad
        (True, True)
    """
    with (
        eval_mode(model),
        _random_state_kept(model),
        torch.inference_mode(mode=False),
        torch.enable_grad(),
    ):
        states = [(weight, weight.requires_grad) for weight in model.parameters()]
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
    with eval_mode(model), _random_state_kept(model), torch.no_grad():
        yield


def _random_state_kept(model: nn.Module) -> AbstractContextManager[None]:
    devices = {weight.device for weight in model.parameters() if weight.is_cuda}
    return torch.random.fork_rng(devices=list(devices))


def first_weight(model: nn.Module) -> Tensor:
    """Return a tensor with the dtype and device of the weights of a model.

    Example:
        >>> first_weight(torch.nn.Linear(2, 1).double()).dtype, first_weight(nn.Identity()).dtype
        (torch.float64, torch.float32)
    """
    weights = (weight.detach() for weight in model.parameters() if weight.is_floating_point())
    return next(weights, torch.zeros(1))


@contextmanager
def unrounded() -> Iterator[None]:
    """Disable autocast on every device while a model is analyzed; also a decorator.

    An analysis compares values and gradients that may differ by less than half precision resolves,
    and its cached result also serves runs without autocast.

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


def internal_transform(model: nn.Module) -> Any:
    """Return the module of a torchvision detector that resizes and pads; None if there is none."""
    name = "GeneralizedRCNNTransform"
    return next((module for module in model.modules() if type(module).__name__ == name), None)


def internal_geometry(model: nn.Module, size: tuple[int, int]) -> Geometry:
    """Return the geometry from the input of a detector to the padded canvas that its layers get.

    It is measured by running the resizing module of the model on a blank image.

    Example:
        >>> from torchvision.models.detection.transform import GeneralizedRCNNTransform
        >>> model = nn.Sequential(GeneralizedRCNNTransform(320, 640, [0.5] * 3, [0.5] * 3))
        >>> geometry = internal_geometry(model, (120, 200))
        >>> geometry.input_size, geometry.to_input(torch.tensor([[200.0, 120.0]]))
        ((320, 544), tensor([[533., 320.]]))
    """
    transform = internal_transform(model)
    blank = first_weight(model).new_zeros(len(transform.image_mean), *size)
    with torch.no_grad(), eval_mode(transform):
        images, _ = transform([blank])
    [resized] = images.image_sizes
    canvas = cast("Tensor", images.tensors).shape[-2:]
    return Geometry.identity(size).resized(resized).padded(0, 0, (canvas[0], canvas[1]))


class Float32(TorchFunctionMode):
    """Computes in float32 what a model computes in half precision.

    Weights are converted one at a time, while a function reads them; results stay in float32.

    Example:
        >>> with Float32():
        ...     torch.ones(2, dtype=torch.float16).add(2**-20).dtype
        torch.float32
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run a torch function on float32 copies of its 16-bit tensors."""
        name, kwargs = getattr(func, "__name__", ""), kwargs or {}
        in_place = name.endswith("_") and not name.endswith("__")
        half = bool(args) and isinstance(args[0], Tensor) and args[0].dtype in HALF
        if name in _ATTRIBUTES or (in_place and half):
            return func(*args, **kwargs)
        if func in _NARROWING:
            return args[0].float()
        if func in _LOOKUPS:  # convert only the selected rows
            return _wide(func(*args, **kwargs))
        return func(*_wide(args), **_wide(kwargs))


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
