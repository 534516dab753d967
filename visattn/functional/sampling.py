"""Affine sampling (spatial transformer): sampled features, corners and coverage of the crop.

As in `torch.nn.functional.affine_grid`, theta `[[a, b, e], [c, d, f]]` maps output coordinates to
input coordinates, both from -1 to 1 over the grid, x before y. With `align_corners`, -1 and 1 are
the centers of the outermost pixels, else their outer edges.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import grid_sample

PaddingMode = Literal["zeros", "border", "reflection"]


def affine_sample(
    x: Float[Tensor, "b c y x"],
    theta: Float[Tensor, "b 2 3"],
    *,
    align_corners: bool = False,
    padding_mode: PaddingMode = "zeros",
) -> Float[Tensor, "b c y x"]:
    """Sample features bilinearly under an affine map; the size stays the same.

    Half precision is sampled in float32, since its coordinates are too coarse. The identity returns
    the features up to rounding: in float32 within 1.3e-7 of their range per pixel of the longer
    side.

    Args:
        x: Features.
        theta: Affine maps from output to input coordinates.
        align_corners: Whether -1 and 1 are the centers of the outermost pixels.
        padding_mode: Values outside the input, as in `grid_sample`.

    Example:
        >>> flipped = torch.tensor([[[-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
        >>> affine_sample(torch.tensor([[[[1.0, 2.0, 3.0]]]]), flipped)
        tensor([[[[3., 2., 1.]]]])

    Source:
        Jaderberg et al. 2015, arXiv:1506.02025, equations 1 and 5.
    """
    fine = torch.promote_types(x.dtype, torch.float32)
    a, b, e, c, d, f = theta.to(fine).flatten(1)[..., None, None].unbind(1)
    down, across = _coordinates((x.shape[2], x.shape[3]), align_corners, like=a)
    grid = torch.stack((a * across + b * down + e, c * across + d * down + f), -1)
    output = grid_sample(x.to(fine), grid, padding_mode=padding_mode, align_corners=align_corners)
    return output.to(x.dtype)


def affine_corners(
    theta: Float[Tensor, "b 2 3"], size: tuple[int, int], *, align_corners: bool = False
) -> Float[Tensor, "b 4 2"]:
    """Return the corners of the sampled region, in pixels of the input, x before y.

    They are the outer corners of the output: top left, top right, bottom right, bottom left. Pixel
    centers are at half integers, so that the input spans 0 to its width and height. Corners may be
    outside of it.

    Args:
        align_corners: Whether -1 and 1 are the centers of the outermost pixels.

    Example:
        >>> half = torch.tensor([[[0.5, 0.0, 0.0], [0.0, 0.5, 0.0]]])
        >>> affine_corners(half, (4, 8)).tolist()
        [[[2.0, 1.0], [6.0, 1.0], [6.0, 3.0], [2.0, 3.0]]]
    """
    height, width = size
    turns = theta.new_tensor([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    reach = theta.new_tensor([_reach(width, align_corners), _reach(height, align_corners)])
    ends = _transformed(turns * reach, theta)
    return (ends / reach + 1) / 2 * theta.new_tensor([width, height])


def affine_coverage(
    theta: Float[Tensor, "b 2 3"], size: tuple[int, int], *, align_corners: bool = False
) -> Float[Tensor, "b y x"]:
    """Return the fraction of each input pixel that is inside the sampled region.

    Pixels on the border of the region are exact if it is axis-aligned and approximate if it is
    rotated. A region without area covers nothing.

    Example:
        >>> half = torch.tensor([[[0.5, 0.0, 0.0], [0.0, 1.0, 0.0]]])
        >>> affine_coverage(half, (1, 6))
        tensor([[[0.0000, 0.5000, 1.0000, 1.0000, 0.5000, 0.0000]]])
    """
    reach = [_reach(count, align_corners) for count in size]
    down, across = _coordinates(size, align_corners, like=theta)
    a, b, e, c, d, f = theta.flatten(1)[..., None, None].unbind(1)
    # Theta maps the output to the input. A pixel is inside if the inverse maps it to within `reach`
    # of the center. The inverse of [[a, b], [c, d]] is [[d, -b], [-c, a]] / det; both sides are
    # multiplied by det, so that a region without area does not divide by 0.
    x = across - e
    y = down - f
    steps = tuple(2 * end / count for count, end in zip(size, reach, strict=True))
    area = (a * d - b * c).abs()
    return _overlap(d * x - b * y, area * reach[1], torch.hypot(d * steps[1], b * steps[0])) * (
        _overlap(a * y - c * x, area * reach[0], torch.hypot(c * steps[1], a * steps[0]))
    )


def pixel_centers(count: int, *, like: Float[Tensor, "*any"]) -> Float[Tensor, " n"]:
    """Return the centers of `count` pixels on an axis from -1 to 1, measured at the outer edges.

    Example:
        >>> pixel_centers(4, like=torch.zeros(1))
        tensor([-0.7500, -0.2500,  0.2500,  0.7500])
    """
    return (2 * torch.arange(count, dtype=like.dtype, device=like.device) + 1) / count - 1


def tent_pool(x: Float[Tensor, "b c y x"], *, num_cells: int = 4) -> Float[Tensor, "b c i j"]:
    """Pool each channel to a coarse grid with triangular (tent) weights.

    The weights decrease linearly to the centers of the neighboring cells and sum to 1. A cell
    without pixels in reach gives 0.

    Example:
        >>> tent_pool(torch.tensor([[[[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]]]), num_cells=2)[0, 0, 0]
        tensor([2.2500, 4.7500])
    """
    down, across = (_tents(x.shape[axis], num_cells, like=x) for axis in (2, 3))
    return torch.einsum("bcyx,yi,xj->bcij", x, down, across)


def _tents(count: int, cells: int, *, like: Float[Tensor, "*any"]) -> Float[Tensor, "n i"]:
    """Return the weight of each pixel of an axis for each cell."""
    middles = pixel_centers(cells, like=like)
    apart = (pixel_centers(count, like=like)[:, None] - middles).abs()
    tents = (1 - apart * cells / 2).clamp_min(0)
    return tents / tents.sum(0).clamp_min(torch.finfo(tents.dtype).tiny)


def _coordinates(
    size: tuple[int, int], align_corners: bool, *, like: Float[Tensor, "*any"]
) -> tuple[Float[Tensor, "y 1"], Float[Tensor, " x"]]:
    """Return the coordinates of rows and columns."""
    down, across = (pixel_centers(n, like=like) * _reach(n, align_corners) for n in size)
    return down[:, None], across


def _reach(count: int, align_corners: bool) -> float:
    """Return the coordinate of the outer edge of an axis."""
    # with aligned corners, -1 and 1 are the centers of the outer pixels, half a pixel from the edge
    return count / (count - 1) if align_corners and count > 1 else 1.0


def _overlap(
    center: Float[Tensor, "b y x"], reach: Float[Tensor, "b 1 1"], pixel: Float[Tensor, "b 1 1"]
) -> Float[Tensor, "b y x"]:
    """Return the fraction of a pixel around `center` between minus and plus `reach`."""
    pixel = pixel.clamp_min(torch.finfo(pixel.dtype).tiny)
    # in units of a pixel: the part of middle ± 1/2 within ± edge
    middle = center / pixel
    edge = reach / pixel
    shared = torch.minimum(middle + 0.5, edge) - torch.maximum(middle - 0.5, -edge)
    return shared.clamp(0, 1)


def _transformed(
    points: Float[Tensor, "n 2"], theta: Float[Tensor, "b 2 3"]
) -> Float[Tensor, "b n 2"]:
    return points @ theta[:, :, :2].mT + theta[:, None, :, 2]
