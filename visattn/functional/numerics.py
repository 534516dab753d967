"""Numerics that keep sums, means and pools exact and finite."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import cast

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


def can_write_inplace(*tensors: Tensor) -> bool:
    """Return whether tensors may be modified in place.

    They may not if the backward pass needs them, nor under `torch.jit.trace`, whose check compares
    the operations with and without gradients.

    Example:
        >>> can_write_inplace(torch.ones(1)), can_write_inplace(torch.ones(1, requires_grad=True))
        (True, False)
    """
    tracing: bool = torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
    return not (tracing or any(x.requires_grad for x in tensors))


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


def gauss_legendre(num_points: int) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return points and weights of Gauss-Legendre quadrature on [0, 1], in float64.

    The quadrature is exact for polynomials up to degree 2 num_points - 1.

    Raises:
        ValueError: If the number of points is below 1.

    Example:
        >>> points, weights = gauss_legendre(2)
        >>> points, round(float((weights * points**3).sum()), 9)
        (tensor([0.2113, 0.7887], dtype=torch.float64), 0.25)

    Source:
        Golub and Welsch 1969, "Calculation of Gauss Quadrature Rules".
    """
    if num_points < 1:
        raise ValueError(f"num_points must be at least 1, got {num_points}")
    # Golub and Welsch: points are eigenvalues of the matrix of the recurrence of the Legendre
    # polynomials, weights the squared first entries of its eigenvectors.
    order = torch.arange(1, num_points, dtype=torch.float64)
    off_diagonal = order / (4 * order**2 - 1).sqrt()
    matrix = off_diagonal.diag(1) + off_diagonal.diag(-1)
    eigh = torch.linalg.eigh(matrix)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    values, vectors = cast("tuple[Tensor, Tensor]", eigh)
    return (values + 1) / 2, vectors[0].square()


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

    The variance is the biased one, so that a single position has variance 0. `eps`, added to the
    variance, keeps the gradient of constant channels finite.

    Example:
        >>> import torch
        >>> channel_stds(torch.tensor([[[[1.0, 2.0, 6.0]]]]), eps=0.0)
        tensor([[2.1602]])
    """
    exact = at_least_float32(x)
    # On a CPU a difference and a norm are ten times faster than torch.var.
    norms = channel_norms(exact - channel_means(exact)[:, :, None, None])
    return (norms.square() / (x.shape[2] * x.shape[3]) + eps).sqrt()
