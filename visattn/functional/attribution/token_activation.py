"""Token activation maps: interference of earlier tokens is removed, and noise filtered."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from visattn.functional.numerics import at_least_float32

_NONE = 1e-8  # added to the sum of relevances, as in the code of the authors


def remove_interference(
    activations: Float[Tensor, "*t i"],
    context: Float[Tensor, "c i"],
    relevances: Float[Tensor, "*t c"],
) -> Float[Tensor, "*t i"]:
    """Return activations without what earlier tokens explain: estimated causal inference.

    The interference is the mean of the maps of the earlier tokens, weighted by how relevant each is
    for this one. It is subtracted with the scale that leaves the smallest squares.

    Args:
        activations: Non-negative activation of each image token for each explained token.
        context: Non-negative activations for each earlier token.
        relevances: Non-negative relevance of each earlier token; 0 leaves it out.

    Example:
        >>> activations = torch.tensor([[2.0, 1.0, 4.0]])
        >>> remove_interference(activations, torch.tensor([[2.0, 1.0, 0.0]]), torch.ones(1, 1))
        tensor([[0., 0., 4.]])

    Source:
        Li et al. 2025, arXiv:2506.23270, estimated causal inference (ECI).
    """
    weights = relevances / (relevances.sum(-1, keepdim=True) + _NONE)
    interference = weights @ context
    squares = interference.square().sum(-1, keepdim=True)
    scale = (activations * interference).sum(-1, keepdim=True) / squares.masked_fill(
        squares == 0, 1
    )
    return (activations - scale * interference).relu()


def rank_gaussian_filter(
    maps: Float[Tensor, "*t y x"], *, kernel_size: int = 3
) -> Float[Tensor, "*t y x"]:
    """Return maps in which each cell is a mean of its window that is weighted by rank.

    The values of a window are sorted; the weights are a Gaussian around the middle rank, whose
    width is the coefficient of variation of the window. Even windows keep their median, so that
    single outliers vanish.

    Args:
        maps: Non-negative maps.
        kernel_size: Side of the window, odd.

    Raises:
        ValueError: If the side is even or below 1.

    Example:
        >>> spike = torch.ones(3, 3)
        >>> spike[1, 1] = 2.0
        >>> rank_gaussian_filter(spike)[1, 1]
        tensor(1.)

    Source:
        Li et al. 2025, arXiv:2506.23270, rank Gaussian filter, with the coefficient of variation as
        in the code of the authors. A window of equal values keeps its value, which that code
        divides by 0.
    """
    if kernel_size < 1 or kernel_size % 2 == 0:
        raise ValueError(f"kernel_size must be odd and at least 1, got {kernel_size}")
    pad, shape = kernel_size // 2, maps.shape
    padded = at_least_float32(maps).reshape(1, -1, *shape[-2:])
    for axis, sides in ((-1, (pad, pad, 0, 0)), (-2, (0, 0, pad, pad))):
        mode = "reflect" if padded.shape[axis] > pad else "replicate"
        padded = F.pad(padded, sides, mode=mode)
    windows = padded.unfold(-2, kernel_size, 1).unfold(-2, kernel_size, 1).flatten(-2)
    ranked = windows.sort(-1).values
    mean = ranked.mean(-1, keepdim=True)
    width = ranked.std(-1, correction=0, keepdim=True) / mean.clamp(min=1e-30)
    ranks = torch.arange(kernel_size**2, device=maps.device) - kernel_size**2 // 2
    # equal values have no width: the middle rank has all weight
    weights = torch.exp(-(ranks**2) / (2 * width.clamp(min=1e-6) ** 2))
    filtered = (weights * ranked).sum(-1) / weights.sum(-1)
    return filtered.masked_fill(mean[..., 0] <= 0, 0.0).reshape(shape)
