"""Baseline scanpaths for glimpse models: uniformly random and raster order."""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def random_scanpaths(
    num_images: int, num_glimpses: int, generator: torch.Generator | None = None
) -> Float[Tensor, "b t 2"]:
    """Return scanpaths of uniformly distributed locations.

    Args:
        num_images: Number of scanpaths.
        num_glimpses: Locations per scanpath.
        generator: Random generator; the default one if None.

    Example:
        >>> random_scanpaths(3, 5, torch.Generator().manual_seed(0)).shape
        torch.Size([3, 5, 2])
    """
    return torch.rand(num_images, num_glimpses, 2, generator=generator) * 2 - 1


def raster_scanpaths(num_images: int, num_glimpses: int) -> Float[Tensor, "b t 2"]:
    """Return the same raster scanpath for every image: over a grid, row by row.

    There are about as many rows as columns. If the number is not divisible, the upper rows have one
    location more; each row spans the whole width.

    Example:
        >>> raster_scanpaths(1, 5)[0]
        tensor([[-0.6667, -0.5000],
                [ 0.0000, -0.5000],
                [ 0.6667, -0.5000],
                [-0.5000,  0.5000],
                [ 0.5000,  0.5000]])
    """
    rows = max(1, round(math.sqrt(num_glimpses)))
    counts = [num_glimpses // rows + (row < num_glimpses % rows) for row in range(rows)]
    locations = [
        (2 * (column + 0.5) / count - 1, 2 * (row + 0.5) / rows - 1)
        for row, count in enumerate(counts)
        for column in range(count)
    ]
    return torch.tensor(locations).reshape(1, num_glimpses, 2).expand(num_images, -1, -1)
