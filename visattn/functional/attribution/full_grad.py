"""FullGrad: maps of contributions to a score."""

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.functional.numerics import at_least_float32


def contribution_map(contributions: Float[Tensor, "b c y x"]) -> Float[Tensor, "b y x"]:
    """Return contributions of a layer as a map: absolute, normalized, summed over channels.

    Each image is normalized to [0, 1] over all channels and positions; equal values give zeros.

    Args:
        contributions: Gradients times input, or gradients times biases.

    Example:
        >>> contribution_map(torch.tensor([[[[0.0, -1.0]], [[4.0, 2.0]]]]))
        tensor([[[1.0000, 0.7500]]])

    Source:
        Srinivas and Fleuret 2019, arXiv:1905.00780, section 4, the post-processing of FullGrad.
    """
    sizes = at_least_float32(contributions).abs()
    low, high = sizes.amin((1, 2, 3), keepdim=True), sizes.amax((1, 2, 3), keepdim=True)
    return ((sizes - low) / torch.where(high > low, high - low, 1.0)).sum(1)
