"""Paths of the eye that nobody learned: what a learned path must beat."""

import math

import torch
from jaxtyping import Float
from torch import Tensor


def random_paths(
    images: int, glimpses: int, generator: torch.Generator | None = None
) -> Float[Tensor, "b t 2"]:
    """Return places anywhere on the image, each as likely as any other.

    Args:
        images: How many paths.
        glimpses: Places of each.
        generator: Draws them; torch's own if left out.

    Example:
        >>> random_paths(3, 5, torch.Generator().manual_seed(0)).shape
        torch.Size([3, 5, 2])
    """
    return torch.rand(images, glimpses, 2, generator=generator) * 2 - 1


def raster_paths(images: int, glimpses: int) -> Float[Tensor, "b t 2"]:
    """Return the same path for every image: over a grid, row by row, as one reads.

    There are about as many rows as places in a row. Where they do not come out even, the upper
    rows have one place more; each row is spread over the whole width.

    Example:
        >>> raster_paths(1, 5)[0]
        tensor([[-0.6667, -0.5000],
                [ 0.0000, -0.5000],
                [ 0.6667, -0.5000],
                [-0.5000,  0.5000],
                [ 0.5000,  0.5000]])
    """
    rows = max(1, round(math.sqrt(glimpses)))
    counts = [glimpses // rows + (row < glimpses % rows) for row in range(rows)]
    places = [
        (2 * (column + 0.5) / count - 1, 2 * (row + 0.5) / rows - 1)
        for row, count in enumerate(counts)
        for column in range(count)
    ]
    return torch.tensor(places).reshape(1, glimpses, 2).expand(images, -1, -1)
