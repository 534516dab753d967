"""Class activation maps over the levels of a feature pyramid."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import grid_sample

from visattn.attribution.targets import Target, target_values
from visattn.recording.frozen_model import frozen
from visattn.recording.internal_resize import internal_geometry
from visattn.recording.model_info import ExplainedModel, FeatureLayer

_NEAR = 0.9  # of a power of two: cells whose last row or column exceeds the canvas


def pyramid_map(
    cam_function: Callable[[Tensor, Tensor], Tensor],
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    layer: FeatureLayer,
) -> Float[Tensor, "b gy gx"]:
    """Return the sum of the class activation maps of all levels, on the grid of the finest.

    A detection is read from one level, which alone has a gradient.

    Args:
        cam_function: From activations and gradients to maps.
        explained: The model.
        images: Normalized.
        target: Target to explain.
        layer: Module that returns the levels.

    Raises:
        ValueError: If the target depends on no level.
    """
    levels = pyramid_activations_and_gradients(explained, images, target, layer)
    size = (images.shape[2], images.shape[3])
    canvas = internal_geometry(explained.model, size).input_size
    maps = [resample_level(cam_function(*level), layer.grid, canvas) for level in levels]
    return torch.stack(maps).sum(0)


def pyramid_activations_and_gradients(
    explained: ExplainedModel,
    images: Float[Tensor, "b c y x"],
    target: Target,
    layer: FeatureLayer,
) -> list[tuple[Float[Tensor, "b d gy gx"], Float[Tensor, "b d gy gx"]]]:
    """Return activations and gradients of the levels that the target depends on.

    Args:
        explained: The model.
        images: Normalized.
        target: Target to explain.
        layer: Module that returns the levels.

    Raises:
        ValueError: If the target depends on no level.
    """
    leaves: list[Tensor] = []

    def replace_by_leaves(_: nn.Module, __: Any, output: Any) -> Any:
        leaves[:] = [output[key].detach().requires_grad_() for key in layer.levels]
        copied = type(output)(output)
        for key, leaf in zip(layer.levels, leaves, strict=True):
            copied[key] = leaf.clone()
        return copied

    with frozen(explained.model):
        module = explained.model.get_submodule(layer.site)
        handle = module.register_forward_hook(replace_by_leaves)
        try:
            values = target_values(explained, images, target)
        finally:
            handle.remove()
        gradients: tuple[Tensor | None, ...] = (None,) * len(leaves)
        if values.requires_grad:
            gradients = torch.autograd.grad(values.sum(), leaves, allow_unused=True)
    pairs = zip(leaves, gradients, strict=True)
    levels = [(leaf.detach(), gradient) for leaf, gradient in pairs if gradient is not None]
    if not levels:
        raise ValueError(
            "the target must depend on the layer of a class activation map, but it does not "
            f"depend on {layer.site} of {explained.info.name}; choose another layer"
        )
    return levels


def resample_level(
    values: Float[Tensor, "b y x"], grid: tuple[int, int], canvas: tuple[int, int]
) -> Float[Tensor, "b gy gx"]:
    """Return a map of one level on the grid of another, both of which cover a canvas.

    If the sides of the canvas are no multiple of the stride, the last cells of a level exceed it.

    Args:
        values: Map of a level.
        grid: Rows and columns of the result.
        canvas: Height and width in pixels.

    Example:
        >>> resample_level(torch.tensor([[[0.0, 1.0]]]), (1, 4), (8, 16))
        tensor([[[0.0000, 0.2500, 0.7500, 1.0000]]])
    """
    axes: list[Tensor] = []
    for count, length, side in zip(values.shape[1:], grid, canvas, strict=True):
        stride = 2.0 ** torch.tensor(side / count).log2().ceil().item()
        extent = count * stride if side / count >= _NEAR * stride else float(side)
        centers = (torch.arange(length, dtype=torch.float64) + 0.5) * (side / length)
        axes.append((2 * centers / extent - 1).to(values))
    points = torch.stack(torch.meshgrid(axes[1], axes[0], indexing="xy"), -1)
    points = points.expand(len(values), -1, -1, -1)
    sampled = grid_sample(values[:, None], points, padding_mode="border", align_corners=False)
    return sampled[:, 0]
