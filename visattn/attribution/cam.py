"""Class activation maps: Grad-CAM, Grad-CAM++ and LayerCAM."""

from collections.abc import Callable, MutableMapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from visattn.attribution.pyramid import pyramid_map
from visattn.attribution.targets import Target, target_values
from visattn.functional.attribution.cam import grad_cam, grad_cam_plus_plus, layer_cam
from visattn.recording.feature_layers import (
    Layer,
    first_tensor,
    has_layout,
    resolve_feature_layer,
    to_grid,
)
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
    other_layouts: list[Tensor] = []
    calls = 0

    def replace_by_leaf(_: nn.Module, __: Any, output: Any) -> Any:
        """Start the graph here; the clone may be overwritten by in-place operations."""
        nonlocal calls
        calls += 1
        if layer.call not in (None, calls) or (first := first_tensor(output)) is None:
            return output
        if layer.call is None and not has_layout(first[1], layer):
            other_layouts.append(first[1])  # a call on another grid, as of a shared activation
            return output
        leaves.append(first[1].detach().requires_grad_())
        return _replace_part(output, first[0], leaves[-1].clone())

    title = f"{layer.site} of {explained.info.name}"
    with frozen(explained.model):
        module = explained.model.get_submodule(layer.site)
        handle = module.register_forward_hook(replace_by_leaf)
        try:
            values = target_values(explained, images, target)
        finally:
            handle.remove()
        if other_layouts and not leaves:
            to_grid(other_layouts[-1], layer)  # raises an error about the layout
        if not leaves:
            got = f"ran {calls} times" if calls else "did not run"
            raise ValueError(f"the layer must run, but {title} {got}; choose another layer")
        leaf = leaves[-1]
        gradients = None
        if values.requires_grad:
            [gradients] = torch.autograd.grad(values.sum(), leaf, allow_unused=True)
        if gradients is None:
            raise ValueError(
                "the target must depend on the layer of a class activation map, but it does not "
                f"depend on {title}; choose another layer"
            )
    return to_grid(leaf.detach(), layer), to_grid(gradients, layer)


def _replace_part(output: Any, key: Any, tensor: Tensor) -> Any:
    """Return the output of a module with another tensor at a key; None is the output itself."""
    if key is None:
        return tensor
    if isinstance(output, MutableMapping):
        output[key] = tensor
        return output
    parts = list(output)
    parts[key] = tensor
    output_type = type(output)
    return output_type(*parts) if hasattr(output, "_fields") else output_type(parts)


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
