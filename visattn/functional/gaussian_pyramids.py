"""A picture at falling resolutions, and what differs between a place and its surroundings."""

import torch
from jaxtyping import Float
from torch import Tensor


def resized(x: Float[Tensor, "b c y x"], size: tuple[int, int]) -> Float[Tensor, "b c h w"]:
    """Return the features on a grid of another size, edge on edge.

    Finer grids are interpolated. On coarser ones a place is the weighted mean of all that lies up
    to one coarse place away from its middle. A constant stays constant, and what is mirrored before
    is mirrored after, whatever the sizes.

    Args:
        x: Features.
        size: Height and width, each at least 1.

    Example:
        >>> import torch
        >>> resized(torch.tensor([[[[0.0, 8.0, 8.0, 0.0]]]]), (1, 2))
        tensor([[[[4.5714, 4.5714]]]])
    """
    # torch's interpolate with antialias is wrong on grids of one column (2.15)
    down, across = (_tents(x.shape[axis], size[axis - 2]).to(x) for axis in (2, 3))
    return down @ (x @ across.T)


def _tents(side: int, count: int) -> Float[Tensor, "n m"]:
    """Return the weight of each place of a row of `side` for each of a row of `count`."""
    step = side / count
    middles = (torch.arange(count, dtype=torch.float64)[:, None] + 0.5) * step
    apart = (torch.arange(side, dtype=torch.float64) + 0.5 - middles).abs()
    weights = (1 - apart / max(step, 1.0)).clamp_min(0)
    return weights / weights.sum(1, keepdim=True)


def gaussian_pyramid(x: Float[Tensor, "b c y x"], levels: int) -> tuple[Tensor, ...]:
    """Return the features themselves and then, level by level, smoothed and at half the size.

    Level l has the height and width of x divided by 2^l, rounded up, so that there is no end to
    the levels: one place stays one place.

    Args:
        x: Features, which become level 0.
        levels: How many there shall be, level 0 included.

    Raises:
        ValueError: If levels are below 1.

    Example:
        >>> import torch
        >>> [tuple(level.shape[2:]) for level in gaussian_pyramid(torch.zeros(1, 3, 5, 7), 4)]
        [(5, 7), (3, 4), (2, 2), (1, 1)]

    Source:
        Burt and Adelson 1983, "The Laplacian Pyramid as a Compact Image Code", equation 1.
        Deviation: the weights are the binomial (1, 3, 3, 1)/8 instead of five around a place, so
        that levels lie edge on edge; where a side is odd, the triangle of that width; at the
        border the weights within the picture are scaled to sum to 1.
    """
    if levels < 1:
        raise ValueError(f"a pyramid has at least 1 level, got levels={levels}")
    found = [x]
    for _ in range(levels - 1):
        height, width = found[-1].shape[2:]
        found.append(resized(found[-1], ((height + 1) // 2, (width + 1) // 2)))
    return tuple(found)


def centre_surround(
    centre: Float[Tensor, "b c y x"], surround: Float[Tensor, "b c h w"]
) -> Float[Tensor, "b c y x"]:
    """Return how far each place differs from its surroundings, whether it is more or less.

    Args:
        centre: A level of a pyramid.
        surround: A coarser level of the same pyramid.

    Example:
        >>> import torch
        >>> centre_surround(torch.tensor([[[[1.0, 3.0, 2.0]]]]), torch.tensor([[[[2.0]]]]))
        tensor([[[[1., 1., 0.]]]])

    Source:
        Itti, Koch and Niebur 1998, "A Model of Saliency-Based Visual Attention for Rapid Scene
        Analysis", equation 1.
    """
    height, width = centre.shape[2:]
    return (centre - resized(surround, (height, width))).abs()
