"""Pixels that were taken away, made up from those around them."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, interpolate, max_pool2d, pad

from visattn.functional.numerics import at_least_float32, without_autocast

_WEIGHTS = ((1 / 12, 1 / 6, 1 / 12), (1 / 6, 0.0, 1 / 6), (1 / 12, 1 / 6, 1 / 12))
_TENT = ((0.25, 0.5, 0.25), (0.5, 1.0, 0.5), (0.25, 0.5, 0.25))


def linear_imputation(
    images: Float[Tensor, "b c y x"],
    known: Bool[Tensor, "b y x"],
    *,
    tolerance: float = 1e-5,
) -> Float[Tensor, "b c y x"]:
    """Return images whose unknown pixels are the weighted mean of the eight around them.

    Neighbors count 1/6 beside and 1/12 across a corner, unknown ones too: all unknown pixels are
    solved for at once, so that a hole continues what surrounds it. At the rim of the image the
    weights of the neighbors that are there are scaled up. Fully batched; known pixels come back
    to the bit.

    Args:
        images: What stands in unknown pixels has no influence.
        known: True where a pixel is to stay.
        tolerance: Of the residual, against the largest value at the start.

    Raises:
        ValueError: If an image has no known pixel.

    Example:
        >>> ramp = torch.arange(5.0).expand(1, 1, 5, 5)
        >>> hole = torch.zeros(1, 5, 5, dtype=torch.bool)
        >>> hole[:, 1:4, 1:4] = True
        >>> linear_imputation(ramp.masked_fill(hole, 9.0), ~hole)[0, 0, 2]
        tensor([0.0000, 1.0000, 2.0000, 3.0000, 4.0000])

    Source:
        Rong et al. 2022, arXiv:2202.00449, section 4.1 (ROAD), without its noise, which is the
        caller's. Deviation: conjugate gradients for the whole batch, begun from a pyramid of
        means and preconditioned by sums over coarser grids (Bramble, Pasciak and Xu 1990,
        "Parallel Multilevel Preconditioners"), instead of a sparse factorisation per image.
    """
    if not bool(known.any(2).any(1).all()):
        raise ValueError("each image must have a known pixel from which others can be made up")
    values, kept = at_least_float32(images), known[:, None]
    weights = values.new_tensor(_WEIGHTS)[None, None]
    with without_autocast(images.device):
        total = _around(torch.ones_like(values[:1, :1]), weights)
        given = values.masked_fill(~kept, 0.0)
        start = torch.where(kept, values, _pyramid(given, kept.to(values))).masked_fill(kept, 0.0)
        solved = _solved(_around(given, weights), start, ~kept, (weights, total), tolerance)
    return torch.where(kept, images, solved.to(images))


def _around(
    values: Float[Tensor, "b c y x"], weights: Float[Tensor, "1 1 3 3"]
) -> Float[Tensor, "b c y x"]:
    """Return the weighted sum of the eight neighbors of each pixel; beyond the rim there is 0."""
    return _by_plane(values, weights, 1)


def _by_plane(
    values: Float[Tensor, "b c y x"], kernel: Float[Tensor, "1 1 3 3"], stride: int
) -> Float[Tensor, "b c y2 x2"]:
    """Return the convolution of each channel of each image with the same kernel."""
    planes = values.flatten(0, 1)[None]
    each = kernel.expand(planes.shape[1], -1, -1, -1)
    made = conv2d(planes, each, stride=stride, padding=1, groups=planes.shape[1])
    return made.view(*values.shape[:2], *made.shape[2:])


def _solved(
    wanted: Float[Tensor, "b c y x"],
    start: Float[Tensor, "b c y x"],
    hole: Bool[Tensor, "b 1 y x"],
    system: tuple[Float[Tensor, "1 1 3 3"], Float[Tensor, "1 1 y x"]],
    tolerance: float,
) -> Float[Tensor, "b c y x"]:
    """Return x with `total * x - around(x) = wanted` in the hole and 0 outside, by conjugate steps.

    The system is the Laplacian of a grid: symmetric, and positive as soon as a pixel is known.
    """
    weights, total = system
    grids, inside = [one.to(start) for one in _coarser(hole)], hole.to(start)

    def applied(x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c y x"]:
        return (total * x - _around(x, weights)) * inside

    def product(a: Float[Tensor, "b c y x"], b: Float[Tensor, "b c y x"]) -> Tensor:
        return (a * b).sum((2, 3), keepdim=True)

    x = start
    rest = wanted * inside - applied(x)
    goal = tolerance * float(wanted.abs().amax()) if wanted.numel() else 0.0
    step = spread = _spread(rest, grids)
    size = product(rest, spread)
    for number in range(int(hole.sum((1, 2, 3)).amax()) if hole.numel() else 0):
        if number % 4 == 0 and float(rest.abs().amax()) <= goal:
            break
        image = applied(step)
        slope = product(step, image)
        share = torch.where(slope > 0, size / slope.where(slope > 0, 1.0), 0.0)
        x, rest = x + share * step, rest - share * image
        spread = _spread(rest, grids)
        before, size = size, product(rest, spread)
        step = spread + size / before.where(before > 0, math.inf) * step
    return x


def _coarser(hole: Bool[Tensor, "b 1 y x"]) -> list[Bool[Tensor, "b 1 _ _"]]:
    """Return, for ever coarser grids, the nodes whose tents lie in the hole altogether."""
    grids: list[Tensor] = []
    known = (~hole).float()
    while max(known.shape[2:]) > 1 and not bool(known.all()):
        known = max_pool2d(known, 3, 2, 1)
        grids.append(known == 0)
    return grids


def _spread(
    rest: Float[Tensor, "b c y x"], grids: Sequence[Float[Tensor, "b 1 _ _"]]
) -> Float[Tensor, "b c y x"]:
    """Return what is left to solve, and its sums over tents of all sizes, brought back to pixels.

    In two dimensions a tent of any size has about the same energy, so all count alike.
    """
    tent = rest.new_tensor(_TENT)[None, None]
    parts = [rest]
    for inside in grids:
        parts.append(_by_plane(parts[-1], tent, 2) * inside)
    whole = parts.pop()
    for part in reversed(parts):
        rows, columns = part.shape[2:]
        even = pad(whole, (0, 1 - columns % 2, 0, 1 - rows % 2))  # a tent beyond the rim is 0
        size = (2 * even.shape[2] - 1, 2 * even.shape[3] - 1)
        fine = interpolate(even, size, mode="bilinear", align_corners=True)
        whole = part + fine[:, :, :rows, :columns]
    return whole


def _pyramid(
    values: Float[Tensor, "b c y x"], weight: Float[Tensor, "b 1 y x"]
) -> Float[Tensor, "b c y x"]:
    """Return for each pixel the mean of known ones near it, in the smallest square that has any."""
    own = values / weight.where(weight > 0, 1.0)
    size = (values.shape[2], values.shape[3])
    if bool((weight > 0).all()) or max(size) == 1:
        return own
    halves = [
        avg_pool2d(one, (min(2, size[0]), min(2, size[1])), ceil_mode=True, count_include_pad=False)
        for one in (values, weight)
    ]
    coarse = interpolate(_pyramid(halves[0], halves[1]), size, mode="bilinear", align_corners=False)
    return torch.where(weight > 0, own, coarse)
