"""Model configs: the class and constructor arguments of a model as plain values, and back.

`visattn.models.base` says what a model keeps of the arguments. A config contains no code, and only
classes of models can be built from one.
"""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

from torch import Tensor, nn

import visattn.models
from visattn.blocks.registry import is_registered
from visattn.models.base import CLASSES, Configurable, is_sharded
from visattn.models.serialization.finite_weights import check_weight_types
from visattn.models.serialization.meta_shapes import check_forward_memory, weight_shapes
from visattn.models.serialization.weight_files import Shapes

ModelConfig = dict[str, Any]

MAX_NUMBER = 2**20  # of any argument: no dimension, depth or size needs more

# Errors of constructors that get arguments of a wrong type.
_ARGUMENT_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError,
)  # fmt: skip


def model_classes() -> dict[str, type[Configurable]]:
    """Return the classes of visattn that a config may name.

    Example:
        >>> "DETR" in model_classes(), "ImageClassifier" in model_classes()
        (True, False)
    """
    public = [getattr(visattn.models, name) for name in dir(visattn.models)]
    return {each.__name__: each for each in public if _can_be_built(each)}


def model_class(name: object) -> type[Configurable] | None:
    """Return the class that a config names: one of visattn, or a subclass defined elsewhere.

    Nothing is imported but modules of visattn.

    Args:
        name: Name of the class.

    Example:
        >>> model_class("SmallEncoder")
        <class 'visattn.models.encoder.SmallEncoder'>
        >>> model_class("os.system")
    """
    if not isinstance(name, str):
        return None
    public = getattr(visattn.models, name) if name in dir(visattn.models) else None
    return next(filter(_can_be_built, (public, CLASSES.get(name))), None)


def _can_be_built(kind: Any) -> bool:
    of_models = isinstance(kind, type) and issubclass(kind, Configurable)
    return of_models and not inspect.isabstract(kind)


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


def build_model(config: Mapping[str, Any]) -> nn.Module:
    """Build a model from its config, with random weights; nothing is downloaded.

    Raises:
        ValueError: If the config is invalid.

    Example:
        >>> from visattn.models import SmallEncoder
        >>> build_model(model_config(SmallEncoder((24, 24), channels=8))).img_size
        (24, 24)
    """
    name, arguments = config.get("class"), config.get("arguments")
    kind = model_class(name)
    if kind is None or not isinstance(arguments, Mapping):
        raise ValueError(
            f"a config names one of {', '.join(model_classes())}, or a class of your own that is "
            f"imported before loading, and its arguments, got {name!r}"
        )
    parameters = set(kind.argument_names())
    known = parameters | {*kind.SETTINGS}
    if unknown := sorted(set(map(str, arguments)) - known):
        raise ValueError(f"{name} has no argument {', '.join(unknown)}; it has {sorted(known)}")
    if arguments.get("pretrained") or arguments.get("weights"):
        raise ValueError(
            "a config may not set pretrained or weights: its weights are stored beside it"
        )
    _check_blocks(kind.__name__, arguments)
    built = {key: _from_plain(value) for key, value in cast("Mapping[str, Any]", arguments).items()}
    try:
        model = kind(**{key: value for key, value in built.items() if key in parameters})
    except _ARGUMENT_ERRORS as error:
        raise ValueError(f"{name} cannot be built with these arguments: {error}") from error
    for key in built.keys() - parameters:
        setattr(model, key, built[key])
    return cast("nn.Module", model)


def check_config_fits(config: Mapping[str, Any], shapes: Shapes, *, source: object) -> None:
    """Check that a config fits weights of these shapes, without allocating memory.

    Args:
        config: The config.
        shapes: Shapes of all weights and buffers, by name.
        source: Name of the file, for messages.

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

    Args:
        config: The config.
        weights: All weights and buffers, by name.
        source: Name of the file, for messages.

    Raises:
        ValueError: If the config is invalid, or the weights do not fit.

    Example:
        >>> from visattn.models import SmallEncoder
        >>> encoder = SmallEncoder((24, 24), channels=8)
        >>> restore_model(model_config(encoder), encoder.state_dict(), source="memory").training
        False
    """
    check_config_fits(config, {k: tuple(v.shape) for k, v in weights.items()}, source=source)
    return build_with_weights(config, weights)


def build_with_weights(config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> nn.Module:
    """Build a model and load weights that passed `check_config_fits`, in evaluation mode.

    Raises:
        ValueError: If they do not fit.

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
        for part in cast("Mapping[str, Any]", value).values():
            _check_numbers(part)
    elif isinstance(value, list | tuple):
        for part in cast("list[Any]", value):
            _check_numbers(part)
    elif isinstance(value, int | float) and not abs(value) <= MAX_NUMBER:
        raise ValueError(f"numbers in a config must be at most {MAX_NUMBER:,}, got {value!s:.20}")


def _to_plain(value: object) -> Any:
    if isinstance(value, tuple | list | nn.ModuleList):
        return [_to_plain(part) for part in cast("list[object]", value)]
    if isinstance(value, nn.Module):
        return model_config(value)
    if isinstance(value, Mapping):
        return {
            str(key): _to_plain(part) for key, part in cast("Mapping[str, object]", value).items()
        }
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a config may hold plain values only, got {type(value).__name__}")


def _from_plain(value: Any) -> Any:
    """Invert `_to_plain`: build nested models, and convert lists to tuples."""
    if isinstance(value, list):
        return tuple(map(_from_plain, cast("list[Any]", value)))
    return build_model(value) if isinstance(value, Mapping) and "class" in value else value
