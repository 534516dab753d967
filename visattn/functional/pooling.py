"""Means, maxima and norms over axes: right in half precision, cheap to differentiate."""

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.functional.numerics import at_least_float32, may_overwrite


def means(x: Float[Tensor, "*axes"], over: tuple[int, ...]) -> Float[Tensor, "*rest"]:
    """Return the means over some axes.

    Example:
        >>> import torch
        >>> means(torch.tensor([[1.0, 3.0], [5.0, 9.0]]), (1,))
        tensor([2., 7.])
    """
    if x.dtype in (torch.float16, torch.bfloat16):
        return x.mean(over)  # the sum need not fit, and would be rounded twice
    # The slope of a sum is a view; that of torch's mean writes out a tensor of the size of x.
    count = 1
    for axis in over:  # math.prod does not take the sizes of a graph that is made for any
        count = count * x.shape[axis]
    return x.sum(over) / count


def maxima(x: Float[Tensor, "*axes"], over: int) -> Float[Tensor, "*rest"]:
    """Return the maxima over an axis. Of several equal ones, one takes the gradient.

    Example:
        >>> import torch
        >>> maxima(torch.tensor([[1.0, 3.0], [9.0, 5.0]]), 1)
        tensor([3., 9.])
    """
    # amax is the faster way forwards, by far, and the slower one backwards, by farther.
    return x.amax(over) if may_overwrite(x) else x.max(over).values


def channel_means(x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c"]:
    """Return the mean of each channel, over its places.

    Example:
        >>> import torch
        >>> channel_means(torch.tensor([[[[1.0, 3.0]]]]))
        tensor([[2.]])
    """
    return means(x, (2, 3))


def channel_norms(x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c"]:
    """Return the Euclidean norm of each channel over its places, at least in float32.

    Its gradient where all places are 0 is 0.

    Example:
        >>> import torch
        >>> channel_norms(torch.tensor([[[[3.0, 4.0]]]]))
        tensor([[5.]])
    """
    exact = at_least_float32(x)
    return torch.linalg.vector_norm(exact, dim=(2, 3))  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def channel_deviations(
    x: Float[Tensor, "b c y x"], *, epsilon: float = 1e-5
) -> Float[Tensor, "b c"]:
    """Return the standard deviation of each channel over its places, at least in float32.

    It is that of the places at hand, not an estimate from them, so that a single place has one too:
    0, or rather the root of epsilon, which is added to the variance.

    Args:
        x: Features.
        epsilon: What keeps the slope finite where all places are equal.

    Example:
        >>> import torch
        >>> channel_deviations(torch.tensor([[[[1.0, 2.0, 6.0]]]]), epsilon=0.0)
        tensor([[2.1602]])
    """
    exact = at_least_float32(x)
    # torch.var takes one number at a time on a CPU; a difference and a norm are ten times faster.
    norms = channel_norms(exact - channel_means(exact)[:, :, None, None])
    return (norms.square() / (x.shape[2] * x.shape[3]) + epsilon).sqrt()
