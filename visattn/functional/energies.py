"""How much each place stands out in its channel, measured without parameters."""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.functional.pools import channel_means
from visattn.functional.precisions import at_least_float32, may_overwrite


def energy_gate(
    x: Float[Tensor, "b c y x"], *, smoothing: float = 1e-4
) -> Float[Tensor, "b c y x"]:
    """Return the gate of each place in each channel, between s(1/2) = 0.6225 and 1.

    A place far from the mean of its channel is easily told from the others (its energy is low) and
    passes; one at the mean is damped most. A channel of one place has no variance: its gate is
    s(1/2). It is computed in float32 at least.

    Args:
        x: Features.
        smoothing: Added to the variance (the paper's lambda); the larger, the flatter the gate.

    Raises:
        ValueError: If the smoothing is not above 0.

    Example:
        >>> import torch
        >>> energy_gate(torch.tensor([[[[0.0, 0.0, 0.0, 4.0]]]]))
        tensor([[[[0.6370, 0.6370, 0.6370, 0.7432]]]])

    Source:
        Yang et al. 2021, "SimAM: A Simple, Parameter-Free Attention Module for Convolutional Neural
        Networks", equations 5 and 6; the variance is over one place less, as in the released code.
    """
    if not smoothing > 0:
        raise ValueError(f"smoothing must be above 0, got {smoothing}")
    exact = at_least_float32(x)
    centred = exact - channel_means(exact)[:, :, None, None]
    fresh = not may_overwrite(centred)
    # Every step is as large as x. Where no slope needs it again, the next one takes its memory.
    squares = centred.square() if fresh else centred.square_()
    factor = 0.25 / (squares.sum((2, 3), keepdim=True) / _degrees(x) + smoothing)
    if fresh:
        return (squares * factor + 0.5).sigmoid().to(x.dtype)
    return squares.mul_(factor).add_(0.5).sigmoid_().to(x.dtype)


def _degrees(x: Float[Tensor, "b c y x"]) -> int | Tensor:
    """Return the number of places less 1, but at least 1."""
    degrees: int | Tensor = x.shape[2] * x.shape[3] - 1  # a tensor under torch.jit.trace
    if isinstance(degrees, Tensor):
        return degrees.clamp_min(1)
    return cast("int", torch.sym_max(degrees, 1))
