"""Scanpaths that are not chosen by a policy: random, in raster order, over known objects."""

import math

import torch
from jaxtyping import Float, Int
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


def object_scanpaths(
    centers: Float[Tensor, "b n 2"],
    num_objects: Int[Tensor, " b"],
    num_glimpses: int,
    *,
    has_end: bool = False,
) -> Float[Tensor, "b t 2"]:
    """Return scanpaths over the objects of each image, with equally many glimpses at each of them.

    After the last object of an image the path stays there.

    Args:
        centers: x and y of the centers of the objects in order, in [-1, 1], padded.
        num_objects: Number of objects of each image.
        num_glimpses: Locations per scanpath.
        has_end: Whether as many glimpses as for an object follow at the end.

    Example:
        >>> centers = torch.tensor([[[0.1, 0.2], [0.3, 0.4]]])
        >>> object_scanpaths(centers, torch.tensor([2]), 4)[0, :, 0]
        tensor([0.1000, 0.1000, 0.3000, 0.3000])
    """
    step = max(1, num_glimpses // (centers.shape[1] + has_end))
    parts = torch.arange(num_glimpses, device=centers.device) // step
    parts = parts.minimum(num_objects.unsqueeze(1) - 1)
    return centers.gather(1, parts.unsqueeze(-1).expand(-1, -1, 2))
