"""Where half precision will not do: sums over many places, products that no scale holds down."""

import math
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import conv2d, pad


def at_least_float32(x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    """Return the numbers in float32 if they are narrower, and as they are otherwise.

    Example:
        >>> at_least_float32(torch.zeros(2, dtype=torch.float16)).dtype
        torch.float32
    """
    return x.to(torch.promote_types(x.dtype, torch.float32))


def may_overwrite(*tensors: Tensor) -> bool:
    """Return whether an operation on tensors may write its result over them.

    It may not where a gradient needs them again, and not under `torch.jit.trace`, whose check wants
    the same operations with gradients and without.

    Example:
        >>> may_overwrite(torch.ones(1)), may_overwrite(torch.ones(1, requires_grad=True))
        (True, False)
    """
    tracing: bool = torch.jit.is_tracing()  # pyright: ignore[reportPrivateImportUsage]
    return not (tracing or any(x.requires_grad for x in tensors))


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which autocast does not narrow what was widened.

    Nothing is entered where autocast is off, so that an exported graph does not hold the context.

    Example:
        >>> one = torch.ones(1, 1)
        >>> with torch.autocast("cpu"), without_autocast(one.device):
        ...     (one @ one).dtype
        torch.float32
    """
    known = torch.amp.is_autocast_available(device.type)  # not for meta, where shapes are tried
    if known and torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def gauss_legendre(count: int) -> tuple[Float[Tensor, " n"], Float[Tensor, " n"]]:
    """Return places in [0, 1] and their weights, in float64.

    The weighted sum of a polynomial at these places is its integral from 0 to 1, up to the degree
    2 count - 1.

    Args:
        count: Of places, at least 1.

    Raises:
        ValueError: If there are fewer than 1.

    Example:
        >>> places, weights = gauss_legendre(2)
        >>> places, round(float((weights * places**3).sum()), 9)
        (tensor([0.2113, 0.7887], dtype=torch.float64), 0.25)

    Source:
        Golub and Welsch 1969, "Calculation of Gauss Quadrature Rules".
    """
    if count < 1:
        raise ValueError(f"an integral needs at least 1 place, got {count}")
    order = torch.arange(1, count, dtype=torch.float64)
    beside = order / (4 * order**2 - 1).sqrt()
    matrix = beside.diag(1) + beside.diag(-1)
    found = torch.linalg.eigh(matrix)  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    values, vectors = cast("tuple[Tensor, Tensor]", found)
    return (values + 1) / 2, vectors[0].square()


def gaussian_blur(images: Float[Tensor, "b c y x"], sigma: float) -> Float[Tensor, "b c y x"]:
    """Return images blurred by a Gaussian; beyond the rim the pixels at the rim go on.

    Args:
        images: Of any range, which the result does not leave.
        sigma: Its spread in pixels; the kernel ends after three of these.

    Raises:
        ValueError: If sigma is not above 0.

    Example:
        >>> edge = torch.tensor([0.0, 0.0, 0.0, 1.0, 1.0, 1.0]).expand(1, 1, 3, 6)
        >>> gaussian_blur(edge, 0.8)[0, 0, 1]
        tensor([4.4074e-04, 2.2351e-02, 2.5066e-01, 7.4934e-01, 9.7765e-01, 9.9956e-01])
    """
    if not sigma > 0:
        raise ValueError(f"sigma must be above 0 pixels, got {sigma}")
    reach = max(math.ceil(3 * sigma), 1)
    steps = torch.arange(-reach, reach + 1, device=images.device, dtype=torch.float64)
    kernel = (-0.5 * (steps / sigma).square()).exp()
    kernel = (kernel / kernel.sum()).to(images)
    rows = images.flatten(0, 1)[:, None]
    rows = conv2d(pad(rows, (reach, reach, 0, 0), mode="replicate"), kernel[None, None, None])
    columns = pad(rows, (0, 0, reach, reach), mode="replicate")
    return conv2d(columns, kernel[None, None, :, None]).view_as(images)
