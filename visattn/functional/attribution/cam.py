"""Class activation maps: features of a layer, weighed by what a score makes of them.

Each function takes the activations of one layer and the gradient of a score with respect to them,
and gives a map that is nowhere negative, on the grid of that layer, at least in float32.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.functional.numerics import at_least_float32


def grad_cam(
    activations: Float[Tensor, "b c y x"], gradients: Float[Tensor, "b c y x"]
) -> Float[Tensor, "b y x"]:
    """Return the sum of the channels, each weighed by its mean gradient, where it is positive.

    Args:
        activations: Of a layer.
        gradients: Of a score, with respect to these.

    Example:
        >>> activations = torch.tensor([[[[1.0, 0.0]], [[1.0, 2.0]]]])
        >>> gradients = torch.tensor([[[[3.0, 1.0]], [[-1.0, 0.0]]]])
        >>> grad_cam(activations, gradients)
        tensor([[[1.5000, 0.0000]]])

    Source:
        Selvaraju et al. 2017, arXiv:1610.02391, equations 1 and 2.
    """
    activations, gradients = at_least_float32(activations), at_least_float32(gradients)
    return _weighed(activations, gradients.mean((2, 3)))


def grad_cam_plus_plus(
    activations: Float[Tensor, "b c y x"], gradients: Float[Tensor, "b c y x"]
) -> Float[Tensor, "b y x"]:
    """Return the channels weighed by rising gradients, each the less, the larger the channel is.

    With S the sum of a channel, a gradient g > 0 counts g / (2 + S g) in its weight: so small
    spots count as much as large ones.

    Args:
        activations: Of a layer.
        gradients: Of a score, with respect to these.

    Example:
        >>> activations = torch.tensor([[[[1.0, 0.0]], [[1.0, 2.0]]]])
        >>> gradients = torch.tensor([[[[3.0, 1.0]], [[-1.0, 2.0]]]])
        >>> grad_cam_plus_plus(activations, gradients)  # weights 3/5 + 1/3 and 2/8
        tensor([[[1.1833, 0.5000]]])

    Source:
        Chattopadhyay et al. 2018, arXiv:1710.11063, equations 5 and 19. Deviation: nothing is
        added to the divisor; a channel whose sum is negative, as it cannot be behind a ReLU,
        counts as one of sum 0, for which the divisor stays positive.
    """
    activations, gradients = at_least_float32(activations), at_least_float32(gradients)
    sums, rising = activations.sum((2, 3), keepdim=True).relu(), gradients.relu()
    return _weighed(activations, (rising / (2 + sums * rising)).sum((2, 3)))


def layer_cam(
    activations: Float[Tensor, "b c y x"], gradients: Float[Tensor, "b c y x"]
) -> Float[Tensor, "b y x"]:
    """Return the sum of the channels, each place weighed by its own gradient if that is positive.

    As no mean is taken over places, it also says something on the fine grids of early layers.

    Args:
        activations: Of a layer.
        gradients: Of a score, with respect to these.

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


def _weighed(
    activations: Float[Tensor, "b c y x"], weights: Float[Tensor, "b c"]
) -> Float[Tensor, "b y x"]:
    return torch.einsum("bcyx,bc->byx", activations, weights).relu()
