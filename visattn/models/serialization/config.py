"""A model as plain values: what to build and with which arguments, and back again.

A model remembers what it was built with under the names of its constructor's arguments. That is
all a description needs; it holds no code, and building one can only make the classes below.
"""

import inspect
from collections.abc import Mapping
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from visattn.blocks.registry import is_known
from visattn.models.backbones.timm_classifier import TimmClassifier
from visattn.models.backbones.timm_encoder import TimmEncoder
from visattn.models.captioner import Captioner
from visattn.models.captioning.show_attend_tell import ShowAttendTell
from visattn.models.classifier import ImageClassifier
from visattn.models.encoder import ImageEncoder, SmallEncoder
from visattn.models.ram.ram import RecurrentAttentionModel
from visattn.models.resnet.attention_resnet import AttentionResNet
from visattn.models.serialization.meta_shapes import check_forward, outline
from visattn.models.serialization.weight_files import Shapes
from visattn.models.swin.hierarchical import HierarchicalTransformer
from visattn.models.vit.vision_transformer import VisionTransformer

Description = dict[str, Any]

LARGEST_NUMBER = 2**20  # of anything a model is built with: no width, depth or size needs more

CLASSES: dict[str, type[nn.Module]] = {
    kind.__name__: kind
    for kind in (
        SmallEncoder,
        TimmEncoder,
        ShowAttendTell,
        AttentionResNet,
        TimmClassifier,
        RecurrentAttentionModel,
        VisionTransformer,
        HierarchicalTransformer,
    )
}


# What constructors raise when they get arguments of the wrong kind.
_MISFITS = (ArithmeticError, AssertionError, AttributeError, LookupError, RuntimeError, TypeError)


def describe(model: nn.Module) -> Description:
    """Return the class and the arguments of a model, as numbers, words, lists and dicts.

    Raises:
        ValueError: If the model is not one of `CLASSES`.

    Example:
        >>> describe(SmallEncoder((24, 24), channels=8))["arguments"]["channels"]
        8
    """
    kind = type(model)
    if CLASSES.get(kind.__name__) is not kind:
        raise ValueError(f"only {', '.join(CLASSES)} can be described, got {kind.__name__}")
    names = list(inspect.signature(kind.__init__).parameters)[1:]
    return {
        "class": kind.__name__,
        "arguments": {name: _plain(getattr(model, name)) for name in names},
    }


def build(description: Mapping[str, Any]) -> nn.Module:
    """Return a model built as described, with fresh weights; nothing is downloaded.

    Raises:
        ValueError: If the description is not one of ours.

    Example:
        >>> build(describe(SmallEncoder((24, 24), channels=8))).size
        (24, 24)
    """
    name, arguments = description.get("class"), description.get("arguments")
    if not isinstance(name, str) or name not in CLASSES or not isinstance(arguments, Mapping):
        raise ValueError(
            f"a description names one of {', '.join(CLASSES)} and its arguments, got {name!r}"
        )
    kind = CLASSES[name]
    known = set(list(inspect.signature(kind.__init__).parameters)[1:])
    if unknown := sorted(set(map(str, arguments)) - known):
        raise ValueError(f"{name} has no argument {', '.join(unknown)}; it takes {sorted(known)}")
    if arguments.get("pretrained") or arguments.get("weights"):
        raise ValueError("a description brings its own weights; it may not ask for others")
    _check_blocks(name, arguments)
    built = {key: _built(value) for key, value in cast("Mapping[str, Any]", arguments).items()}
    try:
        return kind(**built)
    except _MISFITS as error:
        raise ValueError(f"{name} cannot be built with these arguments: {error}") from error


def check_fit(description: Mapping[str, Any], shapes: Shapes, *, source: object) -> None:
    """Let a description pass whose model has weights of these shapes; nothing takes memory here.

    Args:
        description: What `describe` said of a model.
        shapes: Of all of its weights and buffers, by name.
        source: Where both come from; errors name it.

    Raises:
        ValueError: If the description is not one of ours, if what it describes is larger than
            the weights say, if they do not fit it, or if one image would take more memory than
            a model may need.

    Example:
        >>> hidden = {"class": "SmallEncoder", "arguments": {"channels": 10**12}}
        >>> check_fit(hidden, {}, source="m.safetensors")
        Traceback (most recent call last):
        ValueError: m.safetensors: no number that a model is built with may be above 1,048,576...
    """
    try:
        _check_numbers(description)
        make = partial(build, description)
        wanted = outline(make, weights=len(shapes), same=True)
        if wanted != shapes and outline(make, weights=len(shapes), same=False) == shapes:
            wanted = shapes
        if wanted == shapes:
            check_forward(make, _one_pass)
    except (RecursionError, ValueError) as error:
        raise ValueError(f"{source}: {error}") from error
    if wanted != shapes:
        names = [name for name in {**wanted, **shapes} if wanted.get(name) != shapes.get(name)]
        raise ValueError(
            f"{source} is damaged: its weights do not fit the model it describes; {names[0]} is "
            f"{shapes.get(names[0], 'missing')} and should be {wanted.get(names[0], 'missing')}"
        )


def restore(
    description: Mapping[str, Any], weights: Mapping[str, Tensor], *, source: object
) -> nn.Module:
    """Return the described model with these weights, in evaluation mode.

    Args:
        description: What `describe` said of it.
        weights: All of its weights and buffers, by name.
        source: Where both come from; errors name it.

    Raises:
        ValueError: If the description is not one of ours, or the weights do not fit it.

    Example:
        >>> encoder = SmallEncoder((24, 24), channels=8)
        >>> restore(describe(encoder), encoder.state_dict(), source="memory").training
        False
    """
    check_fit(description, {k: tuple(v.shape) for k, v in weights.items()}, source=source)
    return filled(description, weights)


def filled(description: Mapping[str, Any], weights: Mapping[str, Tensor]) -> nn.Module:
    """Return the described model with weights that `check_fit` let pass, in evaluation mode.

    Raises:
        ValueError: If they do not fit after all.

    Example:
        >>> encoder = SmallEncoder((24, 24), channels=8)
        >>> filled(describe(encoder), encoder.state_dict()).grid
        (3, 3)
    """
    model = build(description)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"the weights do not fit the model that is described: {error}") from error
    return model.eval()


def _check_blocks(name: str, arguments: Mapping[Any, Any]) -> None:
    """Refuse blocks that this process does not know yet: a description imports nothing."""
    for block in (arguments.get("block"), arguments.get("first")):
        if isinstance(block, str) and not is_known(block):
            raise ValueError(
                f"the {name} was built with the block {block!r}, which is not in the catalog: "
                "import its class and call va.register(Class), under that name, before loading"
            )


def _one_pass(model: nn.Module) -> None:
    """Run a model on one image of the size that it is made for.

    Where a glimpse model looks depends on numbers; its constructor bounds what it takes.
    """
    if isinstance(model, RecurrentAttentionModel):
        return
    if isinstance(model, Captioner):
        size = model.encoder.size
        state = model.start(model.encoder(torch.zeros(1, 3, *size)))
        model.step(state, torch.zeros(1, 1, dtype=torch.long))
    elif isinstance(model, ImageClassifier):
        model.classify(torch.zeros(1, len(model.mean), *model.size))
    elif isinstance(model, ImageEncoder):
        model(torch.zeros(1, 3, *model.size))


def _check_numbers(value: Any) -> None:
    """Refuse numbers that nothing is built with, at any depth."""
    if isinstance(value, Mapping):
        for part in cast("Mapping[str, Any]", value).values():
            _check_numbers(part)
    elif isinstance(value, list | tuple):
        for part in cast("list[Any]", value):
            _check_numbers(part)
    elif isinstance(value, int | float) and not abs(value) <= LARGEST_NUMBER:
        raise ValueError(
            f"no number that a model is built with may be above {LARGEST_NUMBER:,}, got "
            f"{value!s:.20}"
        )


def _plain(value: object) -> Any:
    if isinstance(value, nn.Module):
        return describe(value)
    if isinstance(value, tuple | list):
        return [_plain(part) for part in cast("list[object]", value)]
    if isinstance(value, Mapping):
        return {str(key): _plain(part) for key, part in cast("Mapping[str, object]", value).items()}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"a description holds plain values only, got {type(value).__name__}")


def _built(value: Any) -> Any:
    """Undo `_plain`: a description becomes its model, a list the tuple that it was."""
    if isinstance(value, list):
        return tuple(map(_built, cast("list[Any]", value)))
    return build(value) if isinstance(value, Mapping) and "class" in value else value
