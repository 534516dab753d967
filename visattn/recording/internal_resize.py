"""Detectors that resize and pad images inside: where their canvas lies on the input."""

from typing import Any, cast

import torch
from torch import Tensor, nn

from visattn.geometry.affine import Geometry
from visattn.recording.frozen_model import eval_mode


def internal_transform(model: nn.Module) -> Any:
    """Return the module of a torchvision detector that resizes and pads; None if there is none.

    Args:
        model: Any module.
    """
    name = "GeneralizedRCNNTransform"
    return next((each for each in model.modules() if type(each).__name__ == name), None)


def internal_geometry(model: nn.Module, size: tuple[int, int]) -> Geometry:
    """Return the geometry from the input of a model to the canvas that its layers see.

    It is measured: the resizing module of the model runs on a blank image.

    Args:
        model: Any module.
        size: Height and width of the input.

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
    weights = (weight for weight in model.parameters() if weight.is_floating_point())
    blank = next(weights, torch.zeros(())).new_zeros(len(transform.image_mean), *size)
    with torch.no_grad(), eval_mode(transform):
        images, _ = transform([blank])
    [resized] = images.image_sizes
    canvas = cast("Tensor", images.tensors).shape[-2:]
    return identity.resized(resized).padded(0, 0, (canvas[0], canvas[1]))
