"""Pooling statistics of features: mean, maximum, norm and standard deviation."""

import torch
from jaxtyping import Float
from torch import Tensor

from visattn.functional.numerics import at_least_float32, can_write_inplace


def fast_mean(x: Float[Tensor, "*axes"], dim: tuple[int, ...]) -> Float[Tensor, "*rest"]:
    """Return the mean over dimensions, with a cheap backward pass.

    Example:
        >>> import torch
        >>> fast_mean(torch.tensor([[1.0, 3.0], [5.0, 9.0]]), (1,))
        tensor([2., 7.])
    """
    if x.dtype in (torch.float16, torch.bfloat16):
        return x.mean(dim)  # the sum could overflow and would be rounded twice
    # The gradient of a sum is a view; that of torch.mean allocates a tensor of the size of x.
    count = 1
    for axis in dim:  # math.prod does not take symbolic sizes
        count = count * x.shape[axis]
    return x.sum(dim) / count


def fast_amax(x: Float[Tensor, "*axes"], dim: int) -> Float[Tensor, "*rest"]:
    """Return the maximum over a dimension; among ties one entry receives the gradient.

    Example:
        >>> import torch
        >>> fast_amax(torch.tensor([[1.0, 3.0], [9.0, 5.0]]), 1)
        tensor([3., 9.])
    """
    # amax is faster in the forward pass and much slower in the backward pass.
    return x.amax(dim) if can_write_inplace(x) else x.max(dim).values


def channel_means(x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c"]:
    """Return the spatial mean of each channel.

    Example:
        >>> import torch
        >>> channel_means(torch.tensor([[[[1.0, 3.0]]]]))
        tensor([[2.]])
    """
    return fast_mean(x, (2, 3))


def channel_norms(x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c"]:
    """Return the L2 norm of each channel over space, in float32 at least.

    The gradient of an all-zero channel is 0.

    Example:
        >>> import torch
        >>> channel_norms(torch.tensor([[[[3.0, 4.0]]]]))
        tensor([[5.]])
    """
    exact = at_least_float32(x)
    return torch.linalg.vector_norm(exact, dim=(2, 3))  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


def channel_stds(x: Float[Tensor, "b c y x"], *, eps: float = 1e-5) -> Float[Tensor, "b c"]:
    """Return the standard deviation of each channel over space, in float32 at least.

    The variance is the biased one, so that a single position has variance 0.

    Args:
        x: Features.
        eps: Added to the variance, which keeps the gradient of constant channels finite.

    Example:
        >>> import torch
        >>> channel_stds(torch.tensor([[[[1.0, 2.0, 6.0]]]]), eps=0.0)
        tensor([[2.1602]])
    """
    exact = at_least_float32(x)
    # On a CPU a difference and a norm are ten times faster than torch.var.
    norms = channel_norms(exact - channel_means(exact)[:, :, None, None])
    return (norms.square() / (x.shape[2] * x.shape[3]) + eps).sqrt()
