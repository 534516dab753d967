"""Saved configs of models.

`visattn.models.configurable` says what a model keeps of the arguments. A config contains no code,
and only classes of models can be built from one.
"""

import inspect
from collections.abc import Mapping
from typing import Any, cast

from torch import Tensor, nn

import visattn.models
from visattn.models.configurable import CLASSES, Configurable
from visattn.models.saving.weight_files import check_weight_types, describe_mismatch, shapes_of

# What constructors raise that get arguments of a wrong type, and passes that depend on values.
_ARGUMENT_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError,
)  # fmt: skip


ModelConfig = dict[str, Any]


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
    known = type(model)
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
        "stem_kwargs": _ANY,  # the shapes of the weights say it
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
    "AttentionResNet": {
        "stages": _ANY,  # the names of the weights say it
        "position": "residual",
        "shortcut": "projection",
    },
    "TimmClassifier": {"stages": None},
    "DETR": {
        "queries": "learned",
        "cross_attention": "dense",
        "num_points": _ANY,  # of deformable attention
        "class_probability": "softmax",
        "two_stage": False,
        "num_denoising_groups": 0,
    },
    "KnowingWhenToLook": {"feedback": "none"},
    "TransformerCaptioner": {
        "pos_embed": "sincos",
        "max_length": _ANY,
        "memory_slots": 0,
        "meshed": False,
        "attention_on_attention": False,
    },
    "CrossAttentionVQA": {"read_words": False, "read_positions": False, "word_attention": False},
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
    built = {key: _from_plain(value) for key, value in arguments.items()}
    try:
        model = known_class(**{key: value for key, value in built.items() if key in parameters})
    except _ARGUMENT_ERRORS as error:
        raise ValueError(f"{name} cannot be built with these arguments: {error}") from error
    for key in built.keys() - parameters:
        setattr(model, key, built[key])
    return cast("nn.Module", model)


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
    try:
        model = build_model(config)
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{source}: {error}") from error
    expected = shapes_of(model.state_dict())
    if expected != (shapes := shapes_of(weights)):
        raise ValueError(
            f"{source} is damaged: its weights do not fit its model config; "
            f"{describe_mismatch(expected, shapes)}"
        )
    check_weight_types(model.state_dict(), weights, source)
    model.load_state_dict(weights)
    return model.eval()


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
