"""Linear imputation of removed pixels from their neighbors (ROAD)."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import avg_pool2d, interpolate, max_pool2d

from visattn.functional.numerics import at_least_float32, without_autocast


def linear_imputation(
    images: Float[Tensor, "b c y x"],
    known: Bool[Tensor, "b y x"],
    *,
    tolerance: float = 1e-5,
) -> Float[Tensor, "b c y x"]:
    """Return images whose unknown pixels are the weighted mean of their eight neighbors.

    Horizontal and vertical neighbors have a weight of 1/6, diagonal neighbors of 1/12. Unknown
    neighbors count too: one linear system is solved for all unknown pixels. At the border of the
    image, the weights of the existing neighbors are normalized to a sum of 1. The computation is
    batched, and known pixels are returned bit for bit.

    Args:
        images: Images; the values of unknown pixels are ignored.
        known: Mask that is True for the pixels that are kept.
        tolerance: Largest residual, relative to the largest absolute right-hand side.

    Raises:
        ValueError: If an image has no known pixel.

    Example:
        >>> ramp = torch.arange(5.0).expand(1, 1, 5, 5)
        >>> hole = torch.zeros(1, 5, 5, dtype=torch.bool)
        >>> hole[:, 1:4, 1:4] = True
        >>> linear_imputation(ramp.masked_fill(hole, 9.0), ~hole)[0, 0, 2]
        tensor([0.0000, 1.0000, 2.0000, 3.0000, 4.0000])

    Source:
        Rong et al. 2022, arXiv:2202.00449, section 4.1 (ROAD), without its noise, which the
        caller adds. Deviation: conjugate gradients for the whole batch, initialized with a pyramid
        of means and preconditioned by sums over coarser grids (Bramble, Pasciak and Xu 1990,
        "Parallel Multilevel Preconditioners"), instead of a sparse factorization per image.
    """
    if not bool(known.any(2).any(1).all()):
        raise ValueError("each image must have a known pixel from which the others can be imputed")
    if not len(images):
        return images.clone()
    size = 1 if images.device.type == "cpu" else max(1, len(images))  # one image fits into a cache
    with without_autocast(images.device):
        values, masks = at_least_float32(images), known[:, None]
        parts = (slice(first, first + size) for first in range(0, len(images), size))
        solution = torch.cat([_solve(values[part], masks[part], tolerance) for part in parts])
    return torch.where(known[:, None], images, solution.to(images))


def _solve(
    values: Float[Tensor, "b c y x"], mask: Bool[Tensor, "b 1 y x"], tolerance: float
) -> Float[Tensor, "b c y x"]:
    """Return the values of the unknown pixels, and 0 elsewhere."""
    total = _neighbor_sum(torch.ones_like(values[:1, :1]))
    known_values = values.masked_fill(~mask, 0.0)
    initial = _pyramid_mean(known_values, mask.to(values)).masked_fill(mask, 0.0)
    constants = _neighbor_sum(known_values)
    return _conjugate_gradients(constants, initial, ~mask, total, tolerance)


def _neighbor_sum(values: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
    """Return the weighted sum of the eight neighbors of each pixel, with zero padding.

    The weights are a third of a tent, without its peak. Sums of slices are several times as fast as
    depthwise convolutions on CPUs.
    """
    tent = values
    for axis in (2, 3):
        last, previous = tent.shape[axis] - 1, tent
        tent = previous.clone()
        tent.narrow(axis, 1, last).add_(previous.narrow(axis, 0, last), alpha=0.5)
        tent.narrow(axis, 0, last).add_(previous.narrow(axis, 1, last), alpha=0.5)
    return tent.sub_(values).div_(3)


def _tent_sums(values: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y2 x2"]:
    """Return the sums over tents around every second pixel, with zero padding."""
    for axis in (2, 3):
        even, odd = _even_odd(values, axis)
        values = even.clone()
        values.narrow(axis, 0, odd.shape[axis]).add_(odd, alpha=0.5)
        count = even.shape[axis] - 1
        values.narrow(axis, 1, count).add_(odd.narrow(axis, 0, count), alpha=0.5)
    return values


def _add_tents(
    values: Float[Tensor, "b c y x"], heights: Float[Tensor, "b c y2 x2"]
) -> Float[Tensor, "b c y x"]:
    """Return values plus tents around every second pixel, the transpose of `_tent_sums`."""
    for axis in (3, 2):
        size = list(heights.shape)
        size[axis] = values.shape[axis]
        spread = heights.new_empty(size)
        even, odd = _even_odd(spread, axis)
        even.copy_(heights)
        odd.copy_(heights.narrow(axis, 0, odd.shape[axis]))
        count = heights.shape[axis] - 1
        odd.narrow(axis, 0, count).add_(heights.narrow(axis, 1, count))
        odd.div_(2)
        heights = spread
    return heights.add_(values)


def _even_odd(values: Float[Tensor, "b c y x"], axis: int) -> tuple[Tensor, Tensor]:
    """Return views of every second row or column, from the first and from the second."""
    whole = (slice(None),) * axis
    return values[(*whole, slice(0, None, 2))], values[(*whole, slice(1, None, 2))]


def _conjugate_gradients(
    constants: Float[Tensor, "b c y x"],
    initial: Float[Tensor, "b c y x"],
    hole: Bool[Tensor, "b 1 y x"],
    total: Float[Tensor, "1 1 y x"],
    tolerance: float,
) -> Float[Tensor, "b c y x"]:
    """Return x with `total * x - neighbor_sum(x) = constants` in the hole and 0 outside.

    The matrix is a grid Laplacian: symmetric, and positive definite if any pixel is known.
    """
    grids, inside = [grid.to(initial) for grid in _coarse_grids(hole)], hole.to(initial)

    def matrix_product(x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        return (total * x - _neighbor_sum(x)) * inside

    def inner_product(a: Float[Tensor, "b c y x"], b: Float[Tensor, "b c y x"]) -> Tensor:
        return (a * b).sum((2, 3), keepdim=True)

    x = initial
    residual = constants * inside - matrix_product(x)
    max_residual = tolerance * float(constants.abs().amax()) if constants.numel() else 0.0
    direction = preconditioned = _precondition(residual, grids)
    norm = inner_product(residual, preconditioned)
    for iteration in range(int(hole.sum((1, 2, 3)).amax()) if hole.numel() else 0):
        if iteration % 4 == 0 and float(residual.abs().amax()) <= max_residual:
            break
        product = matrix_product(direction)
        curvature = inner_product(direction, product)
        step = torch.where(curvature > 0, norm / curvature.where(curvature > 0, 1.0), 0.0)
        x, residual = x.addcmul_(step, direction), residual.addcmul_(step, product, value=-1)
        preconditioned = _precondition(residual, grids)
        previous_norm, norm = norm, inner_product(residual, preconditioned)
        ratio = norm / previous_norm.where(previous_norm > 0, math.inf)
        direction = torch.addcmul(preconditioned, ratio, direction)
    return x


def _coarse_grids(hole: Bool[Tensor, "b 1 y x"]) -> list[Bool[Tensor, "b 1 _ _"]]:
    """Return, for increasingly coarse grids, a mask of the nodes whose tents lie in the hole."""
    grids: list[Tensor] = []
    known = (~hole).float()
    while max(known.shape[2:]) > 1 and not bool(known.all()):
        known = max_pool2d(known, 3, 2, 1)
        grids.append(known == 0)
    return grids


def _precondition(
    residual: Float[Tensor, "b c y x"], grids: Sequence[Float[Tensor, "b 1 _ _"]]
) -> Float[Tensor, "b c y x"]:
    """Return the residual plus its sums over tents of all sizes, interpolated to the pixel grid.

    In two dimensions the energy of a tent is nearly independent of its size, so all grids have the
    same weight.
    """
    levels = [residual]
    for inside in grids:
        levels.append(_tent_sums(levels[-1]) * inside)
    total = levels.pop()
    for level in reversed(levels):
        total = _add_tents(level, total)
    return total


def _pyramid_mean(
    values: Float[Tensor, "b c y x"], weight: Float[Tensor, "b 1 y x"]
) -> Float[Tensor, "b c y x"]:
    """Return the mean of the known pixels in the smallest pyramid cell around each pixel."""
    mean = values / weight.where(weight > 0, 1.0)
    size = (values.shape[2], values.shape[3])
    if bool((weight > 0).all()) or max(size) == 1:
        return mean
    kernel = (min(2, size[0]), min(2, size[1]))
    half_values, half_weight = (
        avg_pool2d(tensor, kernel, ceil_mode=True, count_include_pad=False)
        for tensor in (values, weight)
    )
    coarse_mean = _pyramid_mean(half_values, half_weight)
    upsampled = interpolate(coarse_mean, size, mode="bilinear", align_corners=False)
    return torch.where(weight > 0, mean, upsampled)
