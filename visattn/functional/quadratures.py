"""Integrals as sums of a few well-chosen places."""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor


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
