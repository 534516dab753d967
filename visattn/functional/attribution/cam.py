"""Class activation maps: Grad-CAM, Grad-CAM++ and LayerCAM.

Each function takes the activations of one layer and the gradient of a score with respect to them,
and returns a non-negative map on the grid of that layer, in float32 at least.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.functional.numerics import at_least_float32


def grad_cam(
    activations: Float[Tensor, "b c y x"], gradients: Float[Tensor, "b c y x"]
) -> Float[Tensor, "b y x"]:
    """Return the Grad-CAM map: ReLU of the channels weighted by their mean gradients.

    Args:
        activations: Activations of a layer.
        gradients: Gradients of a score with respect to the activations.

    Example:
        >>> activations = torch.tensor([[[[1.0, 0.0]], [[1.0, 2.0]]]])
        >>> gradients = torch.tensor([[[[3.0, 1.0]], [[-1.0, 0.0]]]])
        >>> grad_cam(activations, gradients)
        tensor([[[1.5000, 0.0000]]])

    Source:
        Selvaraju et al. 2017, arXiv:1610.02391, equations 1 and 2.
    """
    activations, gradients = at_least_float32(activations), at_least_float32(gradients)
    return _weighted_sum(activations, gradients.mean((2, 3)))


def grad_cam_plus_plus(
    activations: Float[Tensor, "b c y x"], gradients: Float[Tensor, "b c y x"]
) -> Float[Tensor, "b y x"]:
    """Return the Grad-CAM++ map, in which small regions count as much as large ones.

    With S the sum of a channel, a gradient g > 0 contributes g / (2 + S g) to its weight.

    Args:
        activations: Activations of a layer.
        gradients: Gradients of a score with respect to the activations.

    Example:
        >>> activations = torch.tensor([[[[1.0, 0.0]], [[1.0, 2.0]]]])
        >>> gradients = torch.tensor([[[[3.0, 1.0]], [[-1.0, 2.0]]]])
        >>> grad_cam_plus_plus(activations, gradients)  # weights 3/5 + 1/3 and 2/8
        tensor([[[1.1833, 0.5000]]])

    Source:
        Chattopadhyay et al. 2018, arXiv:1710.11063, equations 5 and 19. Deviation: no
        epsilon in the denominator; the sum of a channel is clamped to at least 0, which keeps the
        denominator positive.
    """
    activations, gradients = at_least_float32(activations), at_least_float32(gradients)
    sums, positive = activations.sum((2, 3), keepdim=True).relu(), gradients.relu()
    return _weighted_sum(activations, (positive / (2 + sums * positive)).sum((2, 3)))


def layer_cam(
    activations: Float[Tensor, "b c y x"], gradients: Float[Tensor, "b c y x"]
) -> Float[Tensor, "b y x"]:
    """Return the LayerCAM map: activations weighted elementwise by their positive gradients.

    Without a spatial mean the map is also useful on the fine grids of early layers.

    Args:
        activations: Activations of a layer.
        gradients: Gradients of a score with respect to the activations.

    Example:
        >>> activations = torch.tensor([[[[1.0, 0.0]], [[1.0, 2.0]]]])
        >>> gradients = torch.tensor([[[[3.0, 1.0]], [[-1.0, 2.0]]]])
        >>> layer_cam(activations, gradients)
        tensor([[[3., 4.]]])

    Source:
        Jiang et al. 2021, "LayerCAM: Exploring Hierarchical Class Activation Maps for
        Localization", equations 5 to 7.
    """
    activations, gradients = at_least_float32(activations), at_least_float32(gradients)
    return torch.einsum("bcyx,bcyx->byx", activations, gradients.relu()).relu()


def _weighted_sum(
    activations: Float[Tensor, "b c y x"], weights: Float[Tensor, "b c"]
) -> Float[Tensor, "b y x"]:
    return torch.einsum("bcyx,bc->byx", activations, weights).relu()
