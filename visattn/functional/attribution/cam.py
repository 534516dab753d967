"""Class activation maps: activations of a layer, weighted by gradients, scores or components.

Each function takes the activations of one layer and, as the method needs them, gradients or scores,
and returns a non-negative map on the grid of that layer, in float32 at least.
"""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.functional.numerics import at_least_float32

_CANCELED = 1e-4  # of the products that were summed: what is left is rounding


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


def hires_cam(
    activations: Float[Tensor, "b c y x"],
    gradients: Float[Tensor, "b c y x"],
    *,
    signed: bool = False,
) -> Float[Tensor, "b y x"]:
    """Return the HiResCAM map: activations weighted elementwise by their gradients.

    If a linear layer follows, the signed map sums to the score without its bias. If a normalization
    over channels follows at once, the score does not depend on the size of a position, and its
    products cancel; the rounding that is left becomes zero.

    Args:
        activations: Activations of a layer.
        gradients: Gradients of a score with respect to the activations.
        signed: Keep negative values, evidence against the score, instead of clipping at 0.

    Example:
        >>> activations = torch.tensor([[[[1.0, 0.0]], [[1.0, 2.0]]]])
        >>> gradients = torch.tensor([[[[3.0, 1.0]], [[-1.0, -2.0]]]])
        >>> hires_cam(activations, gradients, signed=True)
        tensor([[[ 2., -4.]]])

    Source:
        Draelos and Carin 2020, arXiv:2011.08891; clipped at 0 unless `signed`.
    """
    smallest = max(_CANCELED, torch.finfo(activations.dtype).eps)
    activations, gradients = at_least_float32(activations), at_least_float32(gradients)
    result = torch.einsum("bcyx,bcyx->byx", activations, gradients)
    sizes = torch.einsum("bcyx,bcyx->byx", activations.abs(), gradients.abs())
    canceled = result.abs().amax((1, 2)) <= smallest * sizes.amax((1, 2))
    result = result.masked_fill(canceled[:, None, None], 0.0)
    return result if signed else result.relu()


def x_grad_cam(
    activations: Float[Tensor, "b c y x"], gradients: Float[Tensor, "b c y x"]
) -> Float[Tensor, "b y x"]:
    """Return the XGrad-CAM map: channels weighted by the mean gradient where they are active.

    The weight of a channel is the mean of its gradients, weighted by its activations; 0 if these
    sum to 0.

    Args:
        activations: Activations of a layer, such as those after a ReLU.
        gradients: Gradients of a score with respect to the activations.

    Example:
        >>> activations = torch.tensor([[[[1.0, 0.0]], [[1.0, 3.0]]]])
        >>> gradients = torch.tensor([[[[3.0, 1.0]], [[-1.0, 1.0]]]])
        >>> x_grad_cam(activations, gradients)  # weights 3/1 and 2/4
        tensor([[[3.5000, 1.5000]]])

    Source:
        Fu et al. 2020, arXiv:2008.02312. Deviation: no epsilon in the denominator.
    """
    activations, gradients = at_least_float32(activations), at_least_float32(gradients)
    sums = activations.sum((2, 3))
    weights = (activations * gradients).sum((2, 3)) / torch.where(sums == 0, 1.0, sums)
    return _weighted_sum(activations, torch.where(sums == 0, 0.0, weights))


def eigen_cam(activations: Float[Tensor, "b c y x"]) -> Float[Tensor, "b y x"]:
    """Return the Eigen-CAM map: activations projected on their first principal component.

    The sign of a principal component is arbitrary; here the map is positive where activations are
    strong: it does not correlate negatively with their squared norm. Negative values are clipped.

    Args:
        activations: Activations of a layer.

    Example:
        >>> activations = torch.tensor([[[[0.0, 0.0, 4.0]], [[0.0, 0.0, 3.0]]]])
        >>> eigen_cam(activations)  # the channels lie on a line: distances from the mean, 5/3
        tensor([[[0.0000, 0.0000, 3.3333]]])

    Source:
        Muhammad and Yeasin 2020, arXiv:2008.00299. Deviations: activations are
        centered, as principal components are; the sign is fixed.
    """
    flat = activations.flatten(2).double()
    centered = flat - flat.mean(2, keepdim=True)
    if centered.shape[1] < centered.shape[2]:
        _, direction = _largest_eigenvector(centered @ centered.mT)
        projection = torch.einsum("bcn,bc->bn", centered, direction)
    else:
        value, direction = _largest_eigenvector(centered.mT @ centered)
        projection = direction * value.clamp(min=0).sqrt()[:, None]
    energy = flat.square().sum(1)
    covariance = (projection * (energy - energy.mean(1, keepdim=True))).sum(1, keepdim=True)
    projection = torch.where(covariance < 0, -projection, projection).relu()
    dtype = at_least_float32(activations).dtype
    return projection.to(dtype).reshape(len(projection), *activations.shape[2:])


def score_cam(
    activations: Float[Tensor, "b c y x"], scores: Float[Tensor, "b c"]
) -> Float[Tensor, "b y x"]:
    """Return the Score-CAM map: channels weighted by the scores of the image seen through them.

    Args:
        activations: Activations of a layer.
        scores: Score of the image multiplied by each channel (see `channel_masks`).

    Example:
        >>> activations = torch.tensor([[[[4.0, 0.0]], [[0.0, 4.0]]]])
        >>> score_cam(activations, torch.tensor([[3.0, 1.0]]).log())  # weights 3/4 and 1/4
        tensor([[[3.0000, 1.0000]]])

    Source:
        Wang et al. 2020, arXiv:1910.01279, algorithm 1; the score of the baseline, equal for
        all channels, cancels in the softmax.
    """
    activations = at_least_float32(activations)
    return _weighted_sum(activations, scores.to(activations.dtype).softmax(1))


def ablation_cam(
    activations: Float[Tensor, "b c y x"],
    score: Float[Tensor, " b"],
    scores_without: Float[Tensor, "b c"],
) -> Float[Tensor, "b y x"]:
    """Return the Ablation-CAM map: channels weighted by the relative drop of a score without them.

    Args:
        activations: Activations of a layer.
        score: Score of the image.
        scores_without: Score with each channel set to 0.

    Example:
        >>> activations = torch.tensor([[[[4.0, 0.0]], [[0.0, 4.0]]]])
        >>> ablation_cam(activations, torch.tensor([2.0]), torch.tensor([[1.0, 1.5]]))
        tensor([[[2., 1.]]])

    Source:
        Desai and Ramaswamy 2020, "Ablation-CAM", WACV. Deviation: relative to the
        absolute value of the score, so that a negative score does not reverse the map.
    """
    activations = at_least_float32(activations)
    size = torch.where(score == 0, 1.0, score.abs())[:, None]
    weights = (score[:, None] - scores_without) / size
    return _weighted_sum(activations, weights.to(activations.dtype))


def channel_masks(resized: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
    """Return each channel as a mask of the image, normalized to [0, 1].

    Constant channels give masks of zeros.

    Args:
        resized: Activations of a layer, resized to the image.

    Example:
        >>> channel_masks(torch.tensor([[[[1.0, 1.5, 2.5, 3.0]]]]))
        tensor([[[[0.0000, 0.2500, 0.7500, 1.0000]]]])

    Source:
        Wang et al. 2020, arXiv:1910.01279, algorithm 1.
    """
    low, high = resized.amin((2, 3), keepdim=True), resized.amax((2, 3), keepdim=True)
    return (resized - low) / torch.where(high > low, high - low, 1.0)


def _largest_eigenvector(
    matrix: Float[Tensor, "b n n"],
) -> tuple[Float[Tensor, " b"], Float[Tensor, "b n"]]:
    eigh = torch.linalg.eigh(matrix)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    values, vectors = cast("tuple[Tensor, Tensor]", eigh)
    return values[:, -1], vectors[:, :, -1]


def _weighted_sum(
    activations: Float[Tensor, "b c y x"], weights: Float[Tensor, "b c"]
) -> Float[Tensor, "b y x"]:
    return torch.einsum("bcyx,bc->byx", activations, weights).relu()
