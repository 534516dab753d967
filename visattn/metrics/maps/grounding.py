"""How much of the attention lies where it should."""

from functools import lru_cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import interpolate

PAPER_SIZE = 224  # pixels a side of the images on which attention correctness was defined


def mask_coverage(mask: Bool[Tensor, "*b y x"], grid: tuple[int, int]) -> Float[Tensor, "*b gy gx"]:
    """Return the share of each cell's area that lies inside a mask, exact also between pixels.

    Args:
        mask: True inside, on the pixels of the network's input.
        grid: Number of rows and columns of cells that divide the same area.

    Example:
        >>> mask_coverage(torch.tensor([[True, False, False]]), (1, 2))
        tensor([[0.6667, 0.0000]])
    """
    height, width = mask.shape[-2:]
    down, across = _overlap(grid[0], height), _overlap(grid[1], width)
    shares = down.to(mask.device) @ mask.double() @ across.T.to(mask.device)
    return shares.to(torch.get_default_dtype())


def box_coverage(boxes: Float[Tensor, "n 4"], grid: tuple[int, int]) -> Float[Tensor, "gy gx"]:
    """Return the share of each cell's area that lies inside at least one of the boxes, exactly.

    Args:
        boxes: Left, top, right, bottom as shares of the network's input; what reaches beyond 0
            and 1 is cut off. `Geometry.boxes_to_input` makes them.
        grid: Number of rows and columns of cells.

    Example:
        >>> twice = torch.tensor([[0.0, 0.0, 0.25, 1.0], [0.0, 0.0, 0.25, 1.0]])
        >>> box_coverage(twice, (1, 2))
        tensor([[0.5000, 0.0000]])
    """
    rows, columns = grid
    x0, y0, x1, y1 = boxes.double().clamp(0, 1).unbind(-1)
    x, y = _edges(x0, x1, columns), _edges(y0, y1, rows)  # no line runs through a tile between them
    middle_x, middle_y = (x[1:] + x[:-1]) / 2, (y[1:] + y[:-1]) / 2
    inside_x = (x0[:, None] < middle_x) & (middle_x < x1[:, None])
    inside_y = (y0[:, None] < middle_y) & (middle_y < y1[:, None])
    covered = (inside_y.double().T @ inside_x.double() > 0).double()
    down = _lengths(y, middle_y, rows)
    across = _lengths(x, middle_x, columns)
    return (down @ covered @ across.T * (rows * columns)).clamp(0, 1).to(boxes)


def box_target(boxes: Float[Tensor, "n 4"], grid: tuple[int, int]) -> Float[Tensor, "gy gx"]:
    """Return attention spread evenly over the boxes, and nowhere else: what it ought to be.

    Args:
        boxes: Left, top, right, bottom as shares of the network's input; together they count once.
        grid: Number of rows and columns of cells.

    Raises:
        ValueError: If no box lies in the image.

    Example:
        >>> box_target(torch.tensor([[0.25, 0.0, 1.0, 1.0]]), (1, 2))
        tensor([[0.3333, 0.6667]])

    Source:
        Liu et al. 2017, arXiv:1605.09553, strong supervision.
    """
    covered = box_coverage(boxes, grid)
    total = covered.sum()
    if total <= 0:
        raise ValueError(f"at least one box must reach into the image, got {boxes.tolist()}")
    return covered / total


def attention_correctness(
    weights: Float[Tensor, "*#b gy gx"], coverage: Float[Tensor, "*#b gy gx"]
) -> Float[Tensor, "*b"]:
    """Return how much of the attention lies inside the region, between 0 and 1.

    What is above `uniform_baseline` is owed to looking; a large region is met by chance.

    Args:
        weights: Attention over the cells, at least 0, each map summing to 1.
        coverage: Share of each cell inside the region.

    Raises:
        ValueError: If the weights of a map do not sum to 1.

    Example:
        >>> weights = torch.tensor([[0.75, 0.25]])
        >>> attention_correctness(weights, torch.tensor([[1.0, 0.5]]))
        tensor(0.8750)

    Source:
        Liu et al. 2017, arXiv:1605.09553, section 3; there the map is enlarged to pixels first.
    """
    sums = weights.sum((-2, -1))
    if not torch.allclose(sums, torch.ones_like(sums), atol=1e-3, rtol=0):
        raise ValueError(
            "the weights of a map must sum to 1, "
            f"got {sums.min():.4g} to {sums.max():.4g}; divide each map by its sum"
        )
    return (weights * coverage).sum((-2, -1))


def uniform_baseline(coverage: Float[Tensor, "*b gy gx"]) -> Float[Tensor, "*b"]:
    """Return the correctness of attention that is spread evenly: the region's share of the area.

    Example:
        >>> uniform_baseline(torch.tensor([[1.0, 0.5]]))
        tensor(0.7500)
    """
    return coverage.mean((-2, -1))


def paper_correctness(
    weights: Float[Tensor, "*b gy gx"], boxes: Float[Tensor, "n 4"]
) -> tuple[Float[Tensor, "*b"], Float[Tensor, ""]]:
    """Return the correctness of attention, and its baseline, by the steps of the paper's authors.

    The map is enlarged to 224 x 224 pixels by torch's bicubic interpolation and divided by its
    sum; the boxes are rounded to pixels 1 to 224, their first and last pixel included. It stands
    beside published numbers; `attention_correctness` and `uniform_baseline` are exact, and stay
    between 0 and 1, which bicubic interpolation need not.

    Args:
        weights: Attention over the cells.
        boxes: Left, top, right, bottom as shares of the network's input.

    Returns:
        The sum of each enlarged map inside at least one of the boxes; the boxes' share of pixels.

    Example:
        >>> left = torch.tensor([[0.0, 0.0, 0.5, 1.0]])
        >>> correctness, baseline = paper_correctness(torch.tensor([[0.75, 0.25]]), left)
        >>> correctness, baseline
        (tensor(0.7129), tensor(0.5000))

    Source:
        Liu et al. 2017, arXiv:1605.09553, section 3.
    """
    ends = (boxes.double() * PAPER_SIZE).round().clamp(1, PAPER_SIZE)
    pixels = torch.arange(1, PAPER_SIZE + 1, device=boxes.device)
    x0, y0, x1, y1 = ends.unsqueeze(-1).unbind(1)
    beside, beneath = (x0 <= pixels) & (pixels <= x1), (y0 <= pixels) & (pixels <= y1)
    mask = (beneath.double().T @ beside.double() > 0).double()
    # Enlarging is linear, first along one axis, then along the other: the mask is shrunk instead.
    down, across = (_enlarging(cells).to(mask.device) for cells in weights.shape[-2:])
    inside, whole = (
        (weights.double() * (down.T @ part @ across)).sum((-2, -1))
        for part in (mask, torch.ones_like(mask))  # alike, so that the whole image scores 1
    )
    return (inside / whole).to(weights), mask.mean().to(weights)


def pointing_hit(
    weights: Float[Tensor, "*b gy gx"], boxes: Float[Tensor, "n 4"]
) -> Bool[Tensor, "*b"]:
    """Return whether the center of the strongest cell lies in one of the boxes, edges included.

    Args:
        weights: Attention over the cells; among equals the first counts, row by row.
        boxes: Left, top, right, bottom as shares of the network's input.

    Example:
        >>> pointing_hit(torch.tensor([[0.1, 0.9]]), torch.tensor([[0.5, 0.0, 1.0, 1.0]]))
        tensor(True)

    Source:
        Zhang et al. 2016, arXiv:1608.00507, section 4.2, without their tolerance of 15 pixels.
    """
    rows, columns = weights.shape[-2:]
    strongest = weights.flatten(-2).argmax(-1)
    y = ((strongest // columns + 0.5) / rows).unsqueeze(-1)
    x = ((strongest % columns + 0.5) / columns).unsqueeze(-1)
    x0, y0, x1, y1 = boxes.unbind(-1)
    return ((x0 <= x) & (x <= x1) & (y0 <= y) & (y <= y1)).any(-1)


def _overlap(cells: int, pixels: int) -> Float[Tensor, "cells pixels"]:
    """Return which share of each cell each pixel fills, along one axis."""
    cell = torch.arange(cells, dtype=torch.float64)[:, None] / cells
    pixel = torch.arange(pixels, dtype=torch.float64) / pixels
    ends = torch.minimum(cell + 1 / cells, pixel + 1 / pixels)
    return (ends - torch.maximum(cell, pixel)).clamp(min=0) * cells


@lru_cache(16)
def _enlarging(cells: int) -> Float[Tensor, "pixels cells"]:
    """Return how much of each cell each pixel holds after bicubic enlargement, along one axis."""
    each = torch.eye(cells, dtype=torch.float64)[:, None, :, None]
    return interpolate(each, (PAPER_SIZE, 1), mode="bicubic")[:, 0, :, 0].T


def _edges(
    starts: Float[Tensor, " n"], ends: Float[Tensor, " n"], cells: int
) -> Float[Tensor, " edges"]:
    lines = torch.arange(cells + 1, dtype=torch.float64, device=starts.device) / cells
    return torch.cat([starts, ends, lines]).unique()


def _lengths(
    edges: Float[Tensor, " edges"], middles: Float[Tensor, " tiles"], cells: int
) -> Float[Tensor, "cells tiles"]:
    """Return the length of each tile in the row of the cell that holds it, along one axis."""
    owner = (middles * cells).long().clamp(max=cells - 1)
    lengths = edges.new_zeros(cells, len(middles))
    return lengths.scatter_(0, owner[None], edges.diff()[None])
