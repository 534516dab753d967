"""Pixels, masks and boxes of a photo on the grids of a network, and back."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import avg_pool2d, grid_sample

from visattn.geometry.affine import Box, Geometry

MaskLike = Any
"""A tensor, array or nested list [y, x]; nonzero in the region."""
_SAMPLES = 16  # points along a side of a cell


def visible_point(x: float, y: float, geometry: Geometry) -> tuple[float, float]:
    """Return where the center of a pixel of the photo lies on the input, as shares of its sides.

    Raises:
        ValueError: If the network does not see the pixel.

    Example:
        >>> visible_point(2, 1, Geometry.identity((4, 8)).resized((2, 2)))
        (0.3125, 0.375)
    """
    center = torch.tensor([[[x + 0.5, y + 0.5]]], dtype=torch.float64)
    if not bool(_visible(center, geometry)):
        raise ValueError(_unseen(f"the pixel x={x:g}, y={y:g}", geometry))
    [[along, down]] = geometry.to_input(center[0]).tolist()
    return along / geometry.input_size[1], down / geometry.input_size[0]


def sample_at(
    maps: Float[Tensor, "b k gy gx"], points: Float[Tensor, "b 2"]
) -> Float[Tensor, "b k"]:
    """Return values of maps at one point (x, y) each, interpolated between cell centers.

    Args:
        points: Shares of width and height of the input.

    Example:
        >>> sample_at(torch.tensor([[[[0.0, 1.0]]]]), torch.tensor([[0.5, 0.5]]))
        tensor([[0.5000]])
    """
    grid = (2 * points - 1)[:, None, None]
    sampled = grid_sample(maps, grid, padding_mode="border", align_corners=False)
    return sampled[:, :, 0, 0]


def mask_on_grid(
    mask: MaskLike, geometry: Geometry, grid: tuple[int, int]
) -> Bool[Tensor, "gy gx"]:
    """Return the cells of a grid that lie at least half in a region of the photo.

    If there are none, those that lie in it at all.

    Args:
        mask: One value per pixel of the photo, nonzero in the region.

    Raises:
        ValueError: If the mask has not the size of the photo, or the network sees nothing of it.

    Example:
        >>> mask_on_grid([[0, 1, 1, 1]], Geometry.identity((1, 4)), (1, 2))
        tensor([[True, True]])
    """
    values = torch.as_tensor(mask) != 0
    if tuple(values.shape) != geometry.image_size:
        raise ValueError(
            f"the mask must have one value per pixel of the photo, {geometry.image_size} (height, "
            f"width), got shape {tuple(values.shape)}"
        )
    y, x = (
        (torch.arange(cells * _SAMPLES, dtype=torch.float64) + 0.5) * (side / cells / _SAMPLES)
        for cells, side in zip(grid, geometry.input_size, strict=True)
    )
    points = torch.stack(torch.meshgrid(x, y, indexing="xy"), -1)
    points = geometry.to_image(points.view(-1, 2)).view(points.shape)
    height, width = geometry.image_size
    columns, rows = points.floor().long().unbind(-1)
    inside = values[rows.clamp(0, height - 1), columns.clamp(0, width - 1)]
    inside = (inside & _visible(points, geometry)).double()
    share = avg_pool2d(inside[None], _SAMPLES)[0]
    cells = (share >= 0.5) | ((share > 0) & (share.max() < 0.5))
    if not bool(cells.any()):
        raise ValueError(_unseen("any pixel of the mask", geometry))
    return cells


def _visible(points: Float[Tensor, "gy gx 2"], geometry: Geometry) -> Bool[Tensor, "gy gx"]:
    left, top, right, bottom = geometry.region
    x, y = points.unbind(-1)
    return (x >= left) & (x <= right) & (y >= top) & (y <= bottom)


def boxes_to_image(boxes: Float[Tensor, "n 4"], geometry: Geometry) -> Float[Tensor, "n 4"]:
    """Return boxes of the input as boxes on the photo; differentiable.

    Example:
        >>> flipped = Geometry.identity((10, 20)).resized((5, 10)).flipped()
        >>> boxes_to_image(torch.tensor([[0.0, 0.0, 2.0, 5.0]]), flipped)
        tensor([[16.,  0., 20., 10.]])
    """
    corners = geometry.to_image(boxes.reshape(-1, 2)).view(-1, 2, 2)
    return torch.cat((corners.amin(1), corners.amax(1)), 1)


def check_box(box: Sequence[float], geometry: Geometry) -> Box:
    """Return a box, cut to what the network sees.

    Raises:
        ValueError: If it is empty, or the network does not see it.

    Example:
        >>> check_box((2, 1, 9, 3), Geometry.identity((4, 6)))
        (2.0, 1.0, 6.0, 3.0)
    """
    region = geometry.region
    left, top = (max(float(box[side]), region[side]) for side in (0, 1))
    right, bottom = (min(float(box[side]), region[side]) for side in (2, 3))
    if left >= right or top >= bottom:
        raise ValueError(_unseen(f"the box {box_text(box)}, left, top, right, bottom", geometry))
    return left, top, right, bottom


def _unseen(what: str, geometry: Geometry) -> str:
    return (
        f"the network does not see {what}: it sees {box_text(geometry.region)} of the photo; use "
        "resize_mode='pad' or 'squash'"
    )


def box_text(box: Sequence[float]) -> str:
    """Return a box as text.

    Example:
        >>> box_text((1.0, 2.5, 30.04, 4))
        '(1, 2.5, 30, 4)'
    """
    return f"({', '.join(f'{round(float(side), 1):g}' for side in box)})"


def mask_to_runs(mask: Bool[Tensor, "y x"]) -> tuple[tuple[int, int], tuple[int, ...]]:
    """Return the shape of a mask, and the lengths of its runs by rows, outside first.

    Example:
        >>> mask_to_runs(torch.tensor([[False, True], [True, False]]))
        ((2, 2), (1, 2, 1))
    """
    values, counts = torch.unique_consecutive(mask.flatten().cpu(), return_counts=True)
    runs = counts.tolist()
    # The first run is outside, and empty if the first pixel is inside.
    return (mask.shape[0], mask.shape[1]), tuple([0, *runs] if bool(values[0]) else runs)


def mask_from_runs(grid: tuple[int, int], runs: Sequence[int]) -> Bool[Tensor, "y x"]:
    """Return the mask of `mask_to_runs`.

    Example:
        >>> mask_from_runs((2, 2), (1, 2, 1))
        tensor([[False,  True],
                [ True, False]])
    """
    values = torch.arange(len(runs)) % 2 == 1
    return values.repeat_interleave(torch.tensor(runs)).view(*grid)
