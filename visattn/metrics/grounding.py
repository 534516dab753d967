"""Grounding metrics: attention correctness over boxes and masks, and the pointing game."""

from functools import lru_cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import interpolate

from visattn.functional.numerics import at_least_float32

PAPER_SIZE = 224  # image side in pixels for which attention correctness was defined


def box_coverage(
    boxes: Float[Tensor, "*b n 4"], grid: tuple[int, int]
) -> Float[Tensor, "*b gy gx"]:
    """Return the exact fraction of the area of each cell inside the union of the boxes.

    Args:
        boxes: Left, top, right, bottom as fractions of the network input, such as from
            `Geometry.boxes_to_input`; boxes are clipped to 0 and 1. Boxes of zeros cover nothing.
        grid: Number of rows and columns of cells.

    Example:
        >>> boxes = torch.tensor([[0.0, 0.0, 0.25, 1.0], [0.0, 0.0, 0.25, 1.0]])
        >>> box_coverage(boxes, (1, 2))
        tensor([[0.5000, 0.0000]])
    """
    rows, columns = grid
    # Overlaps of boxes count once, so areas cannot be summed box by box. The edges of all boxes and
    # cells divide the image into tiles that are entirely inside or outside of each box. Along one
    # axis, for a box from 0.25 to 0.6 and two cells:
    #
    #     edges    0      0.25      0.5      0.6      1
    #     tiles      0.25      0.25      0.1      0.4
    #     inside      no        yes      yes      no
    #     cell        0          0        1        1
    x0, y0, x1, y1 = boxes.double().clamp(0, 1).unbind(-1)
    x = _edges(x0, x1, columns)
    y = _edges(y0, y1, rows)
    center_x = (x[..., 1:] + x[..., :-1]) / 2
    center_y = (y[..., 1:] + y[..., :-1]) / 2
    inside_x = (x0[..., None] < center_x[..., None, :]) & (center_x[..., None, :] < x1[..., None])
    inside_y = (y0[..., None] < center_y[..., None, :]) & (center_y[..., None, :] < y1[..., None])
    covered = (inside_y.double().mT @ inside_x.double() > 0).double()
    heights = _tile_lengths(y, center_y, rows)
    widths = _tile_lengths(x, center_x, columns)
    return (heights @ covered @ widths.mT * (rows * columns)).clamp(0, 1).to(boxes)


def box_target(boxes: Float[Tensor, "n 4"], grid: tuple[int, int]) -> Float[Tensor, "gy gx"]:
    """Return target attention that is uniform over the union of boxes and 0 outside.

    The boxes are as for `box_coverage`.

    Raises:
        ValueError: If no box overlaps the image.

    Example:
        >>> box_target(torch.tensor([[0.25, 0.0, 1.0, 1.0]]), (1, 2))
        tensor([[0.3333, 0.6667]])

    Source:
        Liu et al. 2017, arXiv:1605.09553, strong supervision.
    """
    covered = box_coverage(boxes, grid)
    total = covered.sum()
    if total <= 0:
        raise ValueError(f"at least one box must overlap the image, got {boxes.tolist()}")
    return covered / total


def attention_correctness(
    weights: Float[Tensor, "*#b gy gx"], coverage: Float[Tensor, "*#b gy gx"]
) -> Float[Tensor, "*b"]:
    """Return the sum of the attention inside the region, between 0 and 1.

    Compare it with `uniform_baseline`: uniform attention over a large region also scores high.

    Args:
        weights: Attention over the cells, at least 0; each map sums to 1. Deviations of up to 1 %,
            from half precision, are normalized.
        coverage: Fraction of each cell inside the region.

    Raises:
        ValueError: If the weights of a map do not sum to 1.

    Example:
        >>> weights = torch.tensor([[0.75, 0.25]])
        >>> attention_correctness(weights, torch.tensor([[1.0, 0.5]]))
        tensor(0.8750)

    Source:
        Liu et al. 2017, arXiv:1605.09553, section 3, which upsamples the map to pixels first.
    """
    weights = at_least_float32(weights)
    sums = weights.sum((-2, -1))
    if not torch.allclose(sums, torch.ones_like(sums), atol=0.01, rtol=0):
        raise ValueError(
            "the weights of a map must sum to 1, "
            f"got {sums.min():.4g} to {sums.max():.4g}; divide each map by its sum"
        )
    return (weights * coverage).sum((-2, -1)) / sums


def uniform_baseline(coverage: Float[Tensor, "*b gy gx"]) -> Float[Tensor, "*b"]:
    """Return the correctness of uniform attention: the fraction of the area inside the region.

    Example:
        >>> uniform_baseline(torch.tensor([[1.0, 0.5]]))
        tensor(0.7500)
    """
    return coverage.mean((-2, -1))


def paper_correctness(
    weights: Float[Tensor, "*b gy gx"], boxes: Float[Tensor, "n 4"]
) -> tuple[Float[Tensor, "*b"], Float[Tensor, ""]]:
    """Return attention correctness and its uniform baseline by the protocol of the paper.

    The map is upsampled to 224 x 224 pixels by bicubic interpolation of PyTorch and divided by its
    sum; the boxes are rounded to pixels 1 to 224, with their first and last pixel included. Use it
    to compare with published numbers. `attention_correctness` and `uniform_baseline` are exact and
    stay between 0 and 1; bicubic interpolation can leave this range. Boxes as for `box_coverage`.

    Returns:
        The sum of each upsampled map inside the union of the boxes, and the fraction of pixels
        inside it.

    Example:
        >>> boxes = torch.tensor([[0.0, 0.0, 0.5, 1.0]])
        >>> correctness, baseline = paper_correctness(torch.tensor([[0.75, 0.25]]), boxes)
        >>> correctness, baseline
        (tensor(0.7129), tensor(0.5000))

    Source:
        Liu et al. 2017, arXiv:1605.09553, section 3.
    """
    corners = (boxes.double() * PAPER_SIZE).round().clamp(1, PAPER_SIZE)
    pixels = torch.arange(1, PAPER_SIZE + 1, device=boxes.device)
    x0, y0, x1, y1 = corners.unsqueeze(-1).unbind(1)
    inside_x = (x0 <= pixels) & (pixels <= x1)
    inside_y = (y0 <= pixels) & (pixels <= y1)
    mask = (inside_y.double().T @ inside_x.double() > 0).double()
    # Upsampling is linear and separable, so its transpose is applied to the mask instead.
    rows, columns = (_bicubic_matrix(cells).to(mask.device) for cells in weights.shape[-2:])
    inside, total = (
        (weights.double() * (rows.T @ region @ columns)).sum((-2, -1))
        for region in (mask, torch.ones_like(mask))  # same rounding: the whole image scores 1
    )
    return (inside / total).to(weights), mask.mean().to(weights)


def pointing_hit(
    weights: Float[Tensor, "*b gy gx"], boxes: Float[Tensor, "*#b n 4"]
) -> Bool[Tensor, "*b"]:
    """Return whether the center of the maximum cell is inside a box or on its edge.

    Args:
        weights: Attention over the cells; of several maxima the first in row-major order counts.
        boxes: Left, top, right, bottom as fractions of the network input: those of each map, or
            one set for all. Boxes of zeros contain nothing.

    Example:
        >>> pointing_hit(torch.tensor([[0.1, 0.9]]), torch.tensor([[0.5, 0.0, 1.0, 1.0]]))
        tensor(True)

    Source:
        Zhang et al. 2016, arXiv:1608.00507, section 4.2, without its tolerance of 15 pixels.
    """
    rows, columns = weights.shape[-2:]
    peak = weights.flatten(-2).argmax(-1)
    y = ((peak // columns + 0.5) / rows).unsqueeze(-1)
    x = ((peak % columns + 0.5) / columns).unsqueeze(-1)
    x0, y0, x1, y1 = boxes.unbind(-1)
    return ((x0 <= x) & (x <= x1) & (y0 <= y) & (y <= y1)).any(-1)


@lru_cache(16)
def _bicubic_matrix(cells: int) -> Float[Tensor, "pixels cells"]:
    """Return the matrix of bicubic upsampling to 224 pixels, along one axis."""
    basis = torch.eye(cells, dtype=torch.float64)[:, None, :, None]
    return interpolate(basis, (PAPER_SIZE, 1), mode="bicubic")[:, 0, :, 0].T


def _edges(
    starts: Float[Tensor, "*b n"], ends: Float[Tensor, "*b n"], cells: int
) -> Float[Tensor, "*b edges"]:
    cell_edges = torch.arange(cells + 1, dtype=torch.float64, device=starts.device) / cells
    edges = torch.cat([starts, ends, cell_edges.expand(*starts.shape[:-1], -1)], -1)
    return edges.sort(-1).values


def _tile_lengths(
    edges: Float[Tensor, "*b edges"], centers: Float[Tensor, "*b tiles"], cells: int
) -> Float[Tensor, "*b cells tiles"]:
    """Return the length of each tile in the row of the cell that contains it, along one axis."""
    # As a matrix, one row per cell, so that two products add up the tiles of each cell.
    cell_indices = (centers * cells).long().clamp(max=cells - 1).unsqueeze(-2)
    lengths = edges.new_zeros(*centers.shape[:-1], cells, centers.shape[-1])
    return lengths.scatter_(-2, cell_indices, edges.diff(dim=-1).unsqueeze(-2))
