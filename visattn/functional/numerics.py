"""Exact, finite and fast sums, means and pooling."""

import math
from contextlib import AbstractContextManager, nullcontext

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d, pad


def at_least_float32(x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """Convert half precision to float32 and leave wider dtypes unchanged.

    Example:
        >>> at_least_float32(torch.zeros(2, dtype=torch.float16)).dtype
        torch.float32
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context that disables autocast.

    If autocast is off, the context does nothing, so that exported graphs do not contain it.

    Example:
        >>> x = torch.ones(1, 1)
        >>> with torch.autocast("cpu"), without_autocast(x.device):
        ...     (x @ x).dtype
        torch.float32
    """
    known = torch.amp.is_autocast_available(device.type)  # not for the meta device
    if known and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def gaussian_blur(images: Float[Tensor, "b c y x"], sigma: float) -> Float[Tensor, "b c y x"]:
    """Blur images with a Gaussian; border pixels are replicated.

    `sigma` is in pixels; the kernel is truncated at three of them.

    Raises:
        ValueError: If sigma is not above 0.

    Example:
        >>> edge = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0]).expand(1, 1, 3, 6)
        >>> gaussian_blur(edge, 0.8)[0, 0, 1]
        tensor([4.4074e-04, 2.2351e-02, 2.5066e-01, 7.4934e-01, 9.7765e-01, 9.9956e-01])
    """
    if not sigma > 0:
        raise ValueError(f"sigma must be above 0 pixels, got {sigma}")
    radius = max(math.ceil(3 * sigma), 1)
    steps = torch.arange(-radius, radius + 1, device=images.device, dtype=torch.float64)
    kernel = (-0.5 * (steps / sigma).square()).exp()
    kernel = (kernel / kernel.sum()).to(images)
    rows = images.flatten(0, 1)[:, None]
    rows = conv2d(pad(rows, (radius, radius, 0, 0), mode="replicate"), kernel[None, None, None])
    columns = pad(rows, (0, 0, radius, radius), mode="replicate")
    return conv2d(columns, kernel[None, None, :, None]).view_as(images)


def fast_mean(x: Float[Tensor, "*axes"], dim: tuple[int, ...]) -> Float[Tensor, "*rest"]:
    """Return the mean over dimensions, with a cheap backward pass.

    Example:
        >>> fast_mean(torch.tensor([[1.0, 3.0], [5.0, 9.0]]), (1,))
        tensor([2., 7.])
    """
    if x.dtype in (torch.float16, torch.bfloat16):
        return x.mean(dim)  # the sum could overflow and would be rounded twice
    # The gradient of a sum is a view; that of torch.mean allocates a tensor of the size of x: with
    # it a training step of squeeze-and-excitation takes 1.3 to 1.5 times as long on a CPU.
    count = 1
    for axis in dim:  # math.prod does not take symbolic sizes
        count = count * x.shape[axis]
    return x.sum(dim) / count


def fast_amax(x: Float[Tensor, "*axes"], dim: int) -> Float[Tensor, "*rest"]:
    """Return the maximum over a dimension; among ties one entry receives the gradient.

    Example:
        >>> fast_amax(torch.tensor([[1.0, 3.0], [9.0, 5.0]]), 1)
        tensor([3., 9.])
    """
    # amax alone is 3 to 10 times as fast, but with its gradient a training step of CBAM takes 1.2
    # to 1.5 times as long on a CPU.
    return x.max(dim).values if x.requires_grad else x.amax(dim)


def channel_norms(x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c"]:
    """Return the L2 norm of each channel over space, in float32 at least.

    The gradient of an all-zero channel is 0.

    Example:
        >>> channel_norms(torch.tensor([[[[3.0, 4.0]]]]))
        tensor([[5.]])
    """
    exact = at_least_float32(x)
    return torch.linalg.vector_norm(exact, dim=(2, 3))  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
