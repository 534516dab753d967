"""Class activation maps: Grad-CAM and its relatives, and Eigen-CAM."""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.attribution.layer_outputs import intercept_layer, layer_activations
from visattn.attribution.pyramid import pyramid_map
from visattn.attribution.targets import Target, target_values
from visattn.functional.attribution.cam import (
    eigen_cam,
    grad_cam,
    grad_cam_plus_plus,
    hires_cam,
    layer_cam,
    x_grad_cam,
)
from visattn.recording.feature_layers import Layer, resolve_feature_layer, to_grid
from visattn.recording.frozen_model import frozen
from visattn.recording.model_info import ExplainedModel, FeatureLayer

CamFunction = Callable[[Tensor, Tensor], Tensor]


def gradcam(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layer: Layer = -1,
) -> Float[Tensor, "b gy gx"]:
    """Grad-CAM: channels of a layer weighted by their mean gradient, clipped at 0.

    Args:
        explained: The model.
        images: Normalized.
        target: Target to explain.
        layer: Index into `info.feature_layers`, a module or its name (see
            `resolve_feature_layer`).

    Raises:
        ValueError: If there is no such layer.

    Source:
        Selvaraju et al. 2017, arXiv:1610.02391.
    """
    return _class_activation_map(grad_cam, explained, images, target, layer)


def gradcam_plus_plus(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layer: Layer = -1,
) -> Float[Tensor, "b gy gx"]:
    """Grad-CAM++: as Grad-CAM, with pixel weights that favor small and multiple objects.

    Args:
        explained: The model.
        images: Normalized.
        target: Target to explain.
        layer: Index into `info.feature_layers`, a module or its name (see
            `resolve_feature_layer`).

    Raises:
        ValueError: If there is no such layer.

    Source:
        Chattopadhyay et al. 2018, arXiv:1710.11063.
    """
    return _class_activation_map(grad_cam_plus_plus, explained, images, target, layer)


def layercam(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layer: Layer = -1,
) -> Float[Tensor, "b gy gx"]:
    """LayerCAM: channels of a layer weighted at each position by their positive gradient.

    Args:
        explained: The model.
        images: Normalized.
        target: Target to explain.
        layer: Index into `info.feature_layers`, a module or its name (see
            `resolve_feature_layer`).

    Raises:
        ValueError: If there is no such layer.

    Source:
        Jiang et al. 2021, "LayerCAM".
    """
    return _class_activation_map(layer_cam, explained, images, target, layer)


def hirescam(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layer: Layer = -1,
    signed: bool = False,
) -> Float[Tensor, "b gy gx"]:
    """HiResCAM: activations of a layer times their gradients, clipped at 0.

    With a linear layer behind the features the signed map sums to the score without its bias.

    Args:
        explained: The model.
        images: Normalized.
        target: Target to explain.
        layer: Index into `info.feature_layers`, a module or its name (see
            `resolve_feature_layer`).
        signed: Keep negative values, evidence against the target.

    Raises:
        ValueError: If there is no such layer.

    Source:
        Draelos and Carin 2020, arXiv:2011.08891.
    """
    function = partial(hires_cam, signed=signed)
    return _class_activation_map(function, explained, images, target, layer)


def xgradcam(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layer: Layer = -1,
) -> Float[Tensor, "b gy gx"]:
    """XGrad-CAM: channels of a layer weighted by their gradient where they are active.

    Activations should not be negative, as after a ReLU: their sum is the divisor.

    Args:
        explained: The model.
        images: Normalized.
        target: Target to explain.
        layer: Index into `info.feature_layers`, a module or its name (see
            `resolve_feature_layer`).

    Raises:
        ValueError: If there is no such layer.

    Source:
        Fu et al. 2020, arXiv:2008.02312.
    """
    return _class_activation_map(x_grad_cam, explained, images, target, layer)


def eigencam(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    *,
    layer: Layer = -1,
) -> Float[Tensor, "b gy gx"]:
    """Eigen-CAM: first principal component of the activations of a layer, without a class.

    The sign is fixed: the map is positive where activations are strong.

    Args:
        explained: The model.
        images: Normalized.
        target: Only noted in the info of the map; the map does not depend on a class.
        layer: Index into `info.feature_layers`, a module or its name (see
            `resolve_feature_layer`).

    Raises:
        ValueError: If there is no such layer.

    Source:
        Muhammad and Yeasin 2020, arXiv:2008.00299.
    """
    feature_layer = resolve_feature_layer(explained, layer)
    activations, _ = layer_activations(explained, images, target, feature_layer)
    return eigen_cam(activations)


def activations_and_gradients(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    layer: FeatureLayer,
) -> tuple[Float[Tensor, "b d gy gx"], Float[Tensor, "b d gy gx"]]:
    """Return the activations of a layer, and the gradient of the target with respect to them.

    The backward pass stops at the layer, and parameters get no gradient. For a layer that is called
    several times the last call counts, or `layer.call`.

    Args:
        explained: The model.
        images: Normalized.
        target: Target to explain.
        layer: The layer.

    Raises:
        ValueError: If the layer does not run, or the target does not depend on it.

    Example:
        >>> from visattn.recording.model_info import ModelInfo
        >>> from torch import nn
        >>> model = nn.Sequential(nn.Conv2d(1, 2, 3, padding=1), nn.Flatten(), nn.Linear(12, 5))
        >>> layer = FeatureLayer("0", "b c y x", (2, 3))
        >>> info = ModelInfo(
        ...     "tiny", "other", (2, 3), (0.5,), (0.5,), "none", feature_layers=(layer,)
        ... )
        >>> activations, gradients = activations_and_gradients(
        ...     ExplainedModel(model, info, model),
        ...     torch.zeros(1, 1, 2, 3),
        ...     lambda scores: scores[:, 4],
        ...     layer,
        ... )
        >>> torch.equal(gradients.flatten(), model[2].weight[4])
        True
    """
    leaves: list[Tensor] = []

    def replace_by_leaf(output: Tensor) -> Tensor:
        """Start the graph here; the clone may be overwritten by in-place operations."""
        leaves.append(output.detach().requires_grad_())
        return leaves[-1].clone()

    with frozen(explained.model):
        with intercept_layer(explained, layer, replace_by_leaf):
            values = target_values(explained, images, target)
        leaf, gradients = leaves[-1], None
        if values.requires_grad:
            [gradients] = torch.autograd.grad(values.sum(), leaf, allow_unused=True)
        if gradients is None:
            raise ValueError(
                "the target must depend on the layer of a class activation map, but it does not "
                f"depend on {layer.site or 'the output'} of {explained.info.name}; choose another "
                "layer"
            )
    return to_grid(leaf.detach(), layer), to_grid(gradients, layer)


def _class_activation_map(
    cam_function: CamFunction,
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    layer: Layer,
) -> Float[Tensor, "b gy gx"]:
    feature_layer = resolve_feature_layer(explained, layer)
    if feature_layer.levels:
        return pyramid_map(cam_function, explained, images, target, feature_layer)
    return cam_function(*activations_and_gradients(explained, images, target, feature_layer))
