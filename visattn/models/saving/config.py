"""Saved configs of models, and the shapes of their weights without memory.

`visattn.models.configurable` says what a model keeps of the arguments. A config contains no code,
and only classes of models can be built from one.
"""

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import visattn.models
from visattn.blocks.registry import is_registered
from visattn.models.configurable import CLASSES, Configurable, is_sharded
from visattn.models.saving.weight_files import Shapes, check_weight_types, shapes_of

MAX_TENSOR_BYTES = 2**31  # of one tensor during construction or one forward pass
BASE_OPERATIONS = 2_000  # for building a model with few weights
_OPERATIONS_PER_WEIGHT = 40
_MAX_WEIGHTS = 10_000
_FORWARD_OPERATIONS = 100_000
_COMPARISONS: tuple[Any, ...] = (torch.ops.aten.equal.default, torch.ops.aten.allclose.default)
# What constructors raise that get arguments of a wrong type, and passes that depend on values.
_ARGUMENT_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError,
)  # fmt: skip


def weight_shapes(build: Callable[[], nn.Module], *, num_weights: int, same: bool = True) -> Shapes:
    """Return the names and shapes of all weights and buffers of a model, without allocating memory.

    Args:
        build: Builds the model.
        num_weights: Expected number of weights; building stops when it takes many more operations.
        same: Result of tensor comparisons during construction, such as that of `insert`, which
            checks whether a block is initialized as the identity.

    Raises:
        ValueError: If a tensor would need more than `MAX_TENSOR_BYTES`, or the model has many more
            weights than expected.

    Example:
        >>> weight_shapes(lambda: nn.Linear(30_000, 10_000), num_weights=2)
        {'weight': (10000, 30000), 'bias': (10000,)}
        >>> weight_shapes(lambda: nn.Linear(10**6, 10**6), num_weights=2)
        Traceback (most recent call last):
        ValueError: a tensor of shape (1000000, 1000000) would need 4,000,000,000,000 bytes
    """
    limit = BASE_OPERATIONS + _OPERATIONS_PER_WEIGHT * min(num_weights, _MAX_WEIGHTS)
    with torch.device("meta"), _MemoryGuard(limit, same=same), torch.no_grad():
        state = build().state_dict()
    return shapes_of(state)


def check_forward_memory(
    build: Callable[[], nn.Module], run: Callable[[nn.Module], object]
) -> None:
    """Check that a forward pass on one image needs no tensor above `MAX_TENSOR_BYTES`.

    Some sizes matter only in the forward pass: an image of 2^20 x 2^20 pixels needs no weight. The
    pass runs on the meta device and allocates no memory. A pass that depends on tensor values
    cannot run there; the constructors of such models limit their arguments.

    Example:
        >>> run = lambda model: model(torch.zeros(1, 1, 8, 8))
        >>> check_forward_memory(lambda: nn.ReplicationPad2d(10), run)
        >>> check_forward_memory(lambda: nn.ReplicationPad2d(10**5), run)
        Traceback (most recent call last):
        ValueError: a tensor of shape (1, 1, 200008, 200008) would need 160,012,800,256 bytes
    """
    with torch.device("meta"), torch.no_grad(), _MemoryGuard(_FORWARD_OPERATIONS, same=True):
        model = build().eval()
        with _FusedAttention(), suppress(*_ARGUMENT_ERRORS):
            run(model)


class _FusedAttention(TorchFunctionMode):
    """Computes attention without its matrix, as the fused kernels do."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is scaled_dot_product_attention:
            query = kwargs["query"] if "query" in kwargs else args[0]
            values = kwargs["value"] if "value" in kwargs else args[2]
            return query.new_empty((*query.shape[:-1], values.shape[-1]))
        return func(*args, **kwargs)


class _MemoryGuard(TorchDispatchMode):
    """Stops after too many operations or at a tensor that is too large."""

    def __init__(self, num_operations: int, *, same: bool) -> None:
        super().__init__()
        self.operations_left = num_operations
        self.same = same

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.operations_left -= 1
        if self.operations_left < 0:
            raise ValueError("it has far more layers than weights")
        if func in _COMPARISONS:
            return self.same
        output = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(output):
            if isinstance(leaf, Tensor) and leaf.numel() * leaf.element_size() > MAX_TENSOR_BYTES:
                raise ValueError(
                    f"a tensor of shape {tuple(leaf.shape)} would need "
                    f"{leaf.numel() * leaf.element_size():,} bytes"
                )
        return output


ModelConfig = dict[str, Any]

MAX_NUMBER = 2**20  # of any argument: no dimension, depth or size needs more


def model_classes() -> dict[str, type[Configurable]]:
    """Return the classes of visattn that a config may name.

    Example:
        >>> "DETR" in model_classes(), "ImageClassifier" in model_classes()
        (True, False)
    """
    public = [getattr(visattn.models, name) for name in dir(visattn.models)]
    return {value.__name__: value for value in public if _can_be_built(value)}


def model_class(name: object) -> type[Configurable] | None:
    """Return the class that a config names: one of visattn, or a subclass defined elsewhere.

    Nothing is imported but modules of visattn.

    Example:
        >>> model_class("SmallEncoder")
        <class 'visattn.models.base.SmallEncoder'>
        >>> model_class("os.system")
    """
    if not isinstance(name, str):
        return None
    public = getattr(visattn.models, name) if name in dir(visattn.models) else None
    return next(filter(_can_be_built, (public, CLASSES.get(name))), None)


def _can_be_built(value: Any) -> bool:
    of_models = isinstance(value, type) and issubclass(value, Configurable)
    return of_models and not inspect.isabstract(value)


def is_saved(model: nn.Module) -> bool:
    """Return whether a model has a config: whether its class can be named in one."""
    return model_class(type(model).__name__) is type(model)


def model_config(model: nn.Module) -> ModelConfig:
    """Return the class name and the constructor arguments of a model as plain values.

    Raises:
        ValueError: If the class of the model is not one that a config may name.

    Example:
        >>> from visattn.models import SmallEncoder
        >>> model_config(SmallEncoder((24, 24), channels=8))["arguments"]["channels"]
        8
    """
    # FSDP2 derives a class of its own, whose last base is that of the model.
    known = type(model).__bases__[-1] if is_sharded(type(model)) else type(model)
    if model_class(known.__name__) is not known:
        raise ValueError(
            f"the model must be one of {', '.join(model_classes())}, or of a class of your own "
            f"that is derived from one of their bases, got {known.__name__}"
        )
    arguments = cast("Configurable", model).saved_arguments()
    return {
        "class": known.__name__,
        "arguments": {name: _to_plain(value) for name, value in arguments.items()},
    }


_ANY = object()
# Arguments that version 0.1.0 still read, and the values that stand for what the model does today.
_LEFT: dict[str, dict[str, Any]] = {
    "VisionTransformer": {
        "ffn_layer": "mlp",
        "attn_type": "full",
        "window_size": _ANY,  # of windows
        "pos_embed_prefix": True,
        "pos_interpolation": "timm",
        "class_token": _ANY,  # the names of the weights say it
        "distilled": False,
        "num_registers": 0,
        "use_fc_norm": _ANY,  # the names of the weights say it
        "qk_norm": False,
        "layer_scale": None,
        "patch_drop_rate": 0.0,
        "dynamic_img_pad": False,
        "norm_eps": 1e-6,
    },
}


def _without_left_arguments(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return saved arguments without those that left; refuse any other value of these."""
    left = _LEFT.get(name, {})
    for key, value in left.items():
        if key in arguments and value is not _ANY and arguments[key] != value:
            raise ValueError(
                f"{key}={arguments[key]!r} of {name} was last read by visattn 0.1.0: this version "
                f"reads models with {key}={value!r} only"
            )
    return {key: value for key, value in arguments.items() if key not in left}


def build_model(config: Mapping[str, Any]) -> nn.Module:
    """Build a model from its config, with random weights; nothing is downloaded.

    Raises:
        ValueError: If the config is invalid.

    Example:
        >>> from visattn.models import SmallEncoder
        >>> build_model(model_config(SmallEncoder((24, 24), channels=8))).img_size
        (24, 24)
    """
    name = config.get("class")
    arguments = config.get("arguments")
    known_class = model_class(name)
    if known_class is None or not isinstance(arguments, Mapping):
        raise ValueError(
            f"a config names one of {', '.join(model_classes())}, or a class of your own that is "
            f"imported before loading, and its arguments, got {name!r}"
        )
    arguments = _without_left_arguments(known_class.__name__, cast("Mapping[str, Any]", arguments))
    parameters = set(known_class.argument_names())
    known = parameters | {*known_class.SETTINGS}
    if unknown := sorted(set(map(str, arguments)) - known):
        raise ValueError(f"{name} has no argument {', '.join(unknown)}; it has {sorted(known)}")
    if arguments.get("pretrained") or arguments.get("weights"):
        raise ValueError(
            "a config may not set pretrained or weights: its weights are stored beside it"
        )
    _check_blocks(known_class.__name__, arguments)
    built = {key: _from_plain(value) for key, value in arguments.items()}
    try:
        model = known_class(**{key: value for key, value in built.items() if key in parameters})
    except _ARGUMENT_ERRORS as error:
        raise ValueError(f"{name} cannot be built with these arguments: {error}") from error
    for key in built.keys() - parameters:
        setattr(model, key, built[key])
    return cast("nn.Module", model)


def check_config_fits(config: Mapping[str, Any], shapes: Shapes, *, source: object) -> None:
    """Check that a config fits weights of these shapes, without allocating memory.

    Raises:
        ValueError: If the config is invalid, does not fit the weights, or needs more memory for
            construction or for one image than allowed.

    Example:
        >>> config = {"class": "SmallEncoder", "arguments": {"channels": 10**12}}
        >>> check_config_fits(config, {}, source="m.safetensors")
        Traceback (most recent call last):
        ValueError: m.safetensors: numbers in a config must be at most 1,048,576...
    """
    try:
        _check_numbers(config)
        build = partial(build_model, config)
        # Shapes are found without values. A constructor that compares tensors, as `insert` does to
        # see if a block is the identity, gets one answer for all: both are tried.
        expected = weight_shapes(build, num_weights=len(shapes), same=True)
        if (
            expected != shapes
            and weight_shapes(build, num_weights=len(shapes), same=False) == shapes
        ):
            expected = shapes
        if expected == shapes:
            check_forward_memory(build, lambda model: cast("Configurable", model).run_blank_image())
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{source}: {error}") from error
    if expected != shapes:
        names = [name for name in {**expected, **shapes} if expected.get(name) != shapes.get(name)]
        raise ValueError(
            f"{source} is damaged: its weights do not fit its model config; {names[0]} is "
            f"{shapes.get(names[0], 'missing')} but must be {expected.get(names[0], 'missing')}"
        )


def restore_model(
    config: Mapping[str, Any], weights: Mapping[str, Tensor], *, source: object
) -> nn.Module:
    """Build a model from its config and load its weights, in evaluation mode.

    Raises:
        ValueError: If the config is invalid, or the weights do not fit.

    Example:
        >>> from visattn.models import SmallEncoder
        >>> encoder = SmallEncoder((24, 24), channels=8)
        >>> restore_model(model_config(encoder), encoder.state_dict(), source="memory").training
        False
    """
    check_config_fits(config, shapes_of(weights), source=source)
    return build_with_weights(config, weights)


def build_with_weights(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> nn.Module:
    """Build a model and load weights that passed `check_config_fits`, in evaluation mode.

    Example:
        >>> from visattn.models import SmallEncoder
        >>> encoder = SmallEncoder((24, 24), channels=8)
        >>> build_with_weights(model_config(encoder), encoder.state_dict()).grid_size
        (3, 3)
    """
    model = build_model(config)
    check_weight_types(model.state_dict(), weights, "the file of weights")
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"the weights do not fit the model config: {error}") from error
    return model.eval()


def _check_blocks(name: str, arguments: Mapping[Any, Any]) -> None:
    """Refuse blocks that are not registered: loading a config imports nothing."""
    for block in (arguments.get("block"), arguments.get("stem_block")):
        if isinstance(block, str) and not is_registered(block):
            raise ValueError(
                f"the {name} uses the block {block!r}, which is not registered: import its class "
                "and call va.register_block(Class) with that name before loading"
            )


def _check_numbers(value: Any) -> None:
    """Refuse huge numbers at any depth of a config."""
    if isinstance(value, Mapping):
        _check_numbers(list(cast("Mapping[str, Any]", value).values()))
    elif isinstance(value, list | tuple):
        for entry in cast("list[Any]", value):
            _check_numbers(entry)
    elif isinstance(value, int | float) and not abs(value) <= MAX_NUMBER:
        raise ValueError(f"numbers in a config must be at most {MAX_NUMBER:,}, got {value!s:.20}")


def _to_plain(value: object) -> Any:
    if isinstance(value, tuple | list | nn.ModuleList):
        return [_to_plain(entry) for entry in cast("list[object]", value)]
    if isinstance(value, nn.Module):
        return model_config(value)
    if isinstance(value, Mapping):
        entries = cast("Mapping[str, object]", value).items()
        return {str(key): _to_plain(entry) for key, entry in entries}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a config may hold plain values only, got {type(value).__name__}")


def _from_plain(value: Any) -> Any:
    """Invert `_to_plain`: build nested models, and convert lists to tuples."""
    if isinstance(value, list):
        return tuple(map(_from_plain, cast("list[Any]", value)))
    return build_model(value) if isinstance(value, Mapping) and "class" in value else value
