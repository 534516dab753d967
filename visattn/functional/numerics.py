"""Numerical helpers: float32 accumulation, autocast control, quadrature, Gaussian blur."""

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

    Args:
        num_points: Number of points, at least 1.

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
    order = torch.arange(1, num_points, dtype=torch.float64)
    off_diagonal = order / (4 * order**2 - 1).sqrt()
    matrix = off_diagonal.diag(1) + off_diagonal.diag(-1)
    eigh = torch.linalg.eigh(matrix)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    values, vectors = cast("tuple[Tensor, Tensor]", eigh)
    return (values + 1) / 2, vectors[0].square()


def gaussian_blur(images: Float[Tensor, "b c y x"], sigma: float) -> Float[Tensor, "b c y x"]:
    """Blur images with a Gaussian; border pixels are replicated.

    Args:
        images: Images of any range.
        sigma: Standard deviation in pixels; the kernel is truncated at three of them.

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
