"""Preprocessing and layers of segmentation and detection models that are explained."""

from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torchvision.transforms import v2

from visattn.attribution.explained_model import describe_model
from visattn.images.resize import ResizeMode
from visattn.recording.bottleneck import bottleneck_layer
from visattn.recording.feature_layers import resizes_images
from visattn.recording.model_config import ClassNames, parse_image_size
from visattn.recording.model_info import ExplainedModel
from visattn.recording.operations import ModelOperations, model_operations

_OPERATIONS: WeakKeyDictionary[nn.Module, ModelOperations] = WeakKeyDictionary()


def whole_image_preprocessing(
    model: nn.Module, img_size: int | tuple[int, int] | None
) -> tuple[Any, ResizeMode | None]:
    """Return the transform, or the resize mode, that show a whole image to a dense model.

    Args:
        model: A detector that resizes images itself gets them as they are, others padded.
        img_size: Size of its input; None for any.

    Example:
        >>> whole_image_preprocessing(nn.Conv2d(3, 2, 1), None)
        (None, 'pad')
    """
    if img_size is None and resizes_images(model):
        return v2.Compose([v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]), None
    return None, "pad"


def describe_at_size(
    model: nn.Module | ExplainedModel,
    size: int | tuple[int, int] | None,
    class_names: ClassNames | None,
) -> ExplainedModel:
    """Return the metadata of a dense model for inputs of a size, without a run of it.

    Args:
        model: The model, or its metadata for any size.
        size: Height and width, or one number for both; None for that of its configuration.
        class_names: Of a model without names.

    Example:
        >>> describe_at_size(nn.Conv2d(3, 2, 1), (64, 32), None).info.input_size
        (64, 32)
    """
    if not isinstance(model, ExplainedModel):
        return describe_model(model, size, class_names)
    if size is None:
        return model
    return replace(model, info=replace(model.info, input_size=parse_image_size(size)))


def with_bottleneck(explained: ExplainedModel) -> ExplainedModel:
    """Return a dense model whose default layer is its bottleneck, if no layer is known.

    Args:
        explained: The model.

    Raises:
        ValueError: If there is no bottleneck.
    """
    if explained.info.feature_layers:
        return explained
    layers = (bottleneck_layer(explained),)
    return replace(explained, info=replace(explained.info, feature_layers=layers))


def with_operations(explained: ExplainedModel) -> ExplainedModel:
    """Return a dense model with the operations that it computes, by which methods are refused.

    Args:
        explained: The model, whose description ran nothing.
    """
    info = replace(explained.info, operations=_operations(explained))
    return replace(explained, info=info)


def _operations(explained: ExplainedModel) -> ModelOperations:
    model, info = explained.model, explained.info
    if model not in _OPERATIONS:
        operations = model_operations(model, explained.forward, info.input_size, len(info.mean))
        _OPERATIONS[model] = operations
    return _OPERATIONS[model]
