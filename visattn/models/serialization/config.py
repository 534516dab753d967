"""Model configs: the class and constructor arguments of a model as plain values, and back.

A model keeps its constructor arguments as attributes of the same names. A config contains no code,
and only the classes below can be built from one.
"""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from visattn.blocks.registry import is_registered
from visattn.models.backbones.timm_classifier import TimmClassifier
from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.models.captioner import Captioner
from visattn.models.captioning.adaptive_attention import KnowingWhenToLook
from visattn.models.captioning.ensemble import CaptionerEnsemble
from visattn.models.captioning.sequence_recognizer import SequenceRecognizer
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.captioning.transformer_captioner import TransformerCaptioner
from visattn.models.classifier import ImageClassifier
from visattn.models.dense import DenseModel
from visattn.models.detection.detr import DETR
from visattn.models.encoder import ImageEncoder, SmallEncoder
from visattn.models.ram.dram import DRAM
from visattn.models.ram.glimpse_model import GlimpseModel
from visattn.models.ram.ram import RecurrentAttentionModel
from visattn.models.resnet.attention_resnet import AttentionResNet
from visattn.models.segmentation.unet import UNet
from visattn.models.serialization.finite_weights import check_weight_types
from visattn.models.serialization.meta_shapes import check_forward_memory, weight_shapes
from visattn.models.serialization.weight_files import Shapes
from visattn.models.swin.swin_transformer import SwinTransformer
from visattn.models.vit.vision_transformer import VisionTransformer
from visattn.models.vqa.cnn_mlp import CNNMLP
from visattn.models.vqa.cross_attention import CrossAttentionVQA
from visattn.models.vqa.hierarchical_coattention import HierarchicalCoAttention
from visattn.models.vqa.mac import MAC
from visattn.models.vqa.relation_network import RelationNetwork
from visattn.models.vqa.stacked_attention import StackedAttentionNetwork
from visattn.models.vqa_model import VQAModel

ModelConfig = dict[str, Any]

MAX_NUMBER = 2**20  # of any argument: no dimension, depth or size needs more

MODEL_CLASSES: dict[str, type[nn.Module]] = {
    model_class.__name__: model_class
    for model_class in (
        SmallEncoder,
        TimmEncoder,
        ShowAttendTell,
        KnowingWhenToLook,
        TransformerCaptioner,
        SequenceRecognizer,
        CaptionerEnsemble,
        AttentionResNet,
        TimmClassifier,
        RecurrentAttentionModel,
        DRAM,
        VisionTransformer,
        SwinTransformer,
        DETR,
        UNet,
        StackedAttentionNetwork,
        HierarchicalCoAttention,
        CrossAttentionVQA,
        MAC,
        RelationNetwork,
        CNNMLP,
    )
}


# Errors of constructors that get arguments of a wrong type.
_ARGUMENT_ERRORS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError,
)  # fmt: skip


def model_config(model: nn.Module) -> ModelConfig:
    """Return the class name and the constructor arguments of a model as plain values.

    Raises:
        ValueError: If the class of the model is not one of `MODEL_CLASSES`.

    Example:
        >>> model_config(SmallEncoder((24, 24), channels=8))["arguments"]["channels"]
        8
    """
    model_class = _class_of(model)
    if MODEL_CLASSES.get(model_class.__name__) is not model_class:
        raise ValueError(
            f"the model must be one of {', '.join(MODEL_CLASSES)}, got {model_class.__name__}"
        )
    names = list(inspect.signature(model_class.__init__).parameters)[1:]
    names += [name for name in _attributes(model_class) if getattr(model, name)]
    return {
        "class": model_class.__name__,
        "arguments": {name: _to_plain(getattr(model, name)) for name in names},
    }


def _class_of(model: nn.Module) -> type[nn.Module]:
    """Return the class of a model; FSDP2 derives a class from that of a model that it shards."""
    bases = type(model).__bases__
    sharded = any(base.__name__ == "FSDPModule" for base in bases)
    return bases[-1] if sharded else type(model)


def build_model(config: Mapping[str, Any]) -> nn.Module:
    """Build a model from its config, with random weights; nothing is downloaded.

    Raises:
        ValueError: If the config is invalid.

    Example:
        >>> build_model(model_config(SmallEncoder((24, 24), channels=8))).img_size
        (24, 24)
    """
    name, arguments = config.get("class"), config.get("arguments")
    if not isinstance(name, str) or name not in MODEL_CLASSES or not isinstance(arguments, Mapping):
        raise ValueError(
            f"a config names one of {', '.join(MODEL_CLASSES)} and its arguments, got {name!r}"
        )
    model_class = MODEL_CLASSES[name]
    parameters = set(list(inspect.signature(model_class.__init__).parameters)[1:])
    known = parameters | set(_attributes(model_class))
    if unknown := sorted(set(map(str, arguments)) - known):
        raise ValueError(f"{name} has no argument {', '.join(unknown)}; it has {sorted(known)}")
    if arguments.get("pretrained") or arguments.get("weights"):
        raise ValueError(
            "a config may not set pretrained or weights: its weights are stored beside it"
        )
    _check_blocks(name, arguments)
    built = {key: _from_plain(value) for key, value in cast("Mapping[str, Any]", arguments).items()}
    try:
        model = model_class(**{key: value for key, value in built.items() if key in parameters})
    except _ARGUMENT_ERRORS as error:
        raise ValueError(f"{name} cannot be built with these arguments: {error}") from error
    for key in built.keys() - parameters:
        setattr(model, key, built[key])
    return model


def _attributes(model_class: type[nn.Module]) -> tuple[str, ...]:
    """Return the attributes that a config keeps beside the arguments of the constructor."""
    return getattr(model_class, "CONFIG_ATTRIBUTES", ())


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
            check_forward_memory(build, _forward_one_image)
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


def _forward_one_image(model: nn.Module) -> None:
    """Run a model on one image.

    Glimpse models depend on tensor values; their constructor limits their memory.
    """
    if isinstance(model, GlimpseModel):
        return
    if isinstance(model, Captioner):
        size = model.encoder.img_size
        state = model.start(model.encoder(torch.zeros(1, 3, *size)))
        model.step(state, torch.zeros(1, 1, dtype=torch.long))
    elif isinstance(model, VQAModel):
        features = model.encoder(torch.zeros(1, 3, *model.img_size))
        model.answer(features, torch.ones(1, 1, dtype=torch.long))
    elif isinstance(model, ImageClassifier):
        model.classify(torch.zeros(1, len(model.mean), *model.img_size))
    elif isinstance(model, ImageEncoder | DenseModel):
        model(torch.zeros(1, 3, *model.img_size))


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
