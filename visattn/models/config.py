"""Configs of models: class and constructor arguments, as plain values without code.

    {"class": "ShowAttendTell", "arguments": {"words": [...], "encoder": {"class": ...}}}

Only classes of visattn, and of modules that the user imports or trusts, can be built.
"""

import inspect
import re
from collections.abc import Mapping
from typing import Any, cast

from torch import nn

import visattn.models
from visattn.io.trusted_modules import (
    TRUST_VARIABLE,
    import_trusted,
    is_trusted_module,
    user_trusted_modules,
)
from visattn.models.configurable import CLASSES, Configurable

ModelConfig = dict[str, Any]


def model_classes() -> dict[str, type[Configurable]]:
    """Return the classes of visattn that a config may name."""
    public = [getattr(visattn.models, name) for name in dir(visattn.models)]
    return {value.__name__: value for value in public if _can_be_built(value)}


def _can_be_built(value: Any) -> bool:
    of_models = isinstance(value, type) and issubclass(value, Configurable)
    return of_models and not inspect.isabstract(value)


def model_class(name: str, run: str = "") -> type[Configurable]:
    """Return the class that a config names.

    Args:
        name: Name of a class of visattn, or of a subclass of its bases that is defined elsewhere.
        run: Config of the run, as YAML, with the module of the class.

    Raises:
        ValueError: If there is no such class, or its module is not trusted.
    """
    own = CLASSES.get(name) if name not in dir(visattn.models) else getattr(visattn.models, name)
    if own is None:
        named = re.findall(rf"class_path: ([\w.]+)\.{re.escape(name)}\s", run)
        for module in named or user_trusted_modules():
            if is_trusted_module(module):
                import_trusted(module)
        own = CLASSES.get(name)
    if not _can_be_built(own):
        raise ValueError(
            f"the class of the model is {name!r}, which is not one of visattn: import its module "
            f"first, or trust it, as in {TRUST_VARIABLE}=my_module"
        )
    return cast("type[Configurable]", own)


def model_config(model: nn.Module) -> ModelConfig:
    """Return class and constructor arguments of a model as plain values.

    Raises:
        ValueError: If no config can name its class.
    """
    name = type(model).__name__
    if not isinstance(model, Configurable) or model_class(name) is not type(model):
        raise ValueError(
            f"a {name} is not a model of visattn: save its weights, torch.save(model.state_dict(), "
            "'weights.pth'), and load them with the code that builds it, va.load('FILE.py:NAME', "
            "weights='weights.pth')"
        )
    arguments = model.saved_arguments().items()
    return {"class": name, "arguments": {key: _to_plain(value) for key, value in arguments}}


def _to_plain(value: Any) -> Any:
    if isinstance(value, tuple | list | nn.ModuleList):
        return [_to_plain(each) for each in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        return {str(key): _to_plain(each) for key, each in value.items()}
    return model_config(value) if isinstance(value, nn.Module) else value


# Arguments of 0.1.0 that were removed, with the values that correspond to today's models:
_GONE: dict[str, Any] = {
    "ffn_layer": "mlp",
    "attn_type": "full",
    "pos_embed_prefix": True,
    "pos_interpolation": "timm",
    "norm_eps": 1e-6,
    "queries": "learned",
    "cross_attention": "dense",
    "class_probability": "softmax",
    "feedback": "none",
    "pos_embed": "sincos",
    "init_location": "random",
    "positions": True,
    "question_encoder": "gru",
    "backend": "crop",
    "position": "residual",
    "shortcut": "projection",
}
_GONE_FALSE = (  # false, zero or None
    "attention_on_attention", "distilled", "dynamic_img_pad", "grid_layers", "layer_scale",
    "memory_slots", "meshed", "num_denoising_groups", "num_registers", "patch_drop_rate",
    "qk_norm", "read_positions", "read_words", "two_stage", "word_attention",
)  # fmt: skip
_UNUSED = (  # follow from the weights, or have no effect
    "class_token", "dropout", "learn_std", "max_length", "num_points", "stages", "stem_kwargs",
    "use_fc_norm", "window_size",
)  # fmt: skip


def without_gone(known: type[Configurable], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of an old file or run without removed ones that have no effect."""
    names = (*known.argument_names(), *known.SETTINGS)

    def is_gone(key: str, value: Any) -> bool:
        as_false = key in _GONE_FALSE and not value
        return as_false or key in _UNUSED or (key in _GONE and _GONE[key] == value)

    return {k: v for k, v in arguments.items() if k in names or not is_gone(k, v)}


def build_model(config: ModelConfig, run: str = "") -> nn.Module:
    """Build a model from its config, with random weights; nothing is downloaded.

    Raises:
        ValueError: If its class is not known.
        TypeError: If it has an argument that the class does not take.

    Example:
        >>> from visattn.models import SmallEncoder
        >>> build_model(model_config(SmallEncoder((24, 24), channels=8))).img_size
        (24, 24)
    """
    known = model_class(str(config["class"]), run)
    arguments = without_gone(known, config["arguments"])
    if arguments.get("pretrained") or arguments.get("weights"):  # would be downloaded or read
        raise ValueError("a config may not set pretrained or weights: its weights come with it")
    built = {key: _from_plain(value, run) for key, value in arguments.items()}
    settings = {key: built.pop(key) for key in known.SETTINGS if key in built}
    model = known(**built)
    for key, value in settings.items():
        setattr(model, key, value)
    return cast("nn.Module", model)


def _from_plain(value: Any, run: str) -> Any:
    if isinstance(value, list):
        return tuple(_from_plain(each, run) for each in value)
    return build_model(value, run) if isinstance(value, dict) and "class" in value else value
