"""Sampling under an affine map: a view of the features, and where it lies on them.

A pose is the map `[[a, b, e], [c, d, f]]` from places of the output to places of the input, both
in coordinates that run from -1 to 1 over the grid, x before y. `align_corners` says whether the
ends are the centers of the outermost pixels (True) or their outer edges (False), for both alike.
"""

from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import grid_sample

Padding = Literal["zeros", "border", "reflection"]


def affine_sampled(
    x: Float[Tensor, "b c y x"],
    pose: Float[Tensor, "b 2 3"],
    *,
    align_corners: bool = False,
    padding: Padding = "zeros",
) -> Float[Tensor, "b c y x"]:
    """Return the view of the features under the pose, bilinear, of the same size.

    Half precision is sampled in float32, for its steps are wider than a pixel is fine. Under the
    identity the features come back up to rounding, in float32 within 1.3e-7 of their contrast for
    each place along the longer side.

    Args:
        x: Features.
        pose: From places of the output to places of the input.
        align_corners: What the ends -1 and 1 are.
        padding: What is seen beyond the edge.

    Example:
        >>> flipped = torch.tensor([[[-1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]])
        >>> affine_sampled(torch.tensor([[[[1.0, 2.0, 3.0]]]]), flipped)
        tensor([[[[3., 2., 1.]]]])

    Source:
        Jaderberg et al. 2015, arXiv:1506.02025, equations 1 and 5.
    """
    fine = torch.promote_types(x.dtype, torch.float32)
    a, b, e, c, d, f = pose.to(fine).flatten(1)[..., None, None].unbind(1)
    down, across = _places((x.shape[2], x.shape[3]), align_corners, like=a)
    grid = torch.stack((a * across + b * down + e, c * across + d * down + f), -1)
    seen = grid_sample(x.to(fine), grid, padding_mode=padding, align_corners=align_corners)
    return seen.to(x.dtype)


def sampled_corners(
    pose: Float[Tensor, "b 2 3"], size: tuple[int, int], *, align_corners: bool = False
) -> Float[Tensor, "b 4 2"]:
    """Return the corners of the region that the view shows, in pixels of the input, x before y.

    They are the outer corners of the output: top left, top right, bottom right, bottom left. Drawn
    as a closed line they frame the crop. Pixel centers lie at half integers, so that the whole
    input is 0 to its width and 0 to its height; a corner may lie outside.

    Args:
        pose: From places of the output to places of the input.
        size: Height and width of the input, in pixels.
        align_corners: What the ends -1 and 1 are.

    Example:
        >>> half = torch.tensor([[[0.5, 0.0, 0.0], [0.0, 0.5, 0.0]]])
        >>> sampled_corners(half, (4, 8)).tolist()
        [[[2.0, 1.0], [6.0, 1.0], [6.0, 3.0], [2.0, 3.0]]]
    """
    height, width = size
    turns = pose.new_tensor([[-1, -1], [1, -1], [1, 1], [-1, 1]])
    reach = pose.new_tensor([_reach(width, align_corners), _reach(height, align_corners)])
    ends = _transformed(turns * reach, pose)
    return (ends / reach + 1) / 2 * pose.new_tensor([width, height])


def sampled_region(
    pose: Float[Tensor, "b 2 3"], size: tuple[int, int], *, align_corners: bool = False
) -> Float[Tensor, "b y x"]:
    """Return how much of each pixel of the input the view shows, from 0 to 1.

    That is 1 within the frame and 0 outside; of a pixel on its edge it is the share within, exactly
    if the frame is upright and nearly if it is turned. A view without area shows nothing.

    Args:
        pose: From places of the output to places of the input.
        size: Height and width of the input, in pixels.
        align_corners: What the ends -1 and 1 are.

    Example:
        >>> half = torch.tensor([[[0.5, 0.0, 0.0], [0.0, 1.0, 0.0]]])
        >>> sampled_region(half, (1, 6))
        tensor([[[0.0000, 0.5000, 1.0000, 1.0000, 0.5000, 0.0000]]])
    """
    reach = [_reach(count, align_corners) for count in size]
    down, across = _places(size, align_corners, like=pose)
    a, b, e, c, d, f = pose.flatten(1)[..., None, None].unbind(1)
    x, y = across - e, down - f
    steps = tuple(2 * end / count for count, end in zip(size, reach, strict=True))
    area = (a * d - b * c).abs()
    return _overlap(d * x - b * y, area * reach[1], torch.hypot(d * steps[1], b * steps[0])) * (
        _overlap(a * y - c * x, area * reach[0], torch.hypot(c * steps[1], a * steps[0]))
    )


def pixel_centers(count: int, *, like: Float[Tensor, "*any"]) -> Float[Tensor, " n"]:
    """Return the centers of `count` pixels in a row that runs from -1 to 1, edge to edge.

    Example:
        >>> pixel_centers(4, like=torch.zeros(1))
        tensor([-0.7500, -0.2500,  0.2500,  0.7500])
    """
    return (2 * torch.arange(count, dtype=like.dtype, device=like.device) + 1) / count - 1


def coarse_pools(x: Float[Tensor, "b c y x"], *, cells: int = 4) -> Float[Tensor, "b c i j"]:
    """Return means of each channel around the middles of a coarse grid, whatever the fine one.

    The weights fall off in a straight line to the middles of the next cells, and sum to one. A
    middle without a place that near has 0.

    Args:
        x: Features.
        cells: Rows and columns of the coarse grid.

    Raises:
        ValueError: If there are no cells.

    Example:
        >>> coarse_pools(torch.tensor([[[[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]]]), cells=2)[0, 0, 0]
        tensor([2.2500, 4.7500])
    """
    if cells < 1:
        raise ValueError(f"cells must be at least 1, got {cells}")
    down, across = (_tents(x.shape[axis], cells, like=x) for axis in (2, 3))
    return torch.einsum("bcyx,yi,xj->bcij", x, down, across)


def _tents(count: int, cells: int, *, like: Float[Tensor, "*any"]) -> Float[Tensor, "n i"]:
    """Return the weight of each pixel of a row for the middle of each cell."""
    middles = pixel_centers(cells, like=like)
    apart = (pixel_centers(count, like=like)[:, None] - middles).abs()
    tents = (1 - apart * cells / 2).clamp_min(0)
    return tents / tents.sum(0).clamp_min(torch.finfo(tents.dtype).tiny)


def _places(
    size: tuple[int, int], align_corners: bool, *, like: Float[Tensor, "*any"]
) -> tuple[Float[Tensor, "y 1"], Float[Tensor, " x"]]:
    """Return the coordinates of rows and columns, between the ends -1 and 1."""
    down, across = (pixel_centers(n, like=like) * _reach(n, align_corners) for n in size)
    return down[:, None], across


def _reach(count: int, align_corners: bool) -> float:
    """Return where the outer edge of a row of pixels lies, in its own coordinates."""
    return count / (count - 1) if align_corners and count > 1 else 1.0


def _overlap(
    place: Float[Tensor, "b y x"], reach: Float[Tensor, "b 1 1"], pixel: Float[Tensor, "b 1 1"]
) -> Float[Tensor, "b y x"]:
    """Return the share of a pixel around `place` that lies between minus and plus `reach`."""
    pixel = pixel.clamp_min(torch.finfo(pixel.dtype).tiny)
    middle, edge = place / pixel, reach / pixel
    shared = torch.minimum(middle + 0.5, edge) - torch.maximum(middle - 0.5, -edge)
    return shared.clamp(0, 1)


def _transformed(
    places: Float[Tensor, "n 2"], pose: Float[Tensor, "b 2 3"]
) -> Float[Tensor, "b n 2"]:
    return places @ pose[:, :, :2].mT + pose[:, None, :, 2]
